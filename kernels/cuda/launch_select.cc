// The first places of a sort, without the sort (select.cu).

#include <algorithm>
#include <bit>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/radix_steps.h"
#include "kernels/cuda/select_parameters.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

constexpr int64_t kTile = int64_t{kRadixThreads} * kSelectItems;

struct Selection {
  int64_t lines = 0, extent = 0, first = 0;
  int bytes = 4;  // of an element, and passes

  bool is_short() const { return extent <= kMaxOrdered; }
  int64_t tiles() const { return (extent + kTile - 1) / kTile; }
  int64_t key_bytes() const { return bytes == 8 ? 8 : 4; }
  // A large selection is ordered by digits.
  bool is_sorted() const { return first > kMaxOrdered; }
  RadixSort sort() const { return {.lines = lines, .extent = first, .key_bytes = static_cast<int>(key_bytes())}; }
  int64_t count_bytes() const { return bytes * lines * kRadixDigits * int64_t{sizeof(unsigned)}; }
  int64_t state_bytes() const { return (bytes + 1) * lines * int64_t{sizeof(SelectState)}; }
  int64_t tile_bytes() const { return lines * tiles() * int64_t{sizeof(SelectTile)}; }
};

Selection SelectionOf(const SortOp& op, const KernelCall& call) {
  const KernelInput& input = call.inputs[0];
  const int64_t extent = input.extents[static_cast<size_t>(op.dim)];
  return {.lines = extent == 0 ? 0 : NumElements(input.extents) / extent,
          .extent = extent,
          .first = std::min(*op.first, extent),
          .bytes = static_cast<int>(SizeBytes(input.dtype))};
}

// Whether blocks and places can be numbered.
bool CanSelect(const Selection& s) {
  if (s.is_short()) return true;
  constexpr int64_t kMaxGrid = std::numeric_limits<int32_t>::max();
  return s.extent <= std::numeric_limits<uint32_t>::max() && s.lines <= kMaxGrid / s.tiles() &&
         (!s.is_sorted() || CanSortByDigits(s.sort()));
}

// As many threads as there are pairs, up to those of a tile.
uint32_t ThreadsFor(int64_t ordered) {
  return static_cast<uint32_t>(std::clamp<int64_t>(ordered / 2, 32, kRadixThreads));
}

}  // namespace

int64_t SelectBytes(const SortOp& op, const KernelCall& call) {
  const Selection s = SelectionOf(op, call);
  if (s.is_short() || s.lines == 0) return 0;
  const int64_t keys =
      s.is_sorted() ? RadixBuffers::Bytes(s.sort()) : Pieces::Rounded(s.lines * s.first * s.key_bytes());
  return Pieces::Rounded(s.count_bytes()) + Pieces::Rounded(s.state_bytes()) + Pieces::Rounded(s.tile_bytes()) +
         Pieces::Rounded(s.lines * s.first * int64_t{sizeof(unsigned)}) + keys;
}

absl::StatusOr<Steps> LaunchSelect(const SortOp& op, const KernelCall& call, const Workspace& workspace) {
  const KernelInput& input = call.inputs[0];
  const size_t dim = static_cast<size_t>(op.dim);
  const Selection s = SelectionOf(op, call);
  if (!CanSelect(s)) {
    return absl::UnimplementedError(absl::StrCat("argsort: the first ", s.first, " of ", NameOf(input.dtype),
                                                 ToText(input.extents), " along dim ", op.dim,
                                                 "; up to 2^32 - 1 elements"));
  }
  Shape lines = input.extents;
  lines[dim] = 1;
  SelectParameters p;
  p.elements = RadixElementsOf(op, input, workspace);
  p.elements.destination = call.output;
  p.first = s.first;
  p.output_stride = call.output_strides[dim];
  p.outputs = MakeNest<1>(lines, {call.output_strides});
  const std::array<uint32_t, 3> of_lines = {static_cast<uint32_t>(std::min(s.lines, kMaxBlocks)), 1, 1};
  p.ordered = static_cast<int>(std::bit_ceil(static_cast<uint64_t>(std::min<int64_t>(s.extent, kMaxOrdered))));
  if (s.is_short()) {
    return Steps{MakeLaunch(absl::StrCat("select_short_", s.bytes), p, of_lines, {ThreadsFor(p.ordered), 1, 1})};
  }

  Pieces pieces(workspace);
  TESSERA_ASSIGN_OR_RETURN(void* counts, pieces.Take(s.count_bytes()));
  TESSERA_ASSIGN_OR_RETURN(void* states, pieces.Take(s.state_bytes()));
  TESSERA_ASSIGN_OR_RETURN(void* tiles, pieces.Take(s.tile_bytes()));
  TESSERA_ASSIGN_OR_RETURN(void* places, pieces.Take(s.lines * s.first * int64_t{sizeof(unsigned)}));
  p.counts = static_cast<unsigned*>(counts);
  p.states = static_cast<SelectState*>(states);
  p.tiles = static_cast<SelectTile*>(tiles);
  p.places = static_cast<unsigned*>(places);
  p.tiles_of_line = DivisorOf(s.tiles());
  RadixBuffers buffers;
  if (s.is_sorted()) {
    TESSERA_ASSIGN_OR_RETURN(buffers, RadixBuffers::Take(s.sort(), &pieces));
    p.keys = buffers.keys[0];
  } else {
    TESSERA_ASSIGN_OR_RETURN(p.keys, pieces.Take(s.lines * s.first * s.key_bytes()));
  }
  const std::array<uint32_t, 3> blocks = {static_cast<uint32_t>(s.lines * s.tiles()), 1, 1};
  Steps steps = {Fill{AddressOf(counts), s.count_bytes(), 0}};
  const auto add = [&](std::string entry, std::array<uint32_t, 3> grid) {
    steps.push_back(MakeLaunch(std::move(entry), p, grid, {kRadixThreads, 1, 1}));
  };
  for (; p.pass < s.bytes; ++p.pass) add(absl::StrCat("select_count_", s.bytes), blocks);
  add(absl::StrCat("select_tiles_", s.bytes), blocks);
  add("select_sum", {static_cast<uint32_t>(s.lines), 1, 1});
  add(absl::StrCat("select_move_", s.bytes), blocks);
  if (!s.is_sorted()) {
    p.ordered = static_cast<int>(std::bit_ceil(static_cast<uint64_t>(s.first)));
    steps.push_back(
        MakeLaunch(absl::StrCat("select_order_", s.key_bytes()), p, of_lines, {ThreadsFor(p.ordered), 1, 1}));
    return steps;
  }
  AddRadixPasses(s.sort(), 8 * s.bytes, &buffers, &steps);
  p.elements.source = buffers.places[0];
  p.elements.extent = DivisorOf(s.first);
  steps.push_back(MakeLaunch("select_store", p, GridOf(s.lines * s.first)));
  return steps;
}

}  // namespace tessera::cuda
