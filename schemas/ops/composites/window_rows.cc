// Convolutions and pooling. Where a dim that windows go over is sharded, the shards stay where they are: each takes the
// few elements that its windows reach beyond it from its neighbours (a halo), and the windows lie within blocks.
//
//   x[N, C, H, W] S(2), n shards of B rows  ->  [N, C, n, B, W] S(2)  ->  [N, C, n, before + B + after, W] S(2)
//   conv with windows [1, kh, kw]           ->  [N, O, n, B / stride, W'] S(2)  ->  [N, O, H', W'] S(2)
//
// Windows of block b begin at b B - before. With B a multiple of the stride its B / stride windows end at
// b B - before + (B / stride - 1) stride + reach, so after = reach - stride - before elements of block b + 1 are seen,
// and n (before + after) elements of the dim move in all, once each: no placement of the outputs whose shards begin
// where these do takes fewer, for each of them is an operand of a window and lies elsewhere. Where that isn't less than
// moving the shards to another dim does, or a window reaches beyond the next block, the primitive rows place the op.
//
// The gradients of convolutions: where no dim that windows go over is sharded, a primitive row computes them. Else they
// are convolutions themselves, with halos: of the gradient with the weight the other way round, or of x with the
// gradient. A transposed convolution is the gradient of x.

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/composites/rows.h"
#include "schemas/ops/graph_builder.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/window_attributes.h"
#include "schemas/ops/window_op.h"
#include "schemas/types/layout.h"

namespace tessera::composites {
namespace {

using G = GraphBuilder;
using V = GraphValue;

// The windows of one call, in which blocks of dims become dims of their own.
struct Call {
  OpId primitive;
  Windows windows;
  std::vector<int64_t> kernel;
  Scalar beyond = Scalar::Int(0);  // what windows see beyond the input
  Attributes attributes;           // of the primitive, besides those of the windows
};

// How one dim is cut: into `count` blocks of `size` elements, whose windows see `before` and `after` elements beyond
// it.
struct Blocks {
  int64_t count = 0, size = 0, before = 0, after = 0;
  int64_t windows = 0;      // of a block
  int64_t all_windows = 0;  // of the dim
};

// Nothing where the dim of these windows isn't sharded, or the primitive does better.
std::optional<Blocks> BlocksOf(const Call& call, const TensorSpec& x, int64_t dim, size_t window, bool ceil_mode) {
  int64_t count = 1;
  for (const int mesh_dim : ShardingMeshDims(x, static_cast<int>(dim))) {
    if (x.placements[static_cast<size_t>(mesh_dim)] != Placement::Shard(static_cast<int>(dim))) return std::nullopt;
    count *= x.mesh.shape()[static_cast<size_t>(mesh_dim)];
  }
  const int64_t extent = x.shape[static_cast<size_t>(dim)];
  const int64_t stride = call.windows.stride[window], padding = call.windows.padding[window];
  const int64_t reach = call.windows.dilation[window] * (call.kernel[window] - 1) + 1;
  if (count < 2 || extent < 1 || x.rank() > kMaxRank - static_cast<int>(kMaxWindowDims)) return std::nullopt;
  if (call.kernel[window] == 1 && stride == 1 && padding == 0) return std::nullopt;  // goes over single elements
  const absl::StatusOr<int64_t> windows = WindowCount(extent, call.kernel[window], call.windows, window, ceil_mode);
  if (!windows.ok()) return std::nullopt;
  Blocks blocks;
  blocks.count = count;
  blocks.windows = ((extent + count - 1) / count + stride - 1) / stride;
  blocks.windows = std::max(blocks.windows, (*windows + count - 1) / count);
  blocks.size = blocks.windows * stride;
  blocks.before = padding;
  blocks.after = reach - stride - padding;
  blocks.all_windows = *windows;
  const int64_t moved = blocks.before + std::max<int64_t>(blocks.after, 0);
  const bool fits = std::max(blocks.before, blocks.after) <= blocks.size && blocks.size + blocks.after > 0;
  return fits && moved * count < extent ? std::optional(blocks) : std::nullopt;
}

V Padded(G& g, const V& x, int64_t dim, int64_t before, int64_t after, const Scalar& value) {
  std::vector<int64_t> width(2 * static_cast<size_t>(x.rank()), 0);
  width[2 * static_cast<size_t>(dim)] = before;
  width[2 * static_cast<size_t>(dim) + 1] = after;
  return g.Pad(x, std::move(width), value);
}

// x with `dim` as two: blocks, and what the windows of a block see.
V InBlocks(G& g, const V& x, int64_t dim, const Blocks& blocks, const Scalar& beyond) {
  Shape split = x.spec().shape;
  split[static_cast<size_t>(dim)] = blocks.count;
  split.insert(split.begin() + dim + 1, blocks.size);
  const V own = g.Reshape(Padded(g, x, dim, 0, blocks.count * blocks.size - x.extent(dim), beyond), split);
  std::vector<V> seen;
  if (blocks.before > 0) {
    const V ends = g.SliceDim(own, dim + 1, blocks.size - blocks.before, blocks.before);
    seen.push_back(Padded(g, g.SliceDim(ends, dim, 0, blocks.count - 1), dim, 1, 0, beyond));
  }
  seen.push_back(blocks.after < 0 ? g.SliceDim(own, dim + 1, 0, blocks.size + blocks.after) : own);
  if (blocks.after > 0) {
    const V starts = g.SliceDim(own, dim + 1, 0, blocks.after);
    seen.push_back(Padded(g, g.SliceDim(starts, dim, 1, blocks.count - 1), dim, 0, 1, beyond));
  }
  return seen.size() == 1 ? seen[0] : g.Concat(std::move(seen), dim + 1);
}

// Whether each window of the dim has its whole kernel in the mean's divisor.
bool HasWholeDivisor(const Call& call, int64_t extent, size_t window, const Blocks& blocks) {
  const int64_t padding = call.windows.padding[window];
  const int64_t reach = call.windows.dilation[window] * (call.kernel[window] - 1) + 1;
  const int64_t end = (blocks.all_windows - 1) * call.windows.stride[window] + reach;
  return (padding == 0 || call.attributes.Get(attribute::count_include_pad)) && end <= extent + 2 * padding;
}

// A convolution's second operand is the weight, which has the windows' dims last, too.
void RunWindows(G& g, Call call, V x, std::optional<V> weight) {
  const size_t dims = call.windows.dims();
  const int64_t first = x.rank() - static_cast<int64_t>(dims);
  std::vector<std::optional<Blocks>> blocks(dims);
  for (size_t d = dims; first >= 0 && d-- > 0;) {
    const int64_t dim = first + static_cast<int64_t>(d);
    blocks[d] = BlocksOf(call, g.operand(0).spec(), dim, d, call.attributes.Get(attribute::ceil_mode));
    if (!blocks[d].has_value()) continue;
    if (call.primitive == OpId::kAvgPoolWindows && !HasWholeDivisor(call, x.extent(dim), d, *blocks[d])) {
      blocks[d].reset();
      continue;
    }
    x = InBlocks(g, x, dim, *blocks[d], call.beyond);
    const auto at = static_cast<ptrdiff_t>(d);
    call.windows.padding[d] = 0;
    call.windows.stride.insert(call.windows.stride.begin() + at, 1);
    call.windows.padding.insert(call.windows.padding.begin() + at, 0);
    call.windows.dilation.insert(call.windows.dilation.begin() + at, 1);
    call.kernel.insert(call.kernel.begin() + at, 1);
    if (weight.has_value()) weight = g.ExpandDim(*weight, 2 + static_cast<int64_t>(d));
  }
  call.attributes.Set(attribute::stride, call.windows.stride);
  call.attributes.Set(attribute::padding, call.windows.padding);
  call.attributes.Set(attribute::dilation, call.windows.dilation);
  if (!weight.has_value()) call.attributes.Set(attribute::kernel_size, call.kernel);
  std::vector<V> operands = {x};
  if (weight.has_value()) operands.push_back(*weight);
  V y = g.Call(call.primitive, std::move(call.attributes), std::move(operands));
  if (g.failed()) return;
  Shape merged(y.spec().shape.begin(), y.spec().shape.begin() + first);
  size_t from = static_cast<size_t>(first);
  for (const std::optional<Blocks>& some : blocks) {
    merged.push_back(y.spec().shape[from]);
    from += 1;
    if (some.has_value()) merged.back() *= y.spec().shape[from++];
  }
  if (merged != y.spec().shape) y = g.Reshape(y, std::move(merged));
  for (size_t d = 0; d < dims; ++d) {
    const int64_t dim = first + static_cast<int64_t>(d);
    if (blocks[d].has_value() && y.extent(dim) != blocks[d]->all_windows) {
      y = g.SliceDim(y, dim, 0, blocks[d]->all_windows);
    }
  }
  g.Return(y);
}

// Whether the call is well-formed; else the primitive says what is wrong.
bool IsWellFormed(const Windows& windows, size_t kernel_dims) {
  const size_t dims = windows.dims();
  const auto from = [](const std::vector<int64_t>& numbers, int64_t least) {
    return std::all_of(numbers.begin(), numbers.end(),
                       [&](int64_t number) { return number >= least && number <= kMaxWindowNumber; });
  };
  return dims >= 1 && dims <= kMaxWindowDims && kernel_dims == dims && windows.padding.size() == dims &&
         windows.dilation.size() == dims && from(windows.stride, 1) && from(windows.padding, 0) &&
         from(windows.dilation, 1);
}

Call CallOf(G& g, OpId primitive) {
  const Attributes& a = g.attributes();
  return {primitive, WindowsOf(a), a.Get(attribute::kernel_size), Scalar::Int(0), a};
}

void Conv(G& g) {
  const V &x = g.operand(0), &weight = g.operand(1);
  Call call = CallOf(g, OpId::kConvWindows);
  const size_t dims = call.windows.dims();
  call.kernel.assign(weight.spec().shape.begin() + std::min<ptrdiff_t>(2, weight.rank()), weight.spec().shape.end());
  const bool is_well_formed = IsWellFormed(call.windows, call.kernel.size()) &&
                              x.rank() == static_cast<int>(dims) + 2 && weight.rank() == x.rank();
  if (!is_well_formed) return g.Return(g.Call(call.primitive, call.attributes, {x, weight}));
  RunWindows(g, std::move(call), x, weight);
}

void Pool(G& g, OpId primitive, const Scalar& beyond) {
  const V& x = g.operand(0);
  Call call = CallOf(g, primitive);
  call.beyond = beyond;
  const bool is_well_formed = IsWellFormed(call.windows, call.kernel.size()) &&
                              std::all_of(call.kernel.begin(), call.kernel.end(), [](int64_t k) { return k >= 1; }) &&
                              x.rank() >= static_cast<int>(call.windows.dims());
  if (!is_well_formed) return g.Return(g.Call(primitive, call.attributes, {x}));
  RunWindows(g, std::move(call), x, std::nullopt);
}

// Less than, or equal to, whatever a window has.
Scalar Lowest(DType dtype) {
  if (Kind(dtype) == DTypeKind::kFloat) return Scalar::Float(-std::numeric_limits<double>::infinity());
  if (Kind(dtype) == DTypeKind::kUnsigned) return Scalar::Int(0);
  return Scalar::Int(std::numeric_limits<int64_t>::min() >> (64 - 8 * SizeBytes(dtype)));
}

void MaxPool(G& g) { Pool(g, OpId::kMaxPoolWindows, Lowest(g.operand(0).dtype())); }
void AvgPool(G& g) { Pool(g, OpId::kAvgPoolWindows, Scalar::Int(0)); }

// ---- gradients of convolutions ----

constexpr size_t kFirst = 2;  // dim of windows, behind batch and channels

// Whether windows go over a dim of which some tensor has shards. The call fits.
bool GoesOverShards(const ConvGradientOp& op, const Shape& weight, const std::vector<V>& tensors) {
  for (size_t d = 0; d < op.windows.dims(); ++d) {
    if (IsOfSingleElements(op.windows, weight[kFirst + d], d)) continue;
    for (const V& tensor : tensors) {
      if (!ShardingMeshDims(tensor.spec(), static_cast<int>(kFirst + d)).empty()) return true;
    }
  }
  return false;
}

V Convolved(G& g, const V& x, const V& weight, Windows windows, int64_t groups) {
  Attributes attributes;
  attributes.Set(attribute::stride, std::move(windows.stride));
  attributes.Set(attribute::padding, std::move(windows.padding));
  attributes.Set(attribute::dilation, std::move(windows.dilation));
  attributes.Set(attribute::groups, groups);
  return g.Call(OpId::kConv, std::move(attributes), {x, weight});
}

// Its first two dims the other way round.
V Swapped(G& g, const V& x) {
  Dims dims(static_cast<size_t>(x.rank()));
  for (size_t d = 0; d < dims.size(); ++d) dims[d] = static_cast<int64_t>(d < kFirst ? 1 - d : d);
  return g.Permute(x, std::move(dims));
}

// The first `extents` elements of the dims of windows, and zeros where there are fewer.
V UpTo(G& g, V x, const Shape& extents) {
  std::vector<int64_t> width(2 * static_cast<size_t>(x.rank()), 0);
  for (size_t d = 0; d < extents.size(); ++d) {
    const auto dim = static_cast<int64_t>(kFirst + d);
    if (x.extent(dim) > extents[d]) x = g.SliceDim(x, dim, 0, extents[d]);
    width[2 * (kFirst + d) + 1] = extents[d] - x.extent(dim);
  }
  return g.Pad(x, std::move(width));
}

// The gradient with stride - 1 zeros behind each element: as a dim of as many as the stride, and the two as one.
V Apart(G& g, V gradient, const std::vector<int64_t>& stride) {
  for (size_t d = 0; d < stride.size(); ++d) {
    if (stride[d] == 1) continue;
    const size_t dim = kFirst + d;
    Shape shape = gradient.spec().shape;
    shape.insert(shape.begin() + static_cast<ptrdiff_t>(dim) + 1, 1);
    std::vector<int64_t> width(2 * shape.size(), 0);
    width[2 * (dim + 1) + 1] = stride[d] - 1;
    const V spread = g.Pad(g.Reshape(gradient, shape), std::move(width));
    shape.erase(shape.begin() + static_cast<ptrdiff_t>(dim) + 1);
    shape[dim] *= stride[d];
    gradient = g.Reshape(spread, std::move(shape));
  }
  return gradient;
}

// The first dims, as `split` has them, in another order and as `merged`; the dims of windows stay behind them.
V Regrouped(G& g, const V& x, Shape split, Dims order, Shape merged) {
  const Shape& shape = x.spec().shape;
  for (size_t d = kFirst; d < shape.size(); ++d) {
    order.push_back(static_cast<int64_t>(split.size()));
    split.push_back(shape[d]);
    merged.push_back(shape[d]);
  }
  return g.Reshape(g.Permute(g.Reshape(x, std::move(split)), std::move(order)), std::move(merged));
}

// The weight [O, C / groups, ...] as the one [C, O / groups, ...] that goes the other way, its windows reversed.
V Turned(G& g, const V& weight, int64_t groups) {
  V turned = weight;
  for (int64_t d = kFirst; d < weight.rank(); ++d) {
    turned = g.SliceDim(turned, d, weight.extent(d) - 1, weight.extent(d), -1);
  }
  if (groups == 1) return Swapped(g, turned);
  const int64_t outputs = weight.extent(0) / groups, channels = weight.extent(1);
  return Regrouped(g, turned, {groups, outputs, channels}, {0, 2, 1}, {groups * channels, outputs});
}

// Elements that windows reached outside of x are left out at the end.
V ComposedOfX(G& g, const ConvGradientOp& op, const V& gradient, const V& weight, const Shape& x) {
  const size_t dims = op.windows.dims();
  Windows windows = op.windows;
  Shape extents;
  std::vector<int64_t> beyond;
  for (size_t d = 0; d < dims; ++d) {
    const int64_t padding = op.windows.padding[d], reach = op.windows.dilation[d] * (weight.extent(kFirst + d) - 1);
    extents.push_back(x[kFirst + d] + 2 * padding - reach);
    beyond.push_back(std::max<int64_t>(0, padding - reach));
    windows.stride[d] = 1;
    windows.padding[d] = reach - padding + beyond[d];
  }
  const V spread = UpTo(g, Apart(g, gradient, op.windows.stride), extents);
  V out = Convolved(g, spread, Turned(g, weight, op.groups), std::move(windows), op.groups);
  for (size_t d = 0; d < dims; ++d) {
    if (beyond[d] != 0) out = g.SliceDim(out, static_cast<int64_t>(kFirst + d), beyond[d], x[kFirst + d]);
  }
  return out;
}

// The batch is what is summed over: of groups group by group.
V ComposedOfWeight(G& g, const ConvGradientOp& op, const V& gradient, const V& x, const Shape& weight) {
  const int64_t batch = x.extent(0), channels = x.extent(1) / op.groups;
  // [N, C, ...] as [C / groups, groups N, ...]
  const V image = op.groups == 1
                      ? Swapped(g, x)
                      : Regrouped(g, x, {batch, op.groups, channels}, {2, 1, 0}, {channels, op.groups * batch});
  const Windows windows = {op.windows.dilation, op.windows.padding, op.windows.stride};
  const V out = Convolved(g, image, Swapped(g, gradient), windows, op.groups);
  return Swapped(g, UpTo(g, out, Shape(weight.begin() + kFirst, weight.end())));
}

void ConvBackward(G& g, ConvOperand of) {
  const V &gradient = g.operand(0), &other = g.operand(1);
  const ConvGradientOp op{of, WindowsOf(g.attributes()), GroupsOf(g.attributes())};
  const Shape* given = g.attributes().Get(attribute::shape);
  const Shape shape = given == nullptr ? Shape() : *given;  // the primitive refuses none
  const bool is_of_x = of == ConvOperand::kX;
  const bool fits = ValidateConvGradientOp(op, 2, 0).ok() &&
                    CheckConvGradientOf(op, gradient.spec().shape, other.spec().shape, shape).ok();
  const Shape& weight = is_of_x ? other.spec().shape : shape;
  if (!fits || NumElements(gradient.spec().shape) == 0 || !GoesOverShards(op, weight, {gradient, other})) {
    const OpId primitive = is_of_x ? OpId::kConvBackwardXWindows : OpId::kConvBackwardWeightWindows;
    return g.Return(g.Call(primitive, g.attributes(), {gradient, other}));
  }
  g.Return(is_of_x ? ComposedOfX(g, op, gradient, other, shape) : ComposedOfWeight(g, op, gradient, other, shape));
}

void ConvBackwardX(G& g) { ConvBackward(g, ConvOperand::kX); }
void ConvBackwardWeight(G& g) { ConvBackward(g, ConvOperand::kWeight); }

constexpr std::array kRows = {
    Composite(
        OpId::kConv, "conv", 2, 2, Conv, "conv(x, weight, /, *, stride, padding, dilation, groups=1)",
        "Convolves x of dims (N, C, ...) with a weight of dims (O, C / groups, ...), as torch does. Shards of a dim "
        "that windows go over take what their windows reach beyond them from their neighbours."),
    Composite(OpId::kMaxPool, "max_pool", 1, 1, MaxPool,
              "max_pool(x, /, *, kernel_size, stride, padding, dilation, ceil_mode=False)",
              "Gives the maximum of each window of the last dims; NaN propagates. Sharded dims are as of conv."),
    Composite(
        OpId::kAvgPool, "avg_pool", 1, 1, AvgPool,
        "avg_pool(x, /, *, kernel_size, stride, padding, dilation, ceil_mode=False, count_include_pad=False)",
        "Gives the mean of each window of the last dims. Sharded dims are as of conv, where all means have the same "
        "divisor."),
    Composite(OpId::kConvBackwardX, "conv_backward_x", 2, 2, ConvBackwardX,
              "conv_backward_x(gradient, weight, /, *, shape, stride, padding, dilation, groups=1)",
              "The gradient of conv's x, of that shape: a transposed convolution of the gradient of its result.",
              "ts.conv_backward_x(ts.asarray([[[1.0, 1.0]]]), ts.asarray([[[1.0, 10.0]]]), shape=(1, 1, 3), stride=1, "
              "padding=0, dilation=1).tolist() => [[[1.0, 11.0, 10.0]]]"),
    Composite(OpId::kConvBackwardWeight, "conv_backward_weight", 2, 2, ConvBackwardWeight,
              "conv_backward_weight(gradient, x, /, *, shape, stride, padding, dilation, groups=1)",
              "The gradient of conv's weight, of that shape; of a batch in shards a pending sum.",
              "ts.conv_backward_weight(ts.asarray([[[1.0, 1.0]]]), ts.asarray([[[1.0, 2.0, 3.0]]]), shape=(1, 1, 2), "
              "stride=1, padding=0, dilation=1).tolist() => [[[3.0, 5.0]]]"),
};

}  // namespace

absl::Span<const OpRow> WindowRows() { return kRows; }

}  // namespace tessera::composites
