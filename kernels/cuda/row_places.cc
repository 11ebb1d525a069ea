#include "kernels/cuda/row_places.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "kernels/kernel.h"

namespace tessera::cuda {
namespace {

// The stride of dims [first, last) as one; 0 where none of them has more than one element.
std::optional<int64_t> StrideOf(const Shape& extents, const Strides& strides, size_t first, size_t last) {
  std::optional<int64_t> stride;
  int64_t elements = 1;
  for (size_t d = last; d-- > first;) {
    if (extents[d] == 1) continue;
    if (!stride.has_value()) stride = strides[d];
    if (strides[d] != *stride * elements) return std::nullopt;
    elements *= extents[d];
  }
  return stride.value_or(0);
}

struct Range {
  int64_t first = 0, last = 0;  // addresses
  bool IsApart(const Range& other) const { return last <= other.first || other.last <= first; }
  void Extend(int64_t shift) {
    first += std::min<int64_t>(shift, 0);
    last += std::max<int64_t>(shift, 0);
  }
};
Range RowRange(const RowPlaces& places, const RowExtents& extents) {
  const auto first = static_cast<int64_t>(places.address);
  Range range = {first, first + places.element_bytes};
  if (places.is_wide) range.Extend(places.element * (extents.count - 1) * places.element_bytes);
  return range;
}
Range WholeRange(const RowPlaces& places, const RowExtents& extents) {
  Range range = RowRange(places, extents);
  range.Extend(places.row * (extents.inner - 1) * places.element_bytes);
  range.Extend(places.outer * (extents.outer - 1) * places.element_bytes);
  return range;
}

}  // namespace

RowExtents ExtentsOf(const Shape& extents, const RowDims& dims) {
  const auto all = absl::MakeConstSpan(extents);
  const size_t end = dims.end_of(extents);
  RowExtents of = {.count = NumElements(all.subspan(dims.lead, end - dims.lead))};
  // Rows at one stride are inner ones.
  (dims.behind == 0 ? of.inner : of.outer) = NumElements(all.subspan(0, dims.lead));
  if (dims.behind > 0) of.inner = NumElements(all.subspan(end));
  return of;
}

std::optional<RowStrides> StridesOf(const Shape& extents, const Strides& strides, const RowDims& dims) {
  const size_t end = dims.end_of(extents);
  const std::optional<int64_t> leading = StrideOf(extents, strides, 0, dims.lead);
  const std::optional<int64_t> element = StrideOf(extents, strides, dims.lead, end);
  const std::optional<int64_t> behind = StrideOf(extents, strides, end, extents.size());
  if (!leading.has_value() || !element.has_value() || !behind.has_value()) return std::nullopt;
  if (dims.behind == 0) return RowStrides{.row = *leading, .element = *element};
  return RowStrides{.outer = *leading, .row = *behind, .element = *element};
}

bool AreApart(const RowPlaces& a, const RowPlaces& b, const RowExtents& extents) {
  if (WholeRange(a, extents).IsApart(WholeRange(b, extents))) return true;
  if (extents.outer > 1) return false;
  // Rows may lie between rows.
  const int64_t stride = a.row * a.element_bytes;
  const Range of_a = RowRange(a, extents), of_b = RowRange(b, extents);
  const int64_t span = std::max(of_a.last, of_b.last) - std::min(of_a.first, of_b.first);
  return stride == b.row * b.element_bytes && span <= std::abs(stride) && of_a.IsApart(of_b);
}

bool AreSame(const RowPlaces& a, const RowPlaces& b) {
  return a.address == b.address && a.outer == b.outer && a.row == b.row && a.element == b.element &&
         a.element_bytes == b.element_bytes && a.is_wide == b.is_wide;
}

bool IsSpread(const RowPlaces& places, const RowExtents& extents) {
  std::array<std::pair<int64_t, int64_t>, 3> loops = {{{std::abs(places.outer), extents.outer},
                                                       {std::abs(places.row), extents.inner},
                                                       {std::abs(places.element), places.is_wide ? extents.count : 1}}};
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
