#include "kernels/cuda/row_places.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>
#include <vector>

#include "kernels/kernel.h"

namespace tessera::cuda {
namespace {

struct Range {
  int64_t first = 0, last = 0;  // addresses
  bool IsApart(const Range& other) const { return last <= other.first || other.last <= first; }
  void Extend(int64_t shift) {
    first += std::min<int64_t>(shift, 0);
    last += std::max<int64_t>(shift, 0);
  }
};
// The number of rows that a loop goes over.
int64_t RowsOfLoop(const RowLoops& loops, size_t loop, const RowExtents& extents) {
  return (loop + 1 < loops.size() ? loops[loop + 1].rows : extents.rows) / loops[loop].rows;
}

Range RowRange(const RowPlaces& places, const RowExtents& extents) {
  const auto first = static_cast<int64_t>(places.address);
  Range range = {first, first + places.element_bytes};
  if (places.is_wide) range.Extend(places.element * (extents.count - 1) * places.element_bytes);
  return range;
}
Range WholeRange(const RowPlaces& places, const RowExtents& extents) {
  Range range = RowRange(places, extents);
  for (size_t l = 0; l < places.loops.size(); ++l) {
    range.Extend(places.loops[l].stride * (RowsOfLoop(places.loops, l, extents) - 1) * places.element_bytes);
  }
  return range;
}

// The loops of the dims [first, last), the last of them first; `elements` are those of the loops that are there.
void AddLoops(const Shape& extents, const Strides& strides, size_t first, size_t last, int64_t& elements,
              RowLoops& loops) {
  for (size_t d = last; d-- > first;) {
    if (extents[d] == 1) continue;
    const bool goes_on = !loops.empty() && strides[d] == loops.back().stride * (elements / loops.back().rows);
    if (!goes_on) loops.push_back({elements, strides[d]});
    elements *= extents[d];
  }
}

}  // namespace

int64_t RowPlaces::StrideOf(int64_t rows) const {
  const auto behind = std::find_if(loops.begin(), loops.end(), [&](const RowLoop& loop) { return loop.rows > rows; });
  const RowLoop& loop = *std::prev(behind);
  return loop.stride * (rows / loop.rows);
}

RowExtents ExtentsOf(const Shape& extents, const RowDims& dims) {
  const auto all = absl::MakeConstSpan(extents);
  const size_t end = dims.end_of(extents);
  const int64_t lead = NumElements(all.subspan(0, dims.lead)), behind = NumElements(all.subspan(end));
  return {.rows = lead * behind,
          .count = NumElements(all.subspan(dims.lead, end - dims.lead)),
          .inner = dims.behind > 0 ? behind : lead};
}

std::optional<RowStrides> StridesOf(const Shape& extents, const Strides& strides, const RowDims& dims) {
  const size_t end = dims.end_of(extents);
  RowLoops rows, elements;
  int64_t row_count = 1, element_count = 1;
  AddLoops(extents, strides, dims.lead, end, element_count, elements);
  if (elements.size() > 1) return std::nullopt;
  AddLoops(extents, strides, end, extents.size(), row_count, rows);
  AddLoops(extents, strides, 0, dims.lead, row_count, rows);
  if (rows.empty()) rows.push_back({});
  return RowStrides{.loops = rows, .element = elements.empty() ? 0 : elements[0].stride};
}

bool AreApart(const RowPlaces& a, const RowPlaces& b, const RowExtents& extents) {
  if (WholeRange(a, extents).IsApart(WholeRange(b, extents))) return true;
  if (a.loops.size() > 1 || b.loops.size() > 1) return false;
  // Rows may lie between rows.
  const int64_t stride = a.loops[0].stride * a.element_bytes;
  const Range of_a = RowRange(a, extents), of_b = RowRange(b, extents);
  const int64_t span = std::max(of_a.last, of_b.last) - std::min(of_a.first, of_b.first);
  return stride == b.loops[0].stride * b.element_bytes && span <= std::abs(stride) && of_a.IsApart(of_b);
}

bool AreSame(const RowPlaces& a, const RowPlaces& b) {
  return a.address == b.address && a.loops == b.loops && a.element == b.element && a.element_bytes == b.element_bytes &&
         a.is_wide == b.is_wide;
}

bool IsSpread(const RowPlaces& places, const RowExtents& extents) {
  std::vector<std::pair<int64_t, int64_t>> loops = {{std::abs(places.element), places.is_wide ? extents.count : 1}};
  for (size_t l = 0; l < places.loops.size(); ++l) {
    loops.push_back({std::abs(places.loops[l].stride), RowsOfLoop(places.loops, l, extents)});
  }
  std::sort(loops.begin(), loops.end());
  // Each step of a loop is behind all of the loops inside of it.
  int64_t last = 0;
  for (const auto& [stride, extent] : loops) {
    if (extent == 1) continue;
    if (stride <= last) return false;
    last += stride * (extent - 1);
  }
  return true;
}

}  // namespace tessera::cuda
