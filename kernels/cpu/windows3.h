#pragma once

// Windows of up to three dims as windows of three: dims of one element are in front where there are fewer.

#include <array>
#include <cstdint>

#include "schemas/ops/window_op.h"
#include "schemas/types/shape.h"

namespace tessera::cpu {

struct Window3 {
  std::array<int64_t, 3> stride = {1, 1, 1}, padding = {0, 0, 0}, dilation = {1, 1, 1};
};
inline Window3 ToThree(const Windows& windows) {
  Window3 w;
  const size_t missing = 3 - windows.dims();
  for (size_t d = 0; d < windows.dims(); ++d) {
    w.stride[missing + d] = windows.stride[d];
    w.padding[missing + d] = windows.padding[d];
    w.dilation[missing + d] = windows.dilation[d];
  }
  return w;
}

// The last `dims` of some numbers, behind `otherwise` where they are fewer than three.
inline std::array<int64_t, 3> LastThree(absl::Span<const int64_t> numbers, size_t dims, int64_t otherwise) {
  std::array<int64_t, 3> three = {otherwise, otherwise, otherwise};
  for (size_t d = 0; d < dims; ++d) three[3 - dims + d] = numbers[numbers.size() - dims + d];
  return three;
}

}  // namespace tessera::cpu
