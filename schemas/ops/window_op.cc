#include "schemas/ops/window_op.h"

#include <string_view>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/text.h"

namespace tessera {
namespace {

absl::Status CheckNumbers(std::string_view name, const std::vector<int64_t>& numbers, int64_t least, size_t count) {
  if (numbers.size() != count) {
    return absl::InvalidArgumentError(StrCat(name, " has ", numbers.size(), " numbers for ", count, " dims"));
  }
  for (const int64_t number : numbers) {
    if (number < least || number > kMaxWindowNumber) {
      return absl::InvalidArgumentError(StrCat(name, " is ", number, "; from ", least, " to ", kMaxWindowNumber));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWindows(const Windows& windows) {
  if (windows.dims() < 1 || windows.dims() > 2 * kMaxWindowDims) {
    return absl::InvalidArgumentError(StrCat("windows of ", windows.dims(), " dims; 1 to ", kMaxWindowDims));
  }
  TESSERA_RETURN_IF_ERROR(CheckNumbers("stride", windows.stride, 1, windows.dims()));
  TESSERA_RETURN_IF_ERROR(CheckNumbers("padding", windows.padding, 0, windows.dims()));
  return CheckNumbers("dilation", windows.dilation, 1, windows.dims());
}

absl::Status CheckKernel(const Windows& windows, absl::Span<const int64_t> kernel) {
  size_t dims = 0;
  for (size_t d = 0; d < windows.dims(); ++d) dims += IsOfSingleElements(windows, kernel[d], d) ? 0 : 1;
  if (dims <= kMaxWindowDims) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("windows of ", dims, " dims; 1 to ", kMaxWindowDims));
}

std::string List(std::string_view name, const std::vector<int64_t>& numbers) {
  return StrCat(name, "=", ToText(absl::MakeConstSpan(numbers)));
}
std::string WindowsText(const Windows& windows) {
  return StrCat(List("stride", windows.stride), "; ", List("padding", windows.padding), "; ",
                List("dilation", windows.dilation));
}

absl::StatusOr<std::vector<int64_t>> ParseList(Scanner& scanner, std::string_view name) {
  TESSERA_RETURN_IF_ERROR(scanner.Take(name));
  TESSERA_RETURN_IF_ERROR(scanner.Take("="));
  TESSERA_ASSIGN_OR_RETURN(const Shape numbers, ParseShape(scanner));
  return std::vector<int64_t>(numbers.begin(), numbers.end());
}
absl::StatusOr<Windows> ParseWindows(Scanner& scanner) {
  Windows windows;
  TESSERA_ASSIGN_OR_RETURN(windows.stride, ParseList(scanner, "stride"));
  TESSERA_RETURN_IF_ERROR(scanner.Take(";"));
  TESSERA_ASSIGN_OR_RETURN(windows.padding, ParseList(scanner, "padding"));
  TESSERA_RETURN_IF_ERROR(scanner.Take(";"));
  TESSERA_ASSIGN_OR_RETURN(windows.dilation, ParseList(scanner, "dilation"));
  return windows;
}

}  // namespace

bool IsOfSingleElements(const Windows& windows, int64_t kernel, size_t dim) {
  return kernel == 1 && windows.stride[dim] == 1 && windows.padding[dim] == 0;
}

absl::StatusOr<int64_t> WindowCount(int64_t extent, int64_t kernel, const Windows& windows, size_t dim,
                                    bool ceil_mode) {
  const int64_t stride = windows.stride[dim], padding = windows.padding[dim];
  const int64_t reach = windows.dilation[dim] * (kernel - 1) + 1;  // from a window's first element to behind its last
  const int64_t padded = extent + 2 * padding;
  if (extent > INT64_MAX / 4 || kernel < 1 || kernel > kMaxWindowNumber) {
    return absl::InvalidArgumentError(StrCat("windows of ", kernel, " in an extent of ", extent));
  }
  if (padded < reach) {
    return absl::InvalidArgumentError(
        StrCat("a window of ", reach, " doesn't fit in ", extent, " and padding of ", padding, " on each side"));
  }
  const int64_t rest = padded - reach;
  int64_t count = (ceil_mode ? (rest + stride - 1) / stride : rest / stride) + 1;
  if (ceil_mode && (count - 1) * stride >= extent + padding) --count;
  return count;
}

absl::StatusOr<Shape> ConvOutput(const ConvOp& op, const Shape& x, const Shape& weight) {
  const size_t dims = op.windows.dims();
  if (x.size() != dims + 2 || weight.size() != dims + 2) {
    return absl::InvalidArgumentError(StrCat("x and weight need ", dims + 2, " dims"));
  }
  if (op.groups < 1 || x[1] % op.groups != 0 || weight[0] % op.groups != 0) {
    return absl::InvalidArgumentError(StrCat("channels are not in ", op.groups, " equal groups"));
  }
  if (weight[1] != x[1] / op.groups) {
    return absl::InvalidArgumentError(StrCat("the weight has ", weight[1], " input channels, not ", x[1] / op.groups));
  }
  TESSERA_RETURN_IF_ERROR(CheckKernel(op.windows, absl::MakeConstSpan(weight).subspan(2)));
  Shape output = {x[0], weight[0]};
  for (size_t d = 0; d < dims; ++d) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t count, WindowCount(x[d + 2], weight[d + 2], op.windows, d, false));
    output.push_back(count);
  }
  return output;
}

absl::Status CheckConvGradient(const ConvGradientOp& op, const Shape& gradient, const Shape& x, const Shape& weight) {
  TESSERA_ASSIGN_OR_RETURN(const Shape whole, ConvOutput({op.windows, op.groups}, x, weight));
  bool fits = gradient.size() == whole.size() && gradient[0] == whole[0] && gradient[1] == whole[1];
  for (size_t d = 2; fits && d < whole.size(); ++d) fits = gradient[d] <= whole[d];
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("the gradient is ", ToText(absl::MakeConstSpan(gradient)),
                                           ", and the convolution's result ", ToText(absl::MakeConstSpan(whole))));
}

absl::Status CheckConvGradientOf(const ConvGradientOp& op, const Shape& gradient, const Shape& other,
                                 const Shape& output) {
  return op.of == ConvOperand::kX ? CheckConvGradient(op, gradient, output, other)
                                  : CheckConvGradient(op, gradient, other, output);
}

absl::StatusOr<Shape> PoolOutput(const PoolOp& op, const Shape& x) {
  const size_t dims = op.windows.dims();
  if (x.size() < dims) return absl::InvalidArgumentError(StrCat("x needs at least ", dims, " dims"));
  TESSERA_RETURN_IF_ERROR(CheckKernel(op.windows, op.kernel));
  Shape output = x;
  for (size_t d = 0; d < dims; ++d) {
    int64_t& extent = output[x.size() - dims + d];
    if (extent < 1) return absl::InvalidArgumentError("x has no elements to go over");
    TESSERA_ASSIGN_OR_RETURN(extent, WindowCount(extent, op.kernel[d], op.windows, d, op.ceil_mode));
  }
  return output;
}

std::string ToText(const ConvOp& op) { return StrCat("conv(", WindowsText(op.windows), "; groups=", op.groups, ")"); }

std::string ToText(const ConvGradientOp& op) {
  return StrCat("conv_gradient(", op.of == ConvOperand::kX ? "x" : "weight", "; ", WindowsText(op.windows),
                "; groups=", op.groups, ")");
}

std::string ToText(const PoolOp& op) {
  return StrCat("pool(", op.kind == PoolKind::kMax ? "max" : "avg", "; ", List("kernel", op.kernel), "; ",
                WindowsText(op.windows), op.divisor == PoolDivisor::kWithPadding ? "; with_padding" : "",
                op.ceil_mode ? "; ceil" : "", ")");
}

absl::StatusOr<ConvOp> ParseConvOp(Scanner& scanner) {
  ConvOp op;
  TESSERA_ASSIGN_OR_RETURN(op.windows, ParseWindows(scanner));
  for (const std::string_view token : {";", "groups", "="}) TESSERA_RETURN_IF_ERROR(scanner.Take(token));
  TESSERA_ASSIGN_OR_RETURN(op.groups, scanner.TakeInteger());
  TESSERA_RETURN_IF_ERROR(ValidateConvOp(op, 2, 0));
  return op;
}

absl::StatusOr<ConvGradientOp> ParseConvGradientOp(Scanner& scanner) {
  ConvGradientOp op;
  TESSERA_ASSIGN_OR_RETURN(const std::string_view of, scanner.TakeIdentifier());
  if (of != "x" && of != "weight") return scanner.Error("x or weight before here");
  op.of = of == "x" ? ConvOperand::kX : ConvOperand::kWeight;
  TESSERA_RETURN_IF_ERROR(scanner.Take(";"));
  TESSERA_ASSIGN_OR_RETURN(op.windows, ParseWindows(scanner));
  for (const std::string_view token : {";", "groups", "="}) TESSERA_RETURN_IF_ERROR(scanner.Take(token));
  TESSERA_ASSIGN_OR_RETURN(op.groups, scanner.TakeInteger());
  TESSERA_RETURN_IF_ERROR(ValidateConvGradientOp(op, 2, 0));
  return op;
}

absl::StatusOr<PoolOp> ParsePoolOp(Scanner& scanner) {
  PoolOp op;
  TESSERA_ASSIGN_OR_RETURN(const std::string_view kind, scanner.TakeIdentifier());
  if (kind != "max" && kind != "avg") return scanner.Error("max or avg before here");
  op.kind = kind == "max" ? PoolKind::kMax : PoolKind::kAverage;
  TESSERA_RETURN_IF_ERROR(scanner.Take(";"));
  TESSERA_ASSIGN_OR_RETURN(op.kernel, ParseList(scanner, "kernel"));
  TESSERA_RETURN_IF_ERROR(scanner.Take(";"));
  TESSERA_ASSIGN_OR_RETURN(op.windows, ParseWindows(scanner));
  bool has_more = scanner.TryTake(";");
  if (has_more && scanner.TryTake("with_padding")) {
    op.divisor = PoolDivisor::kWithPadding;
    has_more = scanner.TryTake(";");
  }
  if (has_more) {
    TESSERA_RETURN_IF_ERROR(scanner.Take("ceil"));
    op.ceil_mode = true;
  }
  TESSERA_RETURN_IF_ERROR(ValidatePoolOp(op, 1, 0));
  return op;
}

absl::Status ValidateConvOp(const ConvOp& op, int inputs, int scalars) {
  TESSERA_RETURN_IF_ERROR(CheckWindows(op.windows));
  if (op.groups < 1) return absl::InvalidArgumentError(StrCat("conv: ", op.groups, " groups"));
  if (inputs == 2 && scalars == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("conv: takes 2 inputs and no scalars, not ", inputs, " and ", scalars));
}

absl::Status ValidateConvGradientOp(const ConvGradientOp& op, int inputs, int scalars) {
  TESSERA_RETURN_IF_ERROR(CheckWindows(op.windows));
  if (op.windows.dims() > kMaxWindowDims || static_cast<int>(op.of) > 1) {
    return absl::InvalidArgumentError(
        StrCat("conv_gradient: windows of ", op.windows.dims(), " dims; 1 to ", kMaxWindowDims, "; of x or weight"));
  }
  if (op.groups < 1) return absl::InvalidArgumentError(StrCat("conv_gradient: ", op.groups, " groups"));
  if (inputs == 2 && scalars == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("conv_gradient: takes 2 inputs and no scalars, not ", inputs, " and ", scalars));
}

absl::Status ValidatePoolOp(const PoolOp& op, int inputs, int scalars) {
  TESSERA_RETURN_IF_ERROR(CheckNumbers("kernel_size", op.kernel, 1, op.windows.dims()));
  TESSERA_RETURN_IF_ERROR(CheckWindows(op.windows));
  if (static_cast<int>(op.kind) > 1 || static_cast<int>(op.divisor) > 1) {
    return absl::InvalidArgumentError("pool: unknown kind or divisor");
  }
  for (size_t d = 0; d < op.kernel.size(); ++d) {
    if (2 * op.windows.padding[d] > op.kernel[d]) {
      return absl::InvalidArgumentError(
          StrCat("padding of ", op.windows.padding[d], " is more than half a kernel of ", op.kernel[d]));
    }
  }
  if (inputs == 1 && scalars == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("pool: takes 1 input and no scalars, not ", inputs, " and ", scalars));
}

}  // namespace tessera
