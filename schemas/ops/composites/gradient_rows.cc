// Backward passes of rows: the gradients of the operands from the result's. Values of the forward pass that they need
// are computed again from its operands, or are its result. Pending terms are left where a sum goes over a dim that is
// sharded: gradients of weights are pending where rows are.

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>
#include <vector>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/composites/rows.h"
#include "schemas/ops/graph_builder.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/str_cat.h"

namespace tessera::composites {
namespace {

using G = GraphBuilder;
using V = GraphValue;

V Exp(const V& x) { return x.builder()->Map(OpId::kExp, {x}); }
// Over no dims it is a value of its own, too: no operand is a result.
V SumOver(const V& x, const Dims& dims, Keep keep) {
  GraphBuilder& g = *x.builder();
  return dims.empty() ? g.Reduce(OpId::kSum, g.ExpandDim(x, 0), {0}, Keep::kNo) : g.Reduce(OpId::kSum, x, dims, keep);
}
V MeanOver(const V& x, const Dims& dims) { return x.builder()->Reduce(OpId::kMean, x, dims, Keep::kDims); }
Dims AllDims(const V& x) {
  Dims all(static_cast<size_t>(x.rank()));
  std::iota(all.begin(), all.end(), int64_t{0});
  return all;
}
// In the dtype of the operand of that number.
V As(G& g, const V& value, size_t operand) { return g.AsType(value, g.operand(operand).dtype()); }

// ---- of each element: the gradient, and x or the result ----

void SiluBackward(G& g) {  // with s = sigmoid(x): s (1 + x (1 - s))
  const V x = Wide(g, g.operand(1));
  const V s = g.Map(OpId::kSigmoid, {x});
  g.Return(As(g, Wide(g, g.operand(0)) * (s * (x * (V(1.0) - s) + V(1.0))), 1));
}
// Phi(x) + x phi(x), the normal distribution's function and density; or the slope of the tanh form.
void GeluBackward(G& g) {
  const V x = Wide(g, g.operand(1)), gradient = Wide(g, g.operand(0));
  if (g.attributes().Get(attribute::approximate) == "tanh") {
    const double k = std::sqrt(2 / std::numbers::pi);
    const V square = x * x;
    const V t = g.Map(OpId::kTanh, {x * V(k) * (square * V(0.044715) + V(1.0))});
    const V slope = x * ((V(1.0) - t * t) * V(0.5 * k)) * (square * V(3 * 0.044715) + V(1.0));
    return g.Return(As(g, gradient * ((t + V(1.0)) * V(0.5) + slope), 1));
  }
  const V function = (g.Map(OpId::kErf, {x * V(1 / std::numbers::sqrt2)}) + V(1.0)) * V(0.5);
  const V density = Exp(x * x * V(-0.5)) * V(1 / std::sqrt(2 * std::numbers::pi));
  g.Return(As(g, gradient * (function + x * density), 1));
}
void SigmoidBackward(G& g) {
  const V& y = g.operand(1);
  g.Return(g.operand(0) * (y * (V(1.0) - y)));
}
void TanhBackward(G& g) {
  const V& y = g.operand(1);
  g.Return(g.operand(0) * (V(1.0) - y * y));
}
void ThresholdBackward(G& g) {
  g.Return(g.Where(g.Map(OpId::kLessEqual, {g.operand(1), V(NumberOf(g, 0, 0))}), V(0.0), g.operand(0)));
}
void LeakyReluBackward(G& g) {
  const V& gradient = g.operand(0);
  g.Return(g.Where(g.Map(OpId::kGreater, {g.operand(1), V(0.0)}), gradient, gradient * V(NumberOf(g, 0, 0.01))));
}

// ---- of norms: with n the normalised x and h = gradient * weight, dx = r (h - mean(h) - n mean(h n)) ----

enum class Centre : uint8_t { kNo = 0, kMean = 1 };

void NormBackward(G& g, Centre centre, double eps) {
  V x = Wide(g, g.operand(1));
  const V gradient = g.AsType(g.operand(0), x.dtype());
  const Dims dims = g.DimsOf(x);
  const auto lead = x.rank() - static_cast<int64_t>(dims.size());
  for (size_t i = 0; i < dims.size() && g.operand_count() > 2; ++i) {
    if (dims[i] != lead + static_cast<int64_t>(i))
      return g.Refuse("with a weight the normalised dims are the last ones");
  }
  if (centre == Centre::kMean) x = x - MeanOver(x, dims);
  const V r = g.Map(OpId::kRsqrt, {MeanOver(x * x, dims) + V(Eps(g, eps))});
  const V n = x * r;
  const bool has_weight = g.operand_count() > 2;
  const V h = has_weight ? gradient * g.AsType(g.operand(2), x.dtype()) : gradient;
  V inner = h - n * MeanOver(h * n, dims);
  if (centre == Centre::kMean) inner = inner - MeanOver(h, dims);
  std::vector<V> results = {As(g, inner * r, 1)};
  if (has_weight) {
    Dims rows(static_cast<size_t>(lead));
    std::iota(rows.begin(), rows.end(), int64_t{0});
    results.push_back(As(g, SumOver(gradient * n, rows, Keep::kNo), 2));
    if (centre == Centre::kMean) results.push_back(As(g, SumOver(gradient, rows, Keep::kNo), 2));
  }
  g.Return(std::move(results));
}
void LayerNormBackward(G& g) { NormBackward(g, Centre::kMean, 1e-5); }
void RmsNormBackward(G& g) { NormBackward(g, Centre::kNo, 1e-6); }

// ---- of softmax: y is its result ----

void SoftmaxBackward(G& g) {
  const V y = Wide(g, g.operand(1));
  const V product = g.AsType(g.operand(0), y.dtype()) * y;
  g.Return(As(g, product - y * SumOver(product, g.DimsOf(y), Keep::kDims), 1));
}
// total: the gradient's sum over the dims, where it is known.
void LogSoftmaxBackward(G& g) {
  const V y = Wide(g, g.operand(1));
  const V gradient = g.AsType(g.operand(0), y.dtype());
  const V total =
      g.operand_count() > 2 ? g.AsType(g.operand(2), y.dtype()) : SumOver(gradient, g.DimsOf(y), Keep::kDims);
  g.Return(As(g, gradient - Exp(y) * total, 1));
}

// ---- of losses by labels: classes may be sharded ----

// 0, 1, ... along the dim of the classes, of extent 1 elsewhere, in shards where x's classes are.
V ClassesOf(G& g, const V& x, int64_t dim) {
  Placements placements;
  for (const Placement& one : x.spec().placements) {
    placements.push_back(one.is_shard(static_cast<int>(dim)) ? one.OnDim(0) : Placement::Replicate());
  }
  Attributes attributes;
  attributes.Set(attribute::dtype, DType::kI64);
  attributes.Set(attribute::shape, {x.extent(dim)});
  attributes.Set(attribute::mesh, x.spec().mesh);
  attributes.Set(attribute::placements, std::move(placements));
  const V numbers = g.Call(OpId::kArange, std::move(attributes), {}, {Scalar::Int(0), Scalar::Int(1)});
  Shape shape(static_cast<size_t>(x.rank()), 1);
  shape[static_cast<size_t>(dim)] = x.extent(dim);
  return g.Reshape(numbers, shape);
}

struct Labelled {
  int64_t dim = 0;  // of the classes
  int64_t ignored = -100;
  V is_label{0};  // of x's shape: where the label of a row is the class and counts
  V counts{0};    // whether a row counts, with a dim of extent 1 for the classes
};

// The labels; the plan fails where one that counts is no class.
V CheckedLabels(G& g, const V& labels, int64_t classes, int64_t ignored) {
  Attributes says;
  says.Set(attribute::mode, "label");
  return g.Call(OpId::kCheckRange, std::move(says), {g.AsType(labels, DType::kI64)},
                {Scalar::Int(0), Scalar::Int(classes - 1), Scalar::Int(ignored)});
}

// Whether the call is one: x with a dim of classes, labels without. Refuses it otherwise.
enum class Labels : uint8_t { kChecked = 0, kKnown = 1 };
bool ReadLabels(G& g, const V& x, const V& given, Labels labels_are, Labelled* out) {
  out->dim = g.attributes().Get(attribute::dims).empty() ? x.rank() - 1 : g.attributes().Get(attribute::dims)[0];
  if (const int64_t* ignored = g.attributes().Get(attribute::ignore_index)) out->ignored = *ignored;
  if (x.rank() < 1 || out->dim < 0 || out->dim >= x.rank()) g.Refuse("needs a dim of classes");
  const DTypeKind kind = Kind(given.dtype());
  if (kind != DTypeKind::kSigned && kind != DTypeKind::kUnsigned) g.RefuseDType("labels need an integer dtype");
  if (given.rank() + 1 != x.rank()) g.Refuse("labels have one dim less than the classes' tensor");
  if (g.failed()) return false;
  const V labels = labels_are == Labels::kKnown ? g.AsType(given, DType::kI64)
                                                : CheckedLabels(g, given, x.extent(out->dim), out->ignored);
  if (g.failed()) return false;
  const V expanded = g.ExpandDim(labels, out->dim);
  out->counts = g.Map(OpId::kNotEqual, {expanded, V(out->ignored)});
  out->is_label = g.Map(OpId::kEqual, {expanded, ClassesOf(g, x, out->dim)});
  if (out->ignored >= 0 && out->ignored < x.extent(out->dim)) {
    out->is_label = g.Map(OpId::kLogicalAnd, {out->is_label, out->counts});
  }
  return true;
}

V AlongClasses(G& g, const V& weight, const V& x, int64_t dim) {
  Shape shape(static_cast<size_t>(x.rank()), 1);
  shape[static_cast<size_t>(dim)] = x.extent(dim);
  return g.Reshape(weight, shape);
}

// Sums along a dim within each shard of it, as a dim with an element for each: nothing is pending. Where shards are
// uneven, the pending sum.
V SumOfEachShard(G& g, const V& x, int64_t dim) {
  int64_t parts = 1;
  bool is_even = true;
  for (size_t d = 0; d < x.spec().placements.size(); ++d) {
    const Placement& one = x.spec().placements[d];
    if (!one.is_shard(static_cast<int>(dim))) continue;
    parts *= x.spec().mesh.shape()[d];
    is_even = is_even && !one.has_sizes();
  }
  if (!is_even || x.extent(dim) % parts != 0) return SumOver(x, {dim}, Keep::kDims);
  Shape shape = x.spec().shape;
  shape[static_cast<size_t>(dim)] = x.extent(dim) / parts;
  shape.insert(shape.begin() + dim, parts);
  return SumOver(g.Reshape(x, shape), {dim + 1}, Keep::kNo);
}

bool HasPartial(const V& x) {
  for (const Placement& one : x.spec().placements) {
    if (one.is_partial()) return true;
  }
  return false;
}
bool HasShard(const V& x) {
  for (const Placement& one : x.spec().placements) {
    if (one.is_shard()) return true;
  }
  return false;
}

// Both whole, reduced together: as one tensor of two elements, or by one op.
std::array<V, 2> Totals(G& g, const V& losses, const V& weights, int64_t dim) {
  if (!HasShard(losses) && !HasShard(weights)) {
    return {SumOver(losses, AllDims(losses), Keep::kNo), SumOver(weights, AllDims(weights), Keep::kNo)};
  }
  const V parts[] = {SumOfEachShard(g, losses, dim), SumOfEachShard(g, weights, dim)};
  const Placements whole(losses.spec().placements.size());
  Attributes moved;
  if (HasPartial(parts[0]) || HasPartial(parts[1]) || parts[0].spec().shape != parts[1].spec().shape) {
    moved.Set(attribute::placements_each, {whole, whole});
    const std::vector<V> both =
        g.CallAll(OpId::kRedistribute, std::move(moved),
                  {SumOver(parts[0], AllDims(parts[0]), Keep::kNo), SumOver(parts[1], AllDims(parts[1]), Keep::kNo)});
    return {both[0], both[both.size() - 1]};
  }
  Attributes first;
  first.Set(attribute::dims, {0});
  const V both = g.Call(OpId::kStack, std::move(first), {parts[0], parts[1]});
  Dims rest = AllDims(both);
  rest.erase(rest.begin());
  moved.Set(attribute::placements, whole);
  const V sums = g.Call(OpId::kRedistribute, std::move(moved), {SumOver(both, rest, Keep::kNo)});
  const auto at = [&](int64_t i) { return g.Slice(sums, {IndexItem{IndexItem::Kind::kInteger, i, 1, 1}}); };
  return {at(0), at(1)};
}

bool IsOfRows(const G& g) { return g.attributes().Get(attribute::reduction) == "none"; }
bool IsMean(const G& g) {
  return g.attributes().Get(attribute::reduction).empty() || g.attributes().Get(attribute::reduction) == "mean";
}

// nll_loss, and the sum of the weights by which a mean divides: two sums that are reduced together.
void NllLossAndWeight(G& g) {
  const V& x = g.operand(0);
  Labelled at;
  if (!ReadLabels(g, x, g.operand(1), Labels::kChecked, &at)) return;
  const bool has_weight = g.operand_count() > 2;
  const V weight = has_weight ? AlongClasses(g, g.operand(2), x, at.dim) : V(1.0);
  const V terms = g.Where(at.is_label, has_weight ? x * weight : x, V(0.0));
  if (IsOfRows(g)) {
    return g.Return({-SumOver(terms, {at.dim}, Keep::kNo), g.Full(x, x.dtype(), {}, Scalar::Float(0))});
  }
  const V weights = has_weight ? Wide(g, g.Where(at.is_label, weight, V(0.0))) : g.AsType(at.is_label, DType::kF32);
  const auto [top, count] = Totals(g, Wide(g, terms), weights, at.dim);
  g.Return({As(g, IsMean(g) ? -top / g.AsType(count, top.dtype()) : -top, 0), As(g, count, 0)});
}

// The gradient at a row's label: -weight * gradient, divided by the weights' sum for a mean. Without a weight also its
// sum over the classes, as log_softmax_backward takes it.
void NllLossBackward(G& g) {
  const V &x = g.operand(0), &gradient = g.operand(1), &count = g.operand(3);
  Labelled at;
  if (!ReadLabels(g, x, g.operand(2), Labels::kKnown, &at)) return;
  V scale = IsMean(g) ? -gradient / count : -gradient;
  if (IsOfRows(g)) scale = g.ExpandDim(scale, at.dim);
  if (g.operand_count() > 4) {
    return g.Return(As(g, g.Where(at.is_label, AlongClasses(g, g.operand(4), x, at.dim) * scale, V(0.0)), 0));
  }
  g.Return({As(g, g.Where(at.is_label, scale, V(0.0)), 0), As(g, g.Where(at.counts, scale, V(0.0)), 0)});
}

// ---- of an embedding: rows of the gradient are added up at their numbers ----

// Tokens that are sharded have a dim of their own for each mesh dim that cuts them: each worker adds up its own, and
// the sum over those dims is pending. Features that are sharded stay so.
void EmbeddingBackward(G& g) {
  const V& indices = g.operand(1);
  const int64_t rows =
      g.attributes().Get(attribute::num_classes) == nullptr ? -1 : *g.attributes().Get(attribute::num_classes);
  if (rows < 0) return g.Refuse(StrCat("num_classes is ", rows));
  const int64_t tokens = NumElements(indices.spec().shape);
  V flat = Wide(g, g.operand(0));
  if (flat.rank() != indices.rank() + 1) return g.Refuse("the gradient has one dim more than the indices");
  const int64_t features = flat.extent(flat.rank() - 1);
  flat = g.Reshape(flat, {tokens, features});
  V at = g.Reshape(indices, {tokens});
  if (g.attributes().Get(attribute::ignore_index) != nullptr && *g.attributes().Get(attribute::ignore_index) >= 0) {
    flat = g.Where(g.Map(OpId::kNotEqual, {g.ExpandDim(at, 1), V(*g.attributes().Get(attribute::ignore_index))}), flat,
                   V(0.0));
  }
  if (g.failed()) return;
  const Placements placements = flat.spec().placements;
  Shape extents;
  Placements zeros_placements(placements.size());
  int64_t parts = 1;
  bool is_even = true;
  for (size_t d = 0; d < placements.size(); ++d) {
    if (!placements[d].is_shard(0)) continue;
    is_even = is_even && !placements[d].has_sizes();
    parts *= flat.spec().mesh.shape()[d];
    zeros_placements[d] = Placement::Shard(static_cast<int>(extents.size()));
    extents.push_back(flat.spec().mesh.shape()[d]);
  }
  if (!is_even || tokens % parts != 0) {
    extents.clear();
    zeros_placements.assign(placements.size(), Placement::Replicate());
  }
  const auto lead = static_cast<int64_t>(extents.size());
  for (size_t d = 0; d < placements.size(); ++d) {
    if (placements[d].is_shard(1)) zeros_placements[d] = placements[d].OnDim(static_cast<int>(lead + 1));
  }
  Shape cut = extents, numbers = extents, sums = extents;
  cut.insert(cut.end(), {tokens / (lead > 0 ? parts : 1), features});
  numbers.push_back(tokens / (lead > 0 ? parts : 1));
  if (lead > 0) numbers.push_back(1);
  sums.insert(sums.end(), {rows, features});
  Attributes empty;
  empty.Set(attribute::dtype, flat.dtype());
  empty.Set(attribute::shape, sums);
  empty.Set(attribute::mesh, flat.spec().mesh);
  empty.Set(attribute::placements, std::move(zeros_placements));
  const V zeros = g.Call(OpId::kFull, std::move(empty), {}, {Scalar::Float(0)});
  Attributes adds;
  adds.Set(attribute::dims, {lead});
  adds.Set(attribute::mode, "add");
  const V added = g.Call(OpId::kScatter, std::move(adds), {zeros, g.Reshape(at, numbers), g.Reshape(flat, cut)});
  Dims over(static_cast<size_t>(lead));
  std::iota(over.begin(), over.end(), int64_t{0});
  g.Return(As(g, SumOver(added, over, Keep::kNo), 0));
}

// ---- of attention: batch and heads stay sharded ----

V Einsum(G& g, std::string notation, const V& a, const V& b) {
  Attributes attributes;
  attributes.Set(attribute::notation, std::move(notation));
  return g.Call(OpId::kEinsum, std::move(attributes), {a, b});
}

// Whole sequences go by an op that keeps no scores.
bool IsOneOp(G& g) {
  for (size_t i = 0; i < 4; ++i) {
    for (const Placement& placement : g.operand(i).spec().placements) {
      if (placement.is_shard(2) || placement.is_shard(3)) return false;
    }
  }
  return true;
}
// A mask of scores [batch, query heads, L, S] as one of [batch, heads, groups, L, S].
V GroupedMask(G& g, const V& mask, int64_t heads, int64_t groups) {
  if (mask.rank() < 3) return mask;
  Shape shape(static_cast<size_t>(4 - mask.rank()), 1);
  shape.insert(shape.end(), mask.spec().shape.begin(), mask.spec().shape.end());
  const bool is_of_heads = shape[1] > 1;
  return g.Reshape(mask, {shape[0], is_of_heads ? heads : 1, is_of_heads ? groups : 1, shape[2], shape[3]});
}
// Query heads that share a head of keys have a dim of their own. `mask_number`: that of a mask among the operands.
void AttentionBackwardByOp(G& g, double scale, size_t mask_number) {
  const V &query = g.operand(1), &key = g.operand(2), &value = g.operand(3);
  const int64_t heads = key.extent(1), groups = query.extent(1) / std::max<int64_t>(heads, 1);
  const auto grouped = [&](const V& x) {
    if (groups == 1) return x;
    Shape shape = {x.extent(0), heads, groups};
    for (int d = 2; d < x.rank(); ++d) shape.push_back(x.extent(d));
    return g.Reshape(x, shape);
  };
  std::vector<V> operands = {grouped(g.AsType(g.operand(0), query.dtype())), grouped(query), key, value};
  for (size_t i = operands.size(); i < mask_number; ++i) operands.push_back(grouped(g.operand(i)));
  if (g.operand_count() > mask_number) {
    const V& own = g.operand(mask_number);
    const V mask = groups == 1 ? own : GroupedMask(g, own, heads, groups);
    operands.push_back(mask.dtype() == DType::kBool ? mask : g.AsType(mask, AccumulatedIn(query.dtype())));
  }
  Attributes attributes;
  attributes.Set(attribute::is_causal, g.attributes().Get(attribute::is_causal));
  const OpId op = mask_number > 4 ? OpId::kAttentionGradientsOfResult : OpId::kAttentionGradients;
  const V all = g.Call(op, std::move(attributes), std::move(operands), {Scalar::Float(scale)});
  if (g.failed()) return;
  std::vector<V> results;
  int64_t start = 0;
  for (const V& of : {query, key, value}) {
    const Shape& shape = of.spec().shape;
    const int64_t size = shape[1] / std::max<int64_t>(heads, 1) * shape[2] * shape[3];
    results.push_back(g.Reshape(g.SliceDim(all, 2, start, size), shape));
    start += size;
  }
  g.Return(std::move(results));
}

// With p = softmax(scores): dv = p.T g, dp = g v.T, ds = p (dp - sum(dp p)) scale, dq = ds k, dk = ds.T q. Query heads
// that share a head of keys have a dim of their own, over which that head's gradients are sums.
// Where rows are cut, a known result is of no use.
void AttentionBackwardOf(G& g, size_t mask_number) {
  const V &query = g.operand(1), &key = g.operand(2), &value = g.operand(3);
  if (query.rank() != 4 || key.rank() != 4 || value.rank() != 4 || g.operand(0).rank() != 4) {
    return g.Refuse("takes (batch, heads, sequence, features)");
  }
  const int64_t batch = query.extent(0), heads = key.extent(1), groups = query.extent(1) / std::max<int64_t>(heads, 1);
  if (heads != value.extent(1) || heads * groups != query.extent(1)) return g.Refuse("the heads don't divide");
  const bool has_mask = g.operand_count() > mask_number;
  if (has_mask && g.operand(mask_number).rank() > 4) return g.Refuse("attn_mask has more than 4 dims");
  if (mask_number > 4 && (g.operand(4).rank() != 4 || g.operand(5).rank() != 3)) {
    return g.Refuse("takes a result (batch, heads, sequence, features) and logarithms (batch, heads, sequence)");
  }
  const double scale = NumberOf(g, 0, 1 / std::sqrt(static_cast<double>(std::max<int64_t>(query.extent(3), 1))));
  if (IsOneOp(g)) return AttentionBackwardByOp(g, scale, mask_number);
  const int64_t rows = query.extent(2), columns = key.extent(2);
  const V q = g.Reshape(Wide(g, query), {batch, heads, groups, rows, query.extent(3)});
  const V gradient = g.Reshape(Wide(g, g.operand(0)), {batch, heads, groups, rows, value.extent(3)});
  const V k = Wide(g, key), v = Wide(g, value);
  V scores = Einsum(g, "bhgqd,bhkd->bhgqk", q, k) * V(scale);
  if (g.attributes().Get(attribute::is_causal)) {
    const V reaches = g.Map(OpId::kGreaterEqual,
                            {g.Reshape(g.Iota(q, 3, rows), {rows, 1}), g.Reshape(g.Iota(q, 3, columns), {columns})});
    scores = g.Where(reaches, scores, V(-HUGE_VAL));
  }
  if (has_mask) {
    const V mask = GroupedMask(g, g.operand(mask_number), heads, groups);
    scores =
        mask.dtype() == DType::kBool ? g.Where(mask, scores, V(-HUGE_VAL)) : scores + g.AsType(mask, scores.dtype());
  }
  Attributes last;
  last.Set(attribute::dims, {4});
  const V p = g.Call(OpId::kSoftmax, std::move(last), {scores});
  const V dv = Einsum(g, "bhgqk,bhgqd->bhkd", p, gradient);
  const V product = Einsum(g, "bhgqd,bhkd->bhgqk", gradient, v) * p;
  const V ds = (product - p * SumOver(product, {4}, Keep::kDims)) * V(scale);
  const V dq = g.Reshape(Einsum(g, "bhgqk,bhkd->bhgqd", ds, k), query.spec().shape);
  const V dk = Einsum(g, "bhgqk,bhgqd->bhkd", ds, q);
  g.Return({As(g, dq, 1), As(g, dk, 2), As(g, dv, 3)});
}
void AttentionBackward(G& g) { AttentionBackwardOf(g, 4); }
void AttentionBackwardOfResult(G& g) { AttentionBackwardOf(g, 6); }

constexpr OpRow kRows[] = {
    MapComposite(OpId::kSiluBackward, "silu_backward", 2, 2, SiluBackward, "silu_backward(gradient, x, /)",
                 "The gradient of silu's x, of the gradient of its result.",
                 "ts.silu_backward(ts.ones((2,)), ts.zeros((2,))).tolist() => [0.5, 0.5]"),
    MapComposite(OpId::kGeluBackward, "gelu_backward", 2, 2, GeluBackward,
                 "gelu_backward(gradient, x, /, *, approximate='none')",
                 "The gradient of gelu's x, of the gradient of its result.",
                 "ts.gelu_backward(ts.ones((2,)), ts.zeros((2,))).tolist() => [0.5, 0.5]"),
    MapComposite(OpId::kSigmoidBackward, "sigmoid_backward", 2, 2, SigmoidBackward, "sigmoid_backward(gradient, x, /)",
                 "The gradient of sigmoid's operand; x is its result.",
                 "ts.sigmoid_backward(ts.ones((2,)), ts.asarray([0.5, 1.0])).tolist() => [0.25, 0.0]"),
    MapComposite(OpId::kTanhBackward, "tanh_backward", 2, 2, TanhBackward, "tanh_backward(gradient, x, /)",
                 "The gradient of tanh's operand; x is its result.",
                 "ts.tanh_backward(ts.ones((2,)), ts.asarray([0.5, 1.0])).tolist() => [0.75, 0.0]"),
    MapComposite(OpId::kThresholdBackward, "threshold_backward", 2, 2, ThresholdBackward,
                 "threshold_backward(gradient, x, /, *, threshold=0.0)",
                 "The gradient, 0 where x is at most the threshold: that of relu.",
                 "ts.threshold_backward(ts.ones((2,)), ts.asarray([-1.0, 1.0])).tolist() => [0.0, 1.0]"),
    MapComposite(
        OpId::kLeakyReluBackward, "leaky_relu_backward", 2, 2, LeakyReluBackward,
        "leaky_relu_backward(gradient, x, /, *, negative_slope=0.01)",
        "The gradient, times negative_slope where x is not positive: that of leaky_relu.",
        "ts.leaky_relu_backward(ts.ones((2,)), ts.asarray([-1.0, 1.0]), negative_slope=0.5).tolist() => [0.5, 1.0]"),
    Composite(OpId::kLayerNormBackward, "layer_norm_backward", 2, 3, LayerNormBackward,
              "layer_norm_backward(gradient, x, weight=None, /, *, axis=-1, eps=1e-05)",
              "The gradient of layer_norm's x; with a weight also of it and of a bias.",
              "[x.shape for x in ts.layer_norm_backward(ts.ones((3, 2)), ts.ones((3, 2)), ts.ones((2,)))] => [(3, 2), "
              "(2,), (2,)]"),
    Composite(
        OpId::kRmsNormBackward, "rms_norm_backward", 2, 3, RmsNormBackward,
        "rms_norm_backward(gradient, x, weight=None, /, *, axis=-1, eps=1e-06)",
        "The gradient of rms_norm's x; with a weight also of it.",
        "[x.shape for x in ts.rms_norm_backward(ts.ones((3, 2)), ts.ones((3, 2)), ts.ones((2,)))] => [(3, 2), (2,)]"),
    Composite(OpId::kSoftmaxBackward, "softmax_backward", 2, 2, SoftmaxBackward,
              "softmax_backward(gradient, x, /, *, axis=-1)", "The gradient of softmax's operand; x is its result.",
              "ts.softmax_backward(ts.asarray([1.0, 0.0]), ts.asarray([0.5, 0.5])).tolist() => [0.25, -0.25]"),
    Composite(
        OpId::kLogSoftmaxBackward, "log_softmax_backward", 2, 3, LogSoftmaxBackward,
        "log_softmax_backward(gradient, x, total=None, /, *, axis=-1)",
        "The gradient of log_softmax's operand; x is its result, total the gradient's sum along axis where it is "
        "known.",
        "ts.log_softmax_backward(ts.asarray([1.0, 0.0]), ts.log(ts.asarray([0.5, 0.5]))).tolist() => [0.5, -0.5]"),
    Composite(OpId::kNllLossAndWeight, "nll_loss_and_weight", 2, 3, NllLossAndWeight,
              "nll_loss_and_weight(x, labels, weight=None, /, *, axis=-1, reduction='mean', ignore_index=-100)",
              "nll_loss with the classes along axis, and the sum of weights by which its mean divides (0 with 'none').",
              "[x.item() for x in ts.nll_loss_and_weight(ts.asarray([[-1.0, -2.0], [-3.0, -4.0]]), ts.asarray([0, "
              "1]))] => [2.5, 2.0]"),
    Composite(OpId::kNllLossBackward, "nll_loss_backward", 4, 5, NllLossBackward,
              "nll_loss_backward(x, gradient, labels, total, weight=None, /, *, axis=-1, reduction='mean', "
              "ignore_index=-100)",
              "The gradient of nll_loss's x, total the sum of weights; without a weight also its sum along axis.",
              "ts.nll_loss_backward(ts.asarray([[-1.0, -2.0]]), ts.asarray(1.0), ts.asarray([0]), "
              "ts.asarray(1.0))[0].tolist() => [[-1.0, 0.0]]"),
    Composite(OpId::kEmbeddingBackward, "embedding_backward", 2, 2, EmbeddingBackward,
              "embedding_backward(gradient, indices, /, *, num_classes, ignore_index=-1)",
              "The gradient of an embedding's weight, of num_classes rows: those of the gradient, added up at their "
              "indices.",
              "ts.embedding_backward(ts.ones((3, 1)), ts.asarray([0, 2, 0]), num_classes=3).tolist() => [[2.0], [0.0], "
              "[1.0]]"),
    Composite(OpId::kAttentionBackward, "scaled_dot_product_attention_backward", 4, 5, AttentionBackward,
              "scaled_dot_product_attention_backward(gradient, query, key, value, attn_mask=None, /, *, "
              "is_causal=False, scale=None)",
              "The gradients of attention's query, key and value; several heads of the query may share one of key and "
              "value.",
              "[x.shape for x in ts.scaled_dot_product_attention_backward(*[ts.ones((1, 1, 3, 2)) for _ in range(4)])] "
              "=> [(1, 1, 3, 2), (1, 1, 3, 2), (1, 1, 3, 2)]"),
    Composite(OpId::kAttentionBackwardOfResult, "scaled_dot_product_attention_backward_of_result", 6, 7,
              AttentionBackwardOfResult,
              "scaled_dot_product_attention_backward_of_result(gradient, query, key, value, result, logarithms, "
              "attn_mask=None, /, *, is_causal=False, scale=None)",
              "The gradients of attention's query, key and value, where its result and logarithms are known; a GPU "
              "multiplies five times then, seven times without.",
              "[x.shape for x in ts.scaled_dot_product_attention_backward_of_result(*[ts.ones((1, 1, 3, 2))] * 5, "
              "ts.ones((1, 1, 3)))] => [(1, 1, 3, 2), (1, 1, 3, 2), (1, 1, 3, 2)]"),
};

}  // namespace

absl::Span<const OpRow> GradientRows() { return kRows; }

}  // namespace tessera::composites
