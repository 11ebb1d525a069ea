#pragma once

// Windows of up to three dims as windows of three: dims of one element are in front where there are fewer. Dims beyond
// three, in which windows are single elements, are gone over one by one.

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/kernel.h"
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

// The strides of a batch, channels and `dims` more.
inline std::array<int64_t, 5> FiveStrides(absl::Span<const int64_t> strides, size_t dims) {
  const std::array<int64_t, 3> last = LastThree(strides, dims, 0);
  return {strides[0], strides[1], last[0], last[1], last[2]};
}

// Runs `run(op, call)` for each position of the first dim in which windows are single elements, without that dim. The
// inputs and the output have the windows' dims last.
template <typename Op, typename Run>
absl::Status RunEachOfSingleElements(const Op& op, absl::Span<const int64_t> kernel, const KernelCall& call,
                                     const Run& run) {
  const size_t dims = op.windows.dims();
  size_t dim = 0;
  while (dim + 1 < dims && !IsOfSingleElements(op.windows, kernel[dim], dim)) ++dim;
  Op inner = op;
  const auto erase = [&](auto& numbers, size_t end) {
    numbers.erase(numbers.begin() + static_cast<ptrdiff_t>(end - dims + dim));
  };
  erase(inner.windows.stride, dims);
  erase(inner.windows.padding, dims);
  erase(inner.windows.dilation, dims);
  if constexpr (requires { inner.kernel; }) erase(inner.kernel, dims);
  std::vector<KernelInput> inputs(call.inputs.begin(), call.inputs.end());
  KernelCall one = call;
  const size_t rank = call.output_extents.size();
  const int64_t positions = call.output_extents[rank - dims + dim];
  const int64_t from = inputs[0].is_zero ? 0 : inputs[0].strides[rank - dims + dim] * SizeBytes(inputs[0].dtype);
  const int64_t to = call.output_strides[rank - dims + dim] * SizeBytes(call.output_dtype);
  for (KernelInput& input : inputs) {
    erase(input.extents, input.extents.size());
    if (!input.is_zero) erase(input.strides, input.strides.size());
  }
  erase(one.output_extents, rank);
  erase(one.output_strides, rank);
  for (int64_t i = 0; i < positions; ++i) {
    one.inputs = inputs;
    one.output = static_cast<char*>(call.output) + i * to;
    if (absl::Status s = run(inner, one); !s.ok()) return s;
    if (!inputs[0].is_zero) inputs[0].data = static_cast<const char*>(inputs[0].data) + from;
  }
  return absl::OkStatus();
}

}  // namespace tessera::cpu
