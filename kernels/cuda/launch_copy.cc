// Copies and creation: dims are put in the destination's order and merged, and elements taken together, so that most
// copies are one dim of 16 bytes; arrays that are dense along different dims go through tiles.

#include <array>
#include <cstddef>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/random_parameters.h"
#include "kernels/cuda/steps.h"
#include "kernels/cuda/transpose_tile.h"
#include "kernels/operands.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

constexpr int64_t kMaxElementBytes = 16;
// Below this extent of either dim a tile is mostly empty.
constexpr int64_t kMinTransposed = 16;
constexpr int64_t kMaxGridY = 65535;

// Two neighbours as one element, as far as that goes.
int64_t TakeTogether(int64_t element_bytes, uint64_t source, uint64_t destination, Loops* loops) {
  const auto is_even = [](int64_t n) { return n % 2 == 0; };
  while (element_bytes < kMaxElementBytes) {
    const size_t last = loops->extents.size() - 1;
    const int64_t wide = 2 * element_bytes;
    bool fits = is_even(loops->extents[last]) && source % static_cast<uint64_t>(wide) == 0 &&
                destination % static_cast<uint64_t>(wide) == 0;
    for (const Strides& strides : loops->strides) {
      fits = fits && strides[last] == 1;
      for (size_t d = 0; d < last; ++d) fits = fits && is_even(strides[d]);
    }
    if (!fits) break;
    element_bytes = wide;
    loops->extents[last] /= 2;
    loops->size /= 2;
    for (Strides& strides : loops->strides) {
      for (size_t d = 0; d < last; ++d) strides[d] /= 2;
    }
  }
  return element_bytes;
}

// The dim along which the source is dense, where the destination is dense along the last one; -1 for no transpose.
int64_t TransposedDim(const Loops& loops) {
  const size_t last = loops.extents.size() - 1;
  if (loops.strides[1][last] != 1 || loops.strides[0][last] == 1 || loops.extents[last] < kMinTransposed) return -1;
  int64_t batch = loops.size / loops.extents[last];
  for (size_t d = 0; d < last; ++d) {
    if (loops.strides[0][d] != 1 || loops.extents[d] < kMinTransposed) continue;
    return batch / loops.extents[d] <= kMaxGridY ? static_cast<int64_t>(d) : -1;
  }
  return -1;
}

// Tiles of a transposing copy.
struct Tile {
  int64_t rows = 32, columns = 32;
  std::array<uint32_t, 3> threads = {32, 8, 1};
  const char* entry = "transpose_";
};
template <int kBytes>
Tile TileOfVectors() {
  return {TransposeTile<kBytes>::kRows,
          TransposeTile<kBytes>::kColumns,
          {static_cast<uint32_t>(kTransposeThreads), 1, 1},
          "transpose_v_"};
}

// By vectors of 16 bytes where both sides lie in them and half a tile is full.
Tile TileOf(const Loops& loops, size_t dim, int64_t element_bytes, const TransposeParameters& p) {
  if (element_bytes > 4) return {};
  const Tile tile = element_bytes == 1   ? TileOfVectors<1>()
                    : element_bytes == 2 ? TileOfVectors<2>()
                                         : TileOfVectors<4>();
  const auto divides = [](int64_t bytes) { return bytes % 16 == 0; };
  bool fits = 2 * p.rows >= tile.rows && 2 * p.columns >= tile.columns && divides(p.rows * element_bytes) &&
              divides(p.columns * element_bytes) && AddressOf(p.source) % 16 == 0 && AddressOf(p.destination) % 16 == 0;
  for (size_t side = 0; side < 2; ++side) {
    const size_t dense = side == 0 ? dim : loops.extents.size() - 1;
    for (size_t d = 0; d < loops.extents.size(); ++d) {
      fits = fits && (d == dense || divides(loops.strides[side][d] * element_bytes));
    }
  }
  return fits ? tile : Tile{};
}

Launch TransposeOf(const Loops& loops, size_t dim, int64_t element_bytes, const void* source, void* destination) {
  const size_t last = loops.extents.size() - 1;
  TransposeParameters p;
  p.source = source;
  p.destination = destination;
  p.rows = loops.extents[last];
  p.columns = loops.extents[dim];
  p.source_row = loops.strides[0][last];
  p.destination_column = loops.strides[1][dim];
  Shape batch = loops.extents;
  batch[last] = batch[dim] = 1;
  p.batch = MakeNest<2>(batch, loops.strides);
  const Tile tile = TileOf(loops, dim, element_bytes, p);
  const auto tiles = [](int64_t extent, int64_t side) { return (extent + side - 1) / side; };
  return MakeLaunch(
      absl::StrCat(tile.entry, element_bytes), p,
      {static_cast<uint32_t>(tiles(p.columns, tile.columns)),
       static_cast<uint32_t>(std::min(tiles(p.rows, tile.rows), kMaxGridY)), static_cast<uint32_t>(p.batch.size)},
      tile.threads);
}

}  // namespace

void AddCopy(absl::Span<const int64_t> extents, int64_t element_bytes, const void* source,
             absl::Span<const int64_t> source_strides, void* destination, absl::Span<const int64_t> destination_strides,
             Steps* steps) {
  if (NumElements(extents) == 0) return;
  std::vector<size_t> order(extents.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::abs(destination_strides[a]) > std::abs(destination_strides[b]);
  });
  Shape sorted;
  std::vector<Strides> strides(2);
  for (const size_t d : order) {
    sorted.push_back(extents[d]);
    strides[0].push_back(source_strides[d]);
    strides[1].push_back(destination_strides[d]);
  }
  Loops loops = MergedLoops(sorted, std::move(strides));
  const int64_t bytes = TakeTogether(element_bytes, AddressOf(source), AddressOf(destination), &loops);
  if (const int64_t dim = TransposedDim(loops); dim >= 0) {
    steps->push_back(TransposeOf(loops, static_cast<size_t>(dim), bytes, source, destination));
    return;
  }
  CopyParameters p;
  p.source = source;
  p.destination = destination;
  p.nest = ToNest<2>(loops);
  steps->push_back(MakeLaunch(absl::StrCat("copy_", bytes), p, GridOf(p.nest.size)));
}

absl::StatusOr<Steps> LaunchCopy(absl::Span<const int64_t> extents, int64_t element_bytes, const void* source,
                                 absl::Span<const int64_t> source_strides, void* destination,
                                 absl::Span<const int64_t> destination_strides) {
  Steps steps;
  AddCopy(extents, element_bytes, source, source_strides, destination, destination_strides, &steps);
  return steps;
}

// ---- creation

namespace {

absl::Status ExpectScalars(const char* op, const KernelCall& call, size_t scalars, size_t min_rank, size_t max_rank) {
  const size_t rank = call.output_extents.size();
  if (call.scalars.size() != scalars || rank < min_rank || rank > max_rank ||
      (min_rank > 0 && call.output_box.size() != rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat(op, ": takes ", scalars, " scalars, got ", call.scalars.size(), ", for an output of rank ", rank));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Steps> LaunchFill(const KernelCall& call) {
  TESSERA_RETURN_IF_ERROR(ExpectScalars("full", call, 1, 0, kMaxRank));
  if (NumElements(call.output_extents) == 0) return Steps();
  FillParameters p;
  p.element = ToElement(call.scalars[0], call.output_dtype);
  p.destination = call.output;
  p.nest = MakeNest<1>(call.output_extents, {call.output_strides});
  Launch launch = MakeLaunch(absl::StrCat("fill_", SizeBytes(call.output_dtype)), p, GridOf(p.nest.size));
  launch.arguments = {{.offset = offsetof(FillParameters, element), .scalar = 0, .dtype = call.output_dtype}};
  return Steps{std::move(launch)};
}

absl::StatusOr<Steps> LaunchArange(const KernelCall& call) {
  TESSERA_RETURN_IF_ERROR(ExpectScalars("arange", call, 2, 1, 1));
  if (Kind(call.output_dtype) == DTypeKind::kComplex) return NoKernelFor("arange", call.output_dtype);
  if (call.output_extents[0] == 0) return Steps();
  ArangeParameters p;
  p.destination = call.output;
  p.count = call.output_extents[0];
  p.stride = call.output_strides[0];
  p.first = call.output_box[0].start;
  p.integer_start = call.scalars[0].AsInt();
  p.integer_step = call.scalars[1].AsInt();
  p.start = call.scalars[0].AsDouble();
  p.step = call.scalars[1].AsDouble();
  p.dtype = static_cast<int>(call.output_dtype);
  return Steps{MakeLaunch("arange", p, GridOf(p.count))};
}

absl::StatusOr<Steps> LaunchEye(const KernelCall& call) {
  TESSERA_RETURN_IF_ERROR(ExpectScalars("eye", call, 1, 2, 2));
  if (NumElements(call.output_extents) == 0) return Steps();
  EyeParameters p;
  p.one = ToElement(Scalar::Int(1), call.output_dtype);
  p.destination = call.output;
  p.rows = call.output_extents[0];
  p.columns = DivisorOf(call.output_extents[1]);
  p.row_stride = call.output_strides[0];
  p.column_stride = call.output_strides[1];
  p.first_row = call.output_box[0].start;
  p.first_column = call.output_box[1].start;
  p.diagonal = call.scalars[0].AsInt();
  return Steps{MakeLaunch(absl::StrCat("eye_", SizeBytes(call.output_dtype)), p, GridOf(p.rows * p.columns.value))};
}

absl::StatusOr<Steps> LaunchRand(const RandOp& op, const KernelCall& call) {
  const bool is_normal = op.distribution == Distribution::kNormal;
  TESSERA_RETURN_IF_ERROR(ExpectScalars("rand", call, is_normal ? 4 : 2, 0, kMaxRank));
  const size_t rank = call.output_extents.size();
  if (op.global_shape.size() != rank || call.output_box.size() != rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("rand: global shape ", ToText(op.global_shape), " for an output ", ToText(call.output_extents)));
  }
  if (Kind(call.output_dtype) != DTypeKind::kFloat) {
    return absl::UnimplementedError(
        absl::StrCat("rand: no CUDA kernel for ", NameOf(call.output_dtype), "; floats have one"));
  }
  if (NumElements(call.output_extents) == 0) return Steps();
  RandParameters p;
  p.destination = call.output;
  if (is_normal) {
    p.mean = call.scalars[0].AsDouble();
    p.deviation = call.scalars[1].AsDouble();
  }
  const size_t seed = is_normal ? 2 : 0;
  p.seed = static_cast<unsigned long long>(call.scalars[seed].AsInt());
  p.stream = static_cast<unsigned long long>(call.scalars[seed + 1].AsInt());
  const Strides numbers = RowMajorStrides(op.global_shape);
  for (size_t d = 0; d < rank; ++d) p.first += call.output_box[d].start * numbers[d];
  p.dtype = static_cast<int>(call.output_dtype);
  Loops rows = MergedLoops(call.output_extents, {call.output_strides, numbers});
  if (rows.strides[1].back() != 1) {  // rows of one element
    rows.extents.push_back(1);
    for (Strides& operand : rows.strides) operand.push_back(0);
  }
  p.columns = rows.extents.back();
  p.stride = rows.strides[0].back();
  // Rows that all begin at the same place of a counter's numbers, or anywhere among them.
  const int64_t shared = SizeBytes(call.output_dtype) == 8 ? 2 : 4;
  bool are_alike = true;
  for (size_t d = 0; d + 1 < rows.extents.size(); ++d) are_alike = are_alike && rows.strides[1][d] % shared == 0;
  const int64_t skipped = are_alike ? p.first % shared : shared - 1;
  p.counters = DivisorOf((skipped + p.columns + shared - 1) / shared);
  rows.extents.back() = 1;
  rows.size /= p.columns;
  p.rows = ToNest<2>(rows);
  return Steps{MakeLaunch(is_normal ? "rand_normal" : "rand_uniform", p, GridOf(p.rows.size * p.counters.value))};
}

absl::StatusOr<Steps> LaunchPlace(const PlaceOp& op, const KernelCall& call, const Workspace& workspace) {
  const int64_t bytes = SizeBytes(call.output_dtype);
  Steps steps;
  if (op.base == PlaceBase::kScalar) {
    TESSERA_ASSIGN_OR_RETURN(steps, LaunchFill(call));
  } else if (op.base == PlaceBase::kInput) {
    const KernelInput& base = call.inputs[0];
    const bool is_there = base.data == call.output && base.strides == call.output_strides && !base.is_zero;
    if (!is_there) {
      AddCopy(call.output_extents, bytes, DataOf(base, workspace), StridesOf(base), call.output, call.output_strides,
              &steps);
    }
  }
  for (size_t p = 0; p < op.starts.size(); ++p) {
    const KernelInput& piece = call.inputs[(op.base == PlaceBase::kInput ? 1 : 0) + p];
    if (NumElements(piece.extents) == 0) continue;
    TESSERA_ASSIGN_OR_RETURN(const PlacedPiece placed, PlacePiece(op, call, p));
    AddCopy(piece.extents, bytes, DataOf(piece, workspace), StridesOf(piece),
            static_cast<std::byte*>(call.output) + placed.offset * bytes, placed.strides, &steps);
  }
  return steps;
}

}  // namespace tessera::cuda
