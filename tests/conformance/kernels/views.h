#pragma once

// Views of memory, with elements before, between and behind theirs.

#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/conformance/kernels/strided_array.h"

namespace tessera::testing {

// A view of memory whose first element's address 16 divides.
struct View {
  Strides strides;
  int64_t start = 0;  // elements before the first one
};
inline std::string TextOf(const View& view) { return ToText(view.strides) + "+" + std::to_string(view.start); }

// Behind its guards an array begins 8 elements after such an address.
inline constexpr int64_t kAligned = 8, kBeyond = 20;

class Memory {
 public:
  Memory(DType dtype, const Shape& extents, const View& view)
      : view_(view), first_(kAligned + view.start), array_(dtype, {first_ + SizeOf(extents, view)}, Layout::kRowMajor) {
    for (size_t d = 0; d < extents.size(); ++d) {
      if (view.strides[d] < 0) first_ -= (extents[d] - 1) * view.strides[d];
    }
  }
  StridedArray& array() { return array_; }
  void* data() { return static_cast<std::byte*>(array_.data()) + first_ * SizeBytes(array_.dtype()); }
  int64_t PlaceOf(const std::vector<int64_t>& index) const {
    int64_t place = first_;
    for (size_t d = 0; d < index.size(); ++d) place += index[d] * view_.strides[d];
    return place;
  }

 private:
  static int64_t SizeOf(const Shape& extents, const View& view) {
    int64_t size = kBeyond;
    for (size_t d = 0; d < extents.size(); ++d) size += (extents[d] - 1) * std::abs(view.strides[d]);
    return size;
  }
  const View view_;
  int64_t first_;
  StridedArray array_;
};

inline std::vector<int64_t> IndexOf(int64_t flat, const Shape& extents) {
  std::vector<int64_t> index(extents.size());
  for (size_t d = extents.size(); d-- > 0; flat /= extents[d]) index[d] = flat % extents[d];
  return index;
}

}  // namespace tessera::testing
