#include "server/plan/reference/interpret_windows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace tessera {
namespace {

// Where element `inner` of the window at `position` lies in one dim; outside of the input it counts as padding.
int64_t PlaceIn(const Windows& windows, size_t dim, int64_t position, int64_t inner) {
  return position * windows.stride[dim] - windows.padding[dim] + inner * windows.dilation[dim];
}

}  // namespace

void InterpretConv(const ConvOp& op, const std::vector<StridedNumbers>& inputs, const StridedNumbers& output) {
  const StridedNumbers &x = inputs[0], &weight = inputs[1];
  const size_t dims = op.windows.dims();
  const int64_t outputs = weight.extents[0] / op.groups;
  const DType wide = AddedUpIn(output.dtype);
  Shape window(weight.extents.begin() + 1, weight.extents.end());
  ForEachIndex(output.extents, [&](const Shape& index) {
    Number sum;
    ForEachIndex(window, [&](const Shape& inner) {
      Shape of_weight = {index[1]}, of_x = {index[0], index[1] / outputs * window[0] + inner[0]};
      of_weight.insert(of_weight.end(), inner.begin(), inner.end());
      for (size_t d = 0; d < dims; ++d) {
        const int64_t at = PlaceIn(op.windows, d, index[d + 2], inner[d + 1]);
        if (at < 0 || at >= x.extents[d + 2]) return;
        of_x.push_back(at);
      }
      const Number product = ReduceTwo(ReduceOp::kProduct, wide, x.Read(of_x), weight.Read(of_weight));
      sum = ReduceTwo(ReduceOp::kSum, wide, sum, product);
    });
    output.Write(index, sum);
  });
}

void InterpretConvGradient(const ConvGradientOp& op, const std::vector<StridedNumbers>& inputs,
                           const StridedNumbers& output) {
  const StridedNumbers &gradient = inputs[0], &other = inputs[1];
  const bool is_of_x = op.of == ConvOperand::kX;
  const Shape& x = is_of_x ? output.extents : other.extents;
  const Shape& weight = is_of_x ? other.extents : output.extents;
  const int64_t outputs = weight[0] / op.groups;
  const DType wide = AddedUpIn(output.dtype);
  std::map<Shape, Number> sums;
  // Each product of the convolution gives one term of the gradient of each of its factors.
  ForEachIndex(gradient.extents, [&](const Shape& index) {
    ForEachIndex(Shape(weight.begin() + 1, weight.end()), [&](const Shape& inner) {
      Shape of_weight = {index[1]}, of_x = {index[0], index[1] / outputs * weight[1] + inner[0]};
      of_weight.insert(of_weight.end(), inner.begin(), inner.end());
      for (size_t d = 0; d < op.windows.dims(); ++d) {
        const int64_t at = PlaceIn(op.windows, d, index[d + 2], inner[d + 1]);
        if (at < 0 || at >= x[d + 2]) return;
        of_x.push_back(at);
      }
      const Number factor = other.Read(is_of_x ? of_weight : of_x);
      Number& sum = sums[is_of_x ? of_x : of_weight];
      sum = ReduceTwo(ReduceOp::kSum, wide, sum, ReduceTwo(ReduceOp::kProduct, wide, gradient.Read(index), factor));
    });
  });
  ForEachIndex(output.extents, [&](const Shape& index) { output.Write(index, sums[index]); });
}

void InterpretPool(const PoolOp& op, const StridedNumbers& input, const StridedNumbers& output) {
  const size_t dims = op.windows.dims(), first = output.extents.size() - dims;
  const bool is_max = op.kind == PoolKind::kMax;
  const bool has_infinity = Kind(output.dtype) == DTypeKind::kFloat;
  const double lowest = has_infinity
                            ? -std::numeric_limits<double>::infinity()
                            : Scalar::Float(-std::numeric_limits<double>::infinity()).As(output.dtype).AsDouble();
  ForEachIndex(output.extents, [&](const Shape& index) {
    double result = is_max ? lowest : 0;
    int64_t elements = 0, padded = 0;
    ForEachIndex(op.kernel, [&](const Shape& inner) {
      Shape at = index;
      bool inside = true, counts = true;
      for (size_t d = 0; d < dims; ++d) {
        const int64_t extent = input.extents[first + d];
        at[first + d] = PlaceIn(op.windows, d, index[first + d], inner[d]);
        inside = inside && at[first + d] >= 0 && at[first + d] < extent;
        counts = counts && at[first + d] < extent + op.windows.padding[d];
      }
      elements += inside ? 1 : 0;
      padded += counts ? 1 : 0;
      if (!inside) return;
      const double value = static_cast<double>(input.Read(at));
      if (is_max) {
        result = std::isnan(value) || std::isnan(result) ? std::nan("") : std::max(result, value);
      } else {
        result += value;
      }
    });
    const int64_t divisor = op.divisor == PoolDivisor::kWithPadding ? padded : elements;
    output.Write(index, is_max ? result : result / static_cast<double>(divisor));
  });
}

}  // namespace tessera
