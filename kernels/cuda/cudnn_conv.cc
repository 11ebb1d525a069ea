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

// Tensors 0 and 1, the inputs, and 2, the output; nothing where one isn't taken. `products`: of the convolution.
std::optional<DnnCall> CallOf(DnnKind kind, const Windows& windows, const KernelCall& call, double products) {
  const std::optional<DnnType> type = TypeOf(call.output_dtype);
  if (!type.has_value() || windows.dims() == 0 || windows.dims() > kMaxWindowDims) return std::nullopt;
  DnnCall made;
  const auto add = [&](const Shape& extents, const Strides& strides, const void* data) {
    std::optional<DnnTensor> tensor = TensorOf(*type, extents, strides, data);
    if (!tensor.has_value()) return false;
    made.graph.tensors.push_back(*std::move(tensor));
    made.addresses.push_back(AddressOf(data));
    return true;
  };
  for (const KernelInput& input : call.inputs) {
    if (input.is_zero || NumElements(input.extents) == 0) return std::nullopt;
    if (!add(input.extents, input.strides, input.data)) return std::nullopt;
  }
  if (!add(call.output_extents, call.output_strides, call.output)) return std::nullopt;
  made.graph.permits_tensor_cores = *type != DnnType::kF32;
  made.graph.operations.push_back({.kind = kind,
                                   .x = 0,
                                   .b = 1,
                                   .y = 2,
                                   .stride = Widened(windows.stride, 0, 1),
                                   .padding = Widened(windows.padding, 0, 0),
                                   .dilation = Widened(windows.dilation, 0, 1)});
  made.numbers.assign(3, 0);
  made.multiplications = products;
  return made;
}

// Each element of a result is of the products of a window.
double ProductsOf(const Shape& result, const Shape& weight) {
  const int64_t outputs = std::max<int64_t>(weight[0], 1);
  return static_cast<double>(NumElements(result)) * static_cast<double>(NumElements(weight) / outputs);
}

}  // namespace

std::optional<DnnCall> ConvolutionByDnn(const ConvOp& op, const KernelCall& call) {
  const Shape& weight = call.inputs[1].extents;
  std::optional<DnnCall> made =
      CallOf(DnnKind::kConvolution, op.windows, call, ProductsOf(call.output_extents, weight));
  if (made.has_value()) made->graph.cuts = {{call.output_extents[0], {{0, 0}, {2, 0}}}};
  return made;
}

std::optional<DnnCall> ConvGradientByDnn(const ConvGradientOp& op, const KernelCall& call) {
  const bool is_of_x = op.of == ConvOperand::kX;
  const Shape &gradient = call.inputs[0].extents, &other = call.inputs[1].extents;
  const Shape &x = is_of_x ? call.output_extents : other, &weight = is_of_x ? other : call.output_extents;
  const absl::StatusOr<Shape> result = ConvOutput({op.windows, op.groups}, x, weight);
  if (!result.ok() || *result != gradient) return std::nullopt;
  std::optional<DnnCall> made = CallOf(is_of_x ? DnnKind::kConvolutionX : DnnKind::kConvolutionWeight, op.windows, call,
                                       ProductsOf(gradient, weight));
  if (!made.has_value()) return std::nullopt;
  if (is_of_x) {
    made->graph.cuts = {{x[0], {{0, 0}, {2, 0}}}};
  } else if (op.groups > 1) {
    made->graph.cuts = {{op.groups, {{0, 1}, {1, 1}, {2, 0}}}};
  } else {
    made->graph.cuts = {{weight[0], {{0, 1}, {2, 0}}}, {weight[1], {{1, 1}, {2, 1}}}};
  }
  return made;
}

}  // namespace tessera::cuda
