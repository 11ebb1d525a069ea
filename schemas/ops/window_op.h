#pragma once

// Local ops that go over windows of the last dims: convolutions and pooling, with torch's meaning. A window is a box of
// kernel[d] elements, dilation[d] apart; windows are stride[d] apart, and begin padding[d] elements before the first.
//
//   x f32[8,3,32,32], weight f32[16,3,5,5], stride 2, padding 2  ->  conv f32[8,16,16,16]

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "schemas/types/shape.h"

namespace tessera {

class Scanner;

// Dims of windows; beside them as many may be there whose windows are single elements (kernel and stride 1, no
// padding).
inline constexpr size_t kMaxWindowDims = 3;
// Beyond it sums and products of these numbers may not be numbers of 64 bits.
inline constexpr int64_t kMaxWindowNumber = int64_t{1} << 30;  // docs/limits.md: max_window_number

// Where windows lie in one dim each.
struct Windows {
  std::vector<int64_t> stride;    // at least 1
  std::vector<int64_t> padding;   // at least 0
  std::vector<int64_t> dilation;  // at least 1
  size_t dims() const { return stride.size(); }
  bool operator==(const Windows&) const = default;
};

// Inputs x [N, C, ...] and weight [O, C / groups, ...]; output [N, O, ...]: each element is the sum of the products of
// a window of x with the weight of the output's channel, over the channels of its group; zeros beyond x. As a product:
// f16 and bf16 are summed in f32, integers wrap.
struct ConvOp {
  Windows windows;
  int64_t groups = 1;
  bool operator==(const ConvOp&) const = default;
};

// The gradient of an operand of a convolution, of the gradient [N, O, ...] of its result and the other operand:
//   kX       inputs gradient and weight; the output is x's
//   kWeight  inputs gradient and x; the output is the weight's, a sum over the batch
// The result's gradient may have fewer windows than fit in x: what isn't there counts as zeros. At most kMaxWindowDims
// dims. Sums are as of ConvOp.
enum class ConvOperand : uint8_t { kX = 0, kWeight = 1 };
struct ConvGradientOp {
  ConvOperand of = ConvOperand::kX;
  Windows windows;
  int64_t groups = 1;
  bool operator==(const ConvGradientOp&) const = default;
};

// One input [..., ...]; gives each window's maximum (NaN propagates; places beyond the input don't count) or mean.
// kWithPadding: the mean's divisor counts padding, up to where it ends; kElements: the input's elements alone.
enum class PoolKind : uint8_t { kMax = 0, kAverage = 1 };
enum class PoolDivisor : uint8_t { kElements = 0, kWithPadding = 1 };
struct PoolOp {
  PoolKind kind = PoolKind::kMax;
  std::vector<int64_t> kernel;
  Windows windows;
  PoolDivisor divisor = PoolDivisor::kElements;
  bool ceil_mode = false;  // a last window that begins inside the input, or its padding before, may end beyond it
  bool operator==(const PoolOp&) const = default;
};

// Whether windows are single elements in this dim: it is gone over as a dim of a map.
bool IsOfSingleElements(const Windows& windows, int64_t kernel, size_t dim);
// How many windows there are in one dim; InvalidArgument where not one fits.
absl::StatusOr<int64_t> WindowCount(int64_t extent, int64_t kernel, const Windows& windows, size_t dim, bool ceil_mode);
// The extents of the output; InvalidArgument that says what doesn't fit.
absl::StatusOr<Shape> ConvOutput(const ConvOp& op, const Shape& x, const Shape& weight);
// InvalidArgument where a convolution of such an x and weight has no result of which that is the gradient.
absl::Status CheckConvGradient(const ConvGradientOp& op, const Shape& gradient, const Shape& x, const Shape& weight);
// The same of the op's inputs and its output.
absl::Status CheckConvGradientOf(const ConvGradientOp& op, const Shape& gradient, const Shape& other,
                                 const Shape& output);
absl::StatusOr<Shape> PoolOutput(const PoolOp& op, const Shape& x);

// "conv(stride=[2,2]; padding=[0,0]; dilation=[1,1]; groups=1)",
// "conv_gradient(x; stride=[2,2]; padding=[0,0]; dilation=[1,1]; groups=1)", "conv_gradient(weight; ...)",
// "pool(max; kernel=[2]; stride=[2]; padding=[0]; dilation=[1])", "...; with_padding; ceil)".
std::string ToText(const ConvOp& op);
std::string ToText(const ConvGradientOp& op);
std::string ToText(const PoolOp& op);
absl::StatusOr<ConvOp> ParseConvOp(Scanner& scanner);
absl::StatusOr<ConvGradientOp> ParseConvGradientOp(Scanner& scanner);
absl::StatusOr<PoolOp> ParsePoolOp(Scanner& scanner);
absl::Status ValidateConvOp(const ConvOp& op, int inputs, int scalars);
absl::Status ValidateConvGradientOp(const ConvGradientOp& op, int inputs, int scalars);
absl::Status ValidatePoolOp(const PoolOp& op, int inputs, int scalars);

}  // namespace tessera
