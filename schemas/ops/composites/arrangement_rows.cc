// Where elements lie: concatenation, stacks, padding, rolls, repetition, assignment. Pieces are placed side by side or
// over a base; only what a worker lacks of its own shard moves.

#include <array>
#include <numeric>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/composites/rows.h"
#include "schemas/ops/graph_builder.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"

namespace tessera::composites {
namespace {

using G = GraphBuilder;
using V = GraphValue;

struct Placed {
  std::string_view mode;  // none, input, scalar
  Shape shape;            // of the output, where there is no base
  std::vector<Shape> starts;
  Shape step;
};

V Place(G& g, const Placed& placed, std::vector<V> tensors, std::vector<Scalar> scalars = {}) {
  Attributes attributes;
  attributes.Set(attribute::mode, std::string(placed.mode));
  if (placed.mode != "input") attributes.Set(attribute::shape, placed.shape);
  std::vector<int64_t> starts;
  for (const Shape& start : placed.starts) starts.insert(starts.end(), start.begin(), start.end());
  attributes.Set(attribute::starts, std::move(starts));
  attributes.Set(attribute::step, {placed.step.begin(), placed.step.end()});
  return g.Call(OpId::kPlace, std::move(attributes), std::move(tensors), std::move(scalars));
}

// All operands in their common dtype.
std::vector<V> Promoted(G& g) {
  std::vector<V> pieces;
  DType common = g.operand(0).dtype();
  for (size_t i = 0; i < g.operand_count(); ++i) {
    const absl::StatusOr<DType> joined = Promote(common, g.operand(i).dtype());
    if (!joined.ok()) {
      g.RefuseDType(StrCat("dtypes ", ToText(common), " and ", ToText(g.operand(i).dtype()), " have no common dtype"));
      return {g.operand(0)};
    }
    common = *joined;
  }
  for (size_t i = 0; i < g.operand_count(); ++i) pieces.push_back(g.AsType(g.operand(i), common));
  return pieces;
}

// Beyond it a dim that is cut is gathered before it is repeated.
constexpr int64_t kMaxCopiesSideBySide = 64;

V SideBySide(G& g, const std::vector<V>& pieces, int64_t dim) {
  const size_t at = static_cast<size_t>(dim);
  const int rank = pieces[0].rank();
  Placed placed{"none", pieces[0].spec().shape, {}, Shape(static_cast<size_t>(rank), 1)};
  placed.shape[at] = 0;
  for (const V& piece : pieces) {
    for (int d = 0; d < rank; ++d) {
      if (piece.rank() == rank && (d == dim || piece.extent(d) == pieces[0].extent(d))) continue;
      g.Refuse("shapes differ in another dim than the axis");
      return pieces[0];
    }
    Shape start(static_cast<size_t>(rank), 0);
    start[at] = placed.shape[at];
    placed.starts.push_back(std::move(start));
    if (__builtin_add_overflow(placed.shape[at], piece.extent(dim), &placed.shape[at])) {
      g.Refuse("the extent is beyond 64 bits");
      return pieces[0];
    }
  }
  return Place(g, placed, pieces);
}

// The call's one axis, for a tensor of that rank.
int64_t AxisOf(G& g, int64_t rank) {
  const std::vector<int64_t>& dims = g.attributes().Get(attribute::dims);
  if (dims.size() == 1 && dims[0] >= 0 && dims[0] < rank) return dims[0];
  if (dims.size() == 1) {
    g.RefuseIndex(StrCat("axis ", dims[0], " is out of range for ", rank, " dims"));
  } else {
    g.Refuse("needs one axis");
  }
  return 0;
}

void Concat(G& g) {
  const std::vector<V> pieces = Promoted(g);
  if (pieces[0].rank() == 0) return g.Refuse("tensors without dims have no axis to be joined along");
  const int64_t axis = AxisOf(g, pieces[0].rank());
  if (!g.failed()) g.Return(SideBySide(g, pieces, axis));
}

void Stack(G& g) {
  std::vector<V> pieces = Promoted(g);
  const int64_t axis = AxisOf(g, pieces[0].rank() + 1);
  for (V& piece : pieces) {
    if (piece.spec().shape != pieces[0].spec().shape) return g.Refuse("shapes differ");
  }
  for (V& piece : pieces) piece = g.ExpandDim(piece, axis);
  if (!g.failed()) g.Return(SideBySide(g, pieces, axis));
}

void Unstack(G& g) {
  const V& x = g.operand(0);
  const int64_t axis = AxisOf(g, x.rank());
  if (g.failed()) return;
  if (x.extent(axis) > static_cast<int64_t>(kMaxOperands)) {
    return g.Refuse(StrCat("dim ", axis, " has ", x.extent(axis), " elements; max_operands is ", kMaxOperands));
  }
  std::vector<V> results;
  for (int64_t i = 0; i < x.extent(axis); ++i) results.push_back(g.DropDims(g.SliceDim(x, axis, i, 1), {axis}));
  g.Return(std::move(results));
}

void Flip(G& g) {
  V x = g.operand(0);
  for (const int64_t dim : g.DimsOf(x)) {
    if (x.extent(dim) > 1) x = g.SliceDim(x, dim, x.extent(dim) - 1, x.extent(dim), -1);
  }
  g.Return(x);
}

// Without dims: of the flattened tensor.
void Roll(G& g) {
  V x = g.operand(0);
  const Shape shape = x.spec().shape;
  std::vector<int64_t> dims = g.attributes().Get(attribute::dims), shifts = g.attributes().Get(attribute::shift);
  if (dims.empty()) {
    x = g.Reshape(x, {NumElements(shape)});
    dims = {0};
  }
  if (shifts.empty()) shifts.assign(dims.size(), 0);
  if (shifts.size() == 1) shifts.assign(dims.size(), shifts[0]);
  if (shifts.size() != dims.size()) return g.Refuse(StrCat(shifts.size(), " shifts for ", dims.size(), " axes"));
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t extent = x.extent(dims[i]);
    const int64_t shift = extent == 0 ? 0 : ((shifts[i] % extent) + extent) % extent;
    if (shift == 0) continue;
    x = SideBySide(g, {g.SliceDim(x, dims[i], extent - shift, shift), g.SliceDim(x, dims[i], 0, extent - shift)},
                   dims[i]);
  }
  g.Return(g.Reshape(x, shape));
}

// Every dim repeated as a whole: a new dim in front of each is broadcast, and both are merged. A dim that is cut could
// only be merged where it is whole, so its copies are put side by side first, where each goes to its place.
void Tile(G& g) {
  V x = g.operand(0);
  std::vector<int64_t> repeats = g.attributes().Get(attribute::repeats);
  for (int64_t d = 0; d < x.rank() && static_cast<int64_t>(repeats.size()) >= x.rank(); ++d) {
    int64_t& times = repeats[repeats.size() - static_cast<size_t>(x.rank() - d)];
    if (times < 2 || times > kMaxCopiesSideBySide || ShardingMeshDims(x.spec(), static_cast<int>(d)).empty()) continue;
    x = SideBySide(g, std::vector<V>(static_cast<size_t>(times), x), d);
    if (g.failed()) return;
    times = 1;
  }
  Shape own = x.spec().shape;
  while (own.size() < repeats.size()) own.insert(own.begin(), 1);
  while (repeats.size() < own.size()) repeats.insert(repeats.begin(), 1);
  Shape split, broadcast, merged;
  for (size_t d = 0; d < own.size(); ++d) {
    if (repeats[d] < 0) return g.Refuse(StrCat("repeats ", repeats[d], " times"));
    if (repeats[d] != 1) {
      split.push_back(1);
      broadcast.push_back(repeats[d]);
    }
    split.push_back(own[d]);
    broadcast.push_back(own[d]);
    merged.push_back(0);
    if (__builtin_mul_overflow(own[d], repeats[d], &merged.back())) return g.Refuse("an extent is beyond 64 bits");
  }
  if (broadcast.size() > static_cast<size_t>(kMaxRank)) return g.Refuse("too many dims are repeated");
  g.Return(g.Reshape(g.BroadcastTo(g.Reshape(x, split), broadcast), merged));
}

// Every element `repeats` times, one after the other, along one dim.
void Repeat(G& g) {
  const V& x = g.operand(0);
  const int64_t axis = AxisOf(g, x.rank());
  const std::vector<int64_t>& repeats = g.attributes().Get(attribute::repeats);
  if (g.failed()) return;
  if (repeats.size() != 1 || repeats[0] < 0) return g.Refuse("repeats is one number, not negative");
  Shape broadcast = x.spec().shape;
  broadcast.insert(broadcast.begin() + axis + 1, repeats[0]);
  Shape merged = x.spec().shape;
  if (__builtin_mul_overflow(merged[static_cast<size_t>(axis)], repeats[0], &merged[static_cast<size_t>(axis)])) {
    return g.Refuse("the extent is beyond 64 bits");
  }
  g.Return(g.Reshape(g.BroadcastTo(g.ExpandDim(x, axis + 1), broadcast), merged));
}

// pad_width: before and after each dim. mode: constant (scalars {value}), edge, wrap or reflect.
void Pad(G& g) {
  V x = g.operand(0);
  const std::vector<int64_t>& width = g.attributes().Get(attribute::pad_width);
  if (width.size() != 2 * static_cast<size_t>(x.rank())) {
    return g.Refuse(StrCat(width.size(), " widths for ", x.rank(), " dims"));
  }
  for (const int64_t w : width) {
    if (w < 0) return g.Refuse(StrCat("a width is ", w));
  }
  const std::string& mode = g.attributes().Get(attribute::mode);
  if (mode.empty() || mode == "constant") {
    Placed placed{"scalar", x.spec().shape, {Shape()}, Shape(static_cast<size_t>(x.rank()), 1)};
    for (int d = 0; d < x.rank(); ++d) {
      const size_t at = static_cast<size_t>(d);
      placed.starts[0].push_back(width[2 * at]);
      if (__builtin_add_overflow(placed.shape[at], width[2 * at], &placed.shape[at]) ||
          __builtin_add_overflow(placed.shape[at], width[2 * at + 1], &placed.shape[at])) {
        return g.Refuse("an extent is beyond 64 bits");
      }
    }
    const Scalar value = g.scalars().empty() ? Scalar::Int(0) : g.scalars()[0];
    return g.Return(Place(g, placed, {x}, {std::get<Scalar>(g.AsType(value, x.dtype()).operand())}));
  }
  if (mode != "edge" && mode != "wrap" && mode != "reflect") {
    return g.Refuse(StrCat("mode is ", mode, ", not constant, edge, wrap or reflect"));
  }
  for (int64_t d = 0; d < x.rank(); ++d) {
    const int64_t extent = x.extent(d), before = width[2 * static_cast<size_t>(d)],
                  after = width[2 * static_cast<size_t>(d) + 1];
    if (before == 0 && after == 0) continue;
    if (mode == "edge" && extent > 0) {
      Shape left = x.spec().shape, right = left;
      left[static_cast<size_t>(d)] = before;
      right[static_cast<size_t>(d)] = after;
      x = SideBySide(
          g, {g.BroadcastTo(g.SliceDim(x, d, 0, 1), left), x, g.BroadcastTo(g.SliceDim(x, d, extent - 1, 1), right)},
          d);
    } else if (mode == "wrap" && before <= extent && after <= extent) {
      x = SideBySide(g, {g.SliceDim(x, d, extent - before, before), x, g.SliceDim(x, d, 0, after)}, d);
    } else if (mode == "reflect" && before < extent && after < extent) {
      x = SideBySide(g, {g.SliceDim(x, d, before, before, -1), x, g.SliceDim(x, d, extent - 2, after, -1)}, d);
    } else {
      return g.Refuse(StrCat("mode ", mode, " can't pad dim ", d, " of ", extent, " by ", before, " and ", after));
    }
  }
  g.Return(x);
}

// x with the elements at `index` (slices and integers, as of a slice op) replaced by the value, which is broadcast.
void Assign(G& g) {
  const V& x = g.operand(0);
  V value = g.operand(1);
  Placed placed{"input", {}, {Shape()}, {}};
  Shape region, indexed;  // of x's rank; as the index gives it
  std::vector<int64_t> flipped;
  for (const IndexItem& item : g.attributes().Get(attribute::index)) {
    if (item.kind == IndexItem::Kind::kNewAxis) {
      indexed.push_back(1);
      continue;
    }
    const bool is_slice = item.kind == IndexItem::Kind::kSlice;
    const int64_t size = is_slice ? item.size : 1;
    const bool is_backward = is_slice && item.step < 0 && size > 1;
    if (is_backward) flipped.push_back(static_cast<int64_t>(region.size()));
    const int64_t extent = x.extent(static_cast<int64_t>(region.size()));
    const int64_t start = is_backward ? item.start + item.step * (size - 1) : item.start;
    placed.starts[0].push_back(size == 0 ? 0 : std::min(start, extent));
    placed.step.push_back(size <= 1 ? 1 : std::abs(item.step));
    region.push_back(size);
    if (is_slice) indexed.push_back(size);
  }
  if (region.size() != x.spec().shape.size()) return g.Refuse("the index has another rank");
  if (value.is_tensor()) {
    value = g.AsType(value, x.dtype());
    // NumPy drops leading dims of extent 1 that the target doesn't have.
    while (!g.failed() && value.rank() > static_cast<int>(indexed.size()) && value.extent(0) == 1) {
      value = g.DropDims(value, {0});
    }
    const absl::StatusOr<Shape> fits = BroadcastShapes(value.spec().shape, indexed);
    if (!fits.ok() || *fits != indexed) {
      return g.Refuse(
          StrCat("a value of shape ", ToText(value.spec().shape), " doesn't broadcast to ", ToText(indexed)));
    }
    value = g.BroadcastTo(value, indexed);
  } else {
    const Scalar number = std::get<Scalar>(g.AsType(value, x.dtype()).operand());
    value = g.BroadcastTo(g.Full(x, x.dtype(), {}, number), indexed);
  }
  value = g.Reshape(value, region);
  for (const int64_t dim : flipped) value = g.SliceDim(value, dim, value.extent(dim) - 1, value.extent(dim), -1);
  if (!g.failed()) g.Return(Place(g, placed, {x, value}));
}

constexpr std::array kRows = {
    Composite(OpId::kConcat, "concat", 1, kMaxOperands, Concat, "concat(arrays, /, axis=0)",
              "Joins tensors along an existing axis.",
              "ts.concat([ts.asarray([1, 2]), ts.asarray([3])]).tolist() => [1, 2, 3]"),
    Composite(OpId::kStack, "stack", 1, kMaxOperands, Stack, "stack(arrays, /, axis=0)",
              "Joins tensors along a new axis.",
              "ts.stack([ts.asarray([1, 2]), ts.asarray([3, 4])]).tolist() => [[1, 2], [3, 4]]"),
    Composite(OpId::kUnstack, "unstack", 1, 1, Unstack, "unstack(x, /, axis=0)",
              "Gives the tensors that lie one after the other along an axis.",
              "[x.tolist() for x in ts.unstack(ts.asarray([[1, 2], [3, 4]]))] => [[1, 2], [3, 4]]"),
    Composite(OpId::kFlip, "flip", 1, 1, Flip, "flip(x, /, axis=None)",
              "Reverses the order of elements along the axes.", "ts.flip(ts.asarray([1, 2, 3])).tolist() => [3, 2, 1]"),
    Composite(OpId::kRoll, "roll", 1, 1, Roll, "roll(x, /, shift, *, axis=None)",
              "Moves elements along the axes; those that leave at the end come in at the start.",
              "ts.roll(ts.asarray([1, 2, 3]), 1).tolist() => [3, 1, 2]"),
    Composite(OpId::kTile, "tile", 1, 1, Tile, "tile(x, repetitions, /)",
              "Repeats the tensor as a whole along each axis.",
              "ts.tile(ts.asarray([1, 2]), (2,)).tolist() => [1, 2, 1, 2]", "repetitions: how often along each axis."),
    Composite(OpId::kRepeat, "repeat", 1, 1, Repeat, "repeat(x, repeats, /, axis=None)",
              "Repeats each element of a tensor along an axis.",
              "ts.repeat(ts.asarray([1, 2]), 2).tolist() => [1, 1, 2, 2]"),
    Composite(OpId::kPad, "pad", 1, 1, Pad, "pad(x, pad_width, /, *, mode='constant', constant_values=0)",
              "Adds elements before and after each axis; mode is constant, edge, wrap or reflect.",
              "ts.pad(ts.asarray([1, 2]), (1, 0)).tolist() => [0, 1, 2]"),
    Composite(OpId::kAssign, "assign", 2, 2, Assign, "x[index] = value",
              "Gives x with the elements at an index replaced by a value, which is broadcast and cast to x's dtype."),
};

}  // namespace

absl::Span<const OpRow> ArrangementRows() { return kRows; }

}  // namespace tessera::composites
