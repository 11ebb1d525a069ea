// Sorts by digits.

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/radix_parameters.h"
#include "kernels/cuda/radix_steps.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

// Shorter lines are merged: a tile would be mostly empty. docs/limits.md: min_gpu_radix_extent
constexpr int64_t kLeastExtent = 2048;
constexpr int64_t kMaxGrid = std::numeric_limits<int32_t>::max();

int64_t TileOf(const RadixSort& sort) { return int64_t{kRadixThreads} * kRadixItems * 4 / sort.key_bytes; }
int64_t TilesOf(const RadixSort& sort) { return (sort.extent + TileOf(sort) - 1) / TileOf(sort); }
int64_t ElementsOf(const RadixSort& sort) { return sort.lines * sort.extent; }
int64_t CountBytes(const RadixSort& sort) { return sort.lines * kRadixDigits * TilesOf(sort) * 4; }
int64_t TotalBytes(const RadixSort& sort) { return sort.lines * kRadixDigits * 4; }

RadixSort SortOf(const SortOp& op, const KernelCall& call) {
  const KernelInput& input = call.inputs[0];
  const int64_t extent = input.extents[static_cast<size_t>(op.dim)];
  return {.lines = extent == 0 ? 0 : NumElements(input.extents) / extent,
          .extent = extent,
          .key_bytes = SizeBytes(input.dtype) == 8 ? 8 : 4,
          .gives_places = op.result == SortResult::kPlaces};
}

// How the dtype's bits become keys.
void SetKind(DType dtype, bool gives_places, RadixElements* p) {
  switch (Kind(dtype)) {
    case DTypeKind::kBool: p->kind = kRadixBool; return;
    case DTypeKind::kFloat: p->kind = gives_places ? kRadixFloatOfEqualZeros : kRadixFloat; break;
    default: p->kind = Kind(dtype) == DTypeKind::kSigned ? kRadixSigned : kRadixUnsigned; return;
  }
  const double infinity = std::numeric_limits<double>::infinity();
  p->infinity = ToElement(Scalar::Float(infinity), dtype).words[0];
  p->nan = ToElement(Scalar::Float(std::numeric_limits<double>::quiet_NaN()), dtype).words[0];
}

}  // namespace

bool CanSortByDigits(const RadixSort& sort) {
  return sort.extent <= kMaxGrid && sort.lines <= kMaxGrid / kRadixDigits / std::max<int64_t>(TilesOf(sort), 1);
}

int64_t RadixBuffers::Bytes(const RadixSort& sort) {
  const int64_t places = sort.gives_places ? 2 * Pieces::Rounded(ElementsOf(sort) * 4) : 0;
  return 2 * Pieces::Rounded(ElementsOf(sort) * sort.key_bytes) + places + Pieces::Rounded(CountBytes(sort)) +
         Pieces::Rounded(TotalBytes(sort));
}

absl::StatusOr<RadixBuffers> RadixBuffers::Take(const RadixSort& sort, Pieces* pieces) {
  RadixBuffers taken;
  for (void*& keys : taken.keys) {
    TESSERA_ASSIGN_OR_RETURN(keys, pieces->Take(ElementsOf(sort) * sort.key_bytes));
  }
  for (unsigned*& places : taken.places) {
    if (!sort.gives_places) break;
    TESSERA_ASSIGN_OR_RETURN(void* memory, pieces->Take(ElementsOf(sort) * 4));
    places = static_cast<unsigned*>(memory);
  }
  TESSERA_ASSIGN_OR_RETURN(void* counts, pieces->Take(CountBytes(sort)));
  TESSERA_ASSIGN_OR_RETURN(void* totals, pieces->Take(TotalBytes(sort)));
  taken.counts = static_cast<unsigned*>(counts);
  taken.totals = static_cast<unsigned*>(totals);
  return taken;
}

void AddRadixPasses(const RadixSort& sort, int bits, RadixBuffers* buffers, Steps* steps) {
  const auto blocks = static_cast<uint32_t>(sort.lines * TilesOf(sort));
  const auto digits = static_cast<uint32_t>(sort.lines * kRadixDigits);
  for (int shift = 0; shift < bits; shift += 8) {
    RadixParameters p;
    p.keys = buffers->keys[0];
    p.to_keys = buffers->keys[1];
    p.places = shift == 0 ? nullptr : buffers->places[0];
    p.to_places = buffers->places[1];
    p.counts = buffers->counts;
    p.totals = buffers->totals;
    p.extent = sort.extent;
    p.tiles = TilesOf(sort);
    p.tiles_of_line = DivisorOf(p.tiles);
    p.shift = shift;
    steps->push_back(
        MakeLaunch(absl::StrCat("radix_count_", sort.key_bytes), p, {blocks, 1, 1}, {kRadixThreads, 1, 1}));
    steps->push_back(MakeLaunch("radix_sum", p, {digits, 1, 1}, {kRadixThreads, 1, 1}));
    steps->push_back(MakeLaunch(absl::StrCat("radix_move_", sort.key_bytes), p, {blocks, 1, 1}, {kRadixThreads, 1, 1}));
    std::swap(buffers->keys[0], buffers->keys[1]);
    std::swap(buffers->places[0], buffers->places[1]);
  }
}

RadixElements RadixElementsOf(const SortOp& op, const KernelInput& input, const Workspace& workspace) {
  const size_t dim = static_cast<size_t>(op.dim);
  Shape lines = input.extents;
  lines[dim] = 1;
  RadixElements p;
  p.source = DataOf(input, workspace);
  p.extent = DivisorOf(input.extents[dim]);
  p.stride = StridesOf(input)[dim];
  p.is_descending = op.order == SortOrder::kDescending ? 1 : 0;
  SetKind(input.dtype, op.result == SortResult::kPlaces, &p);
  p.lines = MakeNest<1>(lines, {StridesOf(input)});
  return p;
}

bool IsSortedByDigits(const SortOp& op, const KernelCall& call) {
  const RadixSort sort = SortOf(op, call);
  return sort.extent >= kLeastExtent && Kind(call.inputs[0].dtype) != DTypeKind::kComplex && CanSortByDigits(sort);
}

int64_t RadixSortBytes(const SortOp& op, const KernelCall& call) { return RadixBuffers::Bytes(SortOf(op, call)); }

absl::StatusOr<Steps> LaunchRadixSort(const SortOp& op, const KernelCall& call, const Workspace& workspace) {
  const KernelInput& input = call.inputs[0];
  const size_t dim = static_cast<size_t>(op.dim);
  const RadixSort sort = SortOf(op, call);
  Pieces pieces(workspace);
  TESSERA_ASSIGN_OR_RETURN(RadixBuffers buffers, RadixBuffers::Take(sort, &pieces));
  Shape lines = input.extents;
  lines[dim] = 1;
  RadixElements p = RadixElementsOf(op, input, workspace);
  p.destination = buffers.keys[0];
  const int64_t bytes = SizeBytes(input.dtype);
  Steps steps = {MakeLaunch(absl::StrCat("radix_load_", bytes), p, GridOf(ElementsOf(sort)))};
  AddRadixPasses(sort, static_cast<int>(8 * bytes), &buffers, &steps);
  p.source = sort.gives_places ? static_cast<const void*>(buffers.places[0]) : buffers.keys[0];
  p.destination = call.output;
  p.stride = call.output_strides[dim];
  p.lines = MakeNest<1>(lines, {call.output_strides});
  const std::string store = sort.gives_places ? "radix_store_places" : absl::StrCat("radix_store_", bytes);
  steps.push_back(MakeLaunch(store, p, GridOf(ElementsOf(sort))));
  return steps;
}

}  // namespace tessera::cuda
