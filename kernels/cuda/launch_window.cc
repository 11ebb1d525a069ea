// Convolutions and pooling.

#include <iterator>
#include <numeric>
#include <optional>
#include <variant>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cudnn_conv.h"
#include "kernels/cuda/steps.h"
#include "kernels/cuda/window_parameters.h"
#include "schemas/ops/gpu_kernels.h"
#include "schemas/ops/window_op.h"
#include "schemas/types/status_macros.h"

namespace tessera::cuda {
namespace {

// The dims of an op over windows, the last ones of its operands: at most three whose windows are more than single
// elements; the others are gone over as those of a map.
struct WindowLayout {
  std::array<WindowDim, 3> dims;
  std::vector<size_t> single;  // numbers of the other dims, of all
  int64_t positions = 1;       // of the three
};
// kernel_strides: of the weight; empty where there is none.
WindowLayout LayoutOf(const Windows& windows, absl::Span<const int64_t> kernel, const KernelInput& x,
                      const KernelCall& call, absl::Span<const int64_t> kernel_strides) {
  WindowLayout layout;
  const size_t first = call.output_extents.size() - windows.dims();
  const Strides strides = StridesOf(x);
  size_t place = layout.dims.size();
  for (size_t d = windows.dims(); d-- > 0;) {
    if (place == 0 || (windows.dims() > kMaxWindowDims && IsOfSingleElements(windows, kernel[d], d))) {
      layout.single.insert(layout.single.begin(), first + d);
      continue;
    }
    WindowDim& dim = layout.dims[--place];
    dim.extent = x.extents[first + d];
    dim.kernel = kernel[d];
    dim.positions = DivisorOf(call.output_extents[first + d]);
    dim.stride = windows.stride[d];
    dim.padding = windows.padding[d];
    dim.dilation = DivisorOf(windows.dilation[d]);
    dim.input_step = windows.dilation[d];
    dim.input_stride = strides[first + d];
    dim.output_stride = call.output_strides[first + d];
    dim.weight_stride = kernel_strides.empty() ? 0 : kernel_strides[d];
    layout.positions *= dim.positions.value;
  }
  return layout;
}

// The dims of windows of a gradient's call, of which `set` says all but what the call doesn't have.
template <typename Set>
void SetDims(const Windows& windows, ConvParameters* p, Set set) {
  for (size_t d = 0; d < windows.dims(); ++d) set(d, p->dims[std::size(p->dims) - windows.dims() + d]);
  p->size = p->nest.size * p->outputs.value;
  for (const WindowDim& dim : p->dims) p->size *= dim.positions.value;
}

// The gradient of x as a convolution of stride 1: of the result's gradient, whose elements lie a stride apart, with the
// weight from its last element to its first, and with channels and outputs the other way round.
ConvParameters ParametersOfX(const ConvGradientOp& op, const KernelCall& call, const Workspace& workspace) {
  const KernelInput &gradient = call.inputs[0], &weight = call.inputs[1];
  const Strides strides = StridesOf(gradient), weights = StridesOf(weight);
  const int64_t outputs = weight.extents[0] / op.groups;
  ConvParameters p;
  p.input = DataOf(gradient, workspace);
  p.output = call.output;
  p.outputs = DivisorOf(weight.extents[1]);
  p.channels = outputs;
  p.input_channel = strides[1];
  p.output_channel = call.output_strides[1];
  p.weight_output = weights[1];
  p.weight_channel = weights[0];
  p.nest =
      MakeNest<3>({gradient.extents[0], op.groups}, {{strides[0], outputs * strides[1]},
                                                     {call.output_strides[0], p.outputs.value * call.output_strides[1]},
                                                     {0, outputs * weights[0]}});
  int64_t last = 0;
  SetDims(op.windows, &p, [&](size_t d, WindowDim& dim) {
    const int64_t stride = op.windows.stride[d], dilation = op.windows.dilation[d], kernel = weight.extents[d + 2];
    const int64_t windows = gradient.extents[d + 2], common = std::gcd(stride, dilation);
    dim.extent = windows == 0 ? 0 : (windows - 1) * stride + 1;
    dim.kernel = kernel;
    dim.positions = DivisorOf(call.output_extents[d + 2]);
    dim.padding = dilation * (kernel - 1) - op.windows.padding[d];
    dim.dilation = DivisorOf(dilation);
    dim.apart = DivisorOf(stride);
    dim.step = DivisorOf(stride / common);
    dim.input_step = dilation / common;
    dim.input_stride = strides[d + 2];
    dim.output_stride = call.output_strides[d + 2];
    dim.weight_stride = -weights[d + 2];
    last += (kernel - 1) * weights[d + 2];
  });
  p.weight = static_cast<const std::byte*>(DataOf(weight, workspace)) + last * SizeBytes(weight.dtype);
  return p;
}

// The gradient of the weight as a convolution of x with the gradient: sums are over the batch and the windows, whose
// stride is the dilation there.
ConvParameters ParametersOfWeight(const ConvGradientOp& op, const KernelCall& call, const Workspace& workspace) {
  const KernelInput &gradient = call.inputs[0], &x = call.inputs[1];
  const Strides strides = StridesOf(x), gradients = StridesOf(gradient);
  const int64_t outputs = call.output_extents[0] / op.groups, channels = call.output_extents[1];
  ConvParameters p;
  p.input = DataOf(x, workspace);
  p.weight = DataOf(gradient, workspace);
  p.output = call.output;
  p.outputs = DivisorOf(outputs);
  p.channels = x.extents[0];
  p.input_channel = strides[0];
  p.output_channel = call.output_strides[0];
  p.weight_output = gradients[1];
  p.weight_channel = gradients[0];
  p.nest = MakeNest<3>({channels, op.groups}, {{strides[1], channels * strides[1]},
                                               {call.output_strides[1], outputs * call.output_strides[0]},
                                               {0, outputs * gradients[1]}});
  SetDims(op.windows, &p, [&](size_t d, WindowDim& dim) {
    dim.extent = x.extents[d + 2];
    dim.kernel = gradient.extents[d + 2];
    dim.positions = DivisorOf(call.output_extents[d + 2]);
    dim.stride = op.windows.dilation[d];
    dim.padding = op.windows.padding[d];
    dim.dilation = DivisorOf(op.windows.stride[d]);
    dim.input_step = op.windows.stride[d];
    dim.input_stride = strides[d + 2];
    dim.output_stride = call.output_strides[d + 2];
    dim.weight_stride = gradients[d + 2];
  });
  return p;
}

// The image's kernel, and the library before it where it takes the call. Integers wrap: those of a size have one
// product.
Steps ByLibraryOr(const ConvParameters& p, std::optional<DnnCall> by_library, const KernelCall& call) {
  const std::string name = Kind(call.output_dtype) == DTypeKind::kFloat
                               ? NameOf(call.output_dtype)
                               : absl::StrCat(8 * SizeBytes(call.output_dtype));
  Launch launch = MakeLaunch(absl::StrCat("conv_", name), p, GridOf(p.size));
  if (!by_library.has_value()) return Steps{std::move(launch)};
  DnnProblem problem{.call = *std::move(by_library), .max_workspace_bytes = kMaxConvolutionWorkspaceBytes};
  problem.otherwise.push_back(std::move(launch));
  return Steps{std::move(problem)};
}

absl::Status CheckOutput(const char* kernel, const absl::StatusOr<Shape>& output, const KernelCall& call) {
  TESSERA_RETURN_IF_ERROR(output.status());
  bool fits = *output == call.output_extents;
  for (const KernelInput& input : call.inputs) fits = fits && input.dtype == call.output_dtype;
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(kernel, ": ", ToText(*output), " to ", ToText(call.output_extents)));
}

}  // namespace

absl::StatusOr<Steps> LaunchConv(const ConvOp& op, const KernelCall& call, const Workspace& workspace) {
  TESSERA_RETURN_IF_ERROR(
      ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size())));
  const KernelInput &x = call.inputs[0], &weight = call.inputs[1];
  TESSERA_RETURN_IF_ERROR(CheckOutput("conv", ConvOutput(op, x.extents, weight.extents), call));
  TESSERA_RETURN_IF_ERROR(HasGpuKernel(op, call.output_dtype));
  if (NumElements(call.output_extents) == 0) return Steps();
  const Strides strides = StridesOf(x), weights = StridesOf(weight);
  const WindowLayout layout = LayoutOf(op.windows, absl::MakeConstSpan(weight.extents).subspan(2), x, call,
                                       absl::MakeConstSpan(weights).subspan(2));
  ConvParameters p;
  p.input = DataOf(x, workspace);
  p.weight = DataOf(weight, workspace);
  p.output = call.output;
  p.outputs = DivisorOf(weight.extents[0] / op.groups);
  p.channels = weight.extents[1];
  p.input_channel = strides[1];
  p.output_channel = call.output_strides[1];
  p.weight_output = weights[0];
  p.weight_channel = weights[1];
  std::copy(layout.dims.begin(), layout.dims.end(), p.dims);
  // Images, groups, and dims of single elements.
  Shape extents = {x.extents[0], op.groups};
  Strides of_input = {strides[0], p.channels * strides[1]};
  Strides of_output = {call.output_strides[0], p.outputs.value * call.output_strides[1]};
  Strides of_weight = {0, p.outputs.value * weights[0]};
  for (const size_t d : layout.single) {
    extents.push_back(call.output_extents[d]);
    of_input.push_back(strides[d]);
    of_output.push_back(call.output_strides[d]);
    of_weight.push_back(0);
  }
  p.nest = MakeNest<3>(extents, {of_input, of_output, of_weight});
  p.size = p.nest.size * p.outputs.value * layout.positions;
  return ByLibraryOr(p, ConvolutionByDnn(op, call), call);
}

absl::StatusOr<Steps> LaunchConvGradient(const ConvGradientOp& op, const KernelCall& call, const Workspace& workspace) {
  TESSERA_RETURN_IF_ERROR(
      ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size())));
  const KernelInput &gradient = call.inputs[0], &other = call.inputs[1];
  TESSERA_RETURN_IF_ERROR(CheckConvGradientOf(op, gradient.extents, other.extents, call.output_extents));
  for (const KernelInput& input : call.inputs) {
    if (input.dtype == call.output_dtype) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("conv_gradient: ", NameOf(input.dtype), " to ", NameOf(call.output_dtype)));
  }
  TESSERA_RETURN_IF_ERROR(HasGpuKernel(op, call.output_dtype));
  if (NumElements(call.output_extents) == 0) return Steps();
  const ConvParameters p =
      op.of == ConvOperand::kX ? ParametersOfX(op, call, workspace) : ParametersOfWeight(op, call, workspace);
  return ByLibraryOr(p, ConvGradientByDnn(op, call), call);
}

absl::StatusOr<Steps> LaunchPool(const PoolOp& op, const KernelCall& call, const Workspace& workspace) {
  TESSERA_RETURN_IF_ERROR(
      ValidateLocalOp(op, static_cast<int>(call.inputs.size()), static_cast<int>(call.scalars.size())));
  const KernelInput& x = call.inputs[0];
  TESSERA_RETURN_IF_ERROR(CheckOutput("pool", PoolOutput(op, x.extents), call));
  TESSERA_RETURN_IF_ERROR(HasGpuKernel(op, call.output_dtype));
  if (NumElements(call.output_extents) == 0) return Steps();
  const WindowLayout layout = LayoutOf(op.windows, op.kernel, x, call, {});
  PoolParameters p;
  p.input = DataOf(x, workspace);
  p.output = call.output;
  p.op = op.kind == PoolKind::kMax ? kCodeMax : kCodeAvg;
  p.counts_padding = op.divisor == PoolDivisor::kWithPadding ? 1 : 0;
  p.identity = IdentityOf(op.kind == PoolKind::kMax ? ReduceOp::kMax : ReduceOp::kSum, call.output_dtype);
  std::copy(layout.dims.begin(), layout.dims.end(), p.dims);
  Shape extents;
  Strides of_input, of_output;
  const Strides strides = StridesOf(x);
  const auto add = [&](size_t d) {
    extents.push_back(call.output_extents[d]);
    of_input.push_back(strides[d]);
    of_output.push_back(call.output_strides[d]);
  };
  for (size_t d = 0; d < call.output_extents.size() - op.windows.dims(); ++d) add(d);
  for (const size_t d : layout.single) add(d);
  p.nest = MakeNest<2>(extents, {of_input, of_output});
  p.size = p.nest.size * layout.positions;
  return Steps{MakeLaunch(absl::StrCat("pool_", NameOf(call.output_dtype)), p, GridOf(p.size))};
}

}  // namespace tessera::cuda
