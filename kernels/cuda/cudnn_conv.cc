#include "kernels/cuda/cudnn_conv.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/steps.h"

namespace tessera::cuda {
namespace {

constexpr size_t kChannelDims = 2;  // beside those of windows

std::optional<DnnType> TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32: return DnnType::kF32;
    case DType::kF16: return DnnType::kF16;
    case DType::kBF16: return DnnType::kBF16;
    default: return std::nullopt;
  }
}

// With a dim of windows of one element before the only one.
template <typename Numbers>
std::vector<int64_t> Widened(const Numbers& numbers, size_t channel_dims, int64_t element) {
  std::vector<int64_t> wide(numbers.begin(), numbers.end());
  if (wide.size() - channel_dims == 1) wide.insert(wide.begin() + static_cast<std::ptrdiff_t>(channel_dims), element);
  return wide;
}

std::optional<DnnTensor> TensorOf(DnnType type, const Shape& extents, const Strides& strides, const void* data) {
  DnnTensor tensor{.type = type,
                   .place = DnnPlace::kMemory,
                   .extents = Widened(extents, kChannelDims, 1),
                   .strides = Widened(strides, kChannelDims, 1)};
  // Nothing is read by the stride of one element. One as in a dense tensor doesn't hide how the others lie.
  int64_t most = 1;
  for (size_t d = 0; d < tensor.extents.size(); ++d) {
    if (tensor.extents[d] == 1) continue;
    if (tensor.strides[d] <= 0) return std::nullopt;
    most = std::max(most, tensor.extents[d] * tensor.strides[d]);
  }
  const bool is_channels_last = tensor.extents[1] > 1 && tensor.strides[1] == 1;
  const size_t last = tensor.extents.size() - 1;
  for (size_t d = tensor.extents.size(); d-- > 0;) {
    if (tensor.extents[d] > 1) continue;
    if (d == 0) {
      tensor.strides[d] = most;
    } else if (d == last) {
      tensor.strides[d] = is_channels_last ? tensor.extents[1] : 1;
    } else {
      tensor.strides[d] = tensor.extents[d + 1] * tensor.strides[d + 1];
    }
  }
  if (AddressOf(data) % static_cast<uint64_t>(kDnnAlignment) != 0) return std::nullopt;
  return tensor;
}

}  // namespace

std::optional<DnnCall> ConvolutionByDnn(const ConvOp& op, const KernelCall& call) {
  const std::optional<DnnType> type = TypeOf(call.output_dtype);
  const KernelInput &x = call.inputs[0], &weight = call.inputs[1];
  if (!type.has_value() || op.windows.dims() == 0 || op.windows.dims() > kMaxWindowDims) return std::nullopt;
  if (x.is_zero || weight.is_zero) return std::nullopt;
  std::optional<DnnTensor> in = TensorOf(*type, x.extents, x.strides, x.data);
  std::optional<DnnTensor> by = TensorOf(*type, weight.extents, weight.strides, weight.data);
  std::optional<DnnTensor> out = TensorOf(*type, call.output_extents, call.output_strides, call.output);
  if (!in.has_value() || !by.has_value() || !out.has_value()) return std::nullopt;
  in->cut_dims = out->cut_dims = 1;
  DnnCall made;
  made.graph.tensors = {*std::move(in), *std::move(by), *std::move(out)};
  made.graph.permits_tensor_cores = *type != DnnType::kF32;
  made.graph.operations.push_back({.kind = DnnKind::kConvolution,
                                   .x = 0,
                                   .b = 1,
                                   .y = 2,
                                   .stride = Widened(op.windows.stride, 0, 1),
                                   .padding = Widened(op.windows.padding, 0, 0),
                                   .dilation = Widened(op.windows.dilation, 0, 1)});
  made.addresses = {AddressOf(x.data), AddressOf(weight.data), AddressOf(call.output)};
  made.numbers.assign(3, 0);
  const int64_t outputs = weight.extents[0] == 0 ? 1 : weight.extents[0];
  made.multiplications = static_cast<double>(NumElements(call.output_extents)) *
                         static_cast<double>(NumElements(weight.extents) / outputs);
  return made;
}

}  // namespace tessera::cuda
