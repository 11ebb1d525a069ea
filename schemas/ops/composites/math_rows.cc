// Elementwise functions and statistics as graphs of other ops.

#include <array>
#include <cmath>
#include <numbers>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/composites/rows.h"
#include "schemas/ops/graph_builder.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/str_cat.h"

namespace tessera::composites {
namespace {

using G = GraphBuilder;
using V = GraphValue;

double NumberOr(const double* given, double otherwise) { return given == nullptr ? otherwise : *given; }

void Square(G& g) { g.Return(g.operand(0) * g.operand(0)); }
void Reciprocal(G& g) { g.Return(V(1) / g.operand(0)); }
void Positive(G& g) {
  const V& x = g.operand(0);
  if (x.dtype() == DType::kBool) return g.RefuseDType("needs a numeric dtype");
  if (Kind(x.dtype()) == DTypeKind::kComplex) return g.Return(g.Map(OpId::kConj, {g.Map(OpId::kConj, {x})}));
  g.Return(g.Map(OpId::kMaximum, {x, x}));
}
// The angle of the point (real, imag).
void Angle(G& g) {
  const V& x = g.operand(0);
  g.Return(g.Map(OpId::kAtan2, {g.Map(OpId::kImag, {x}), g.Map(OpId::kReal, {x})}));
}
// |x| ** 2, without a root.
V SquaredSize(G& g, const V& x) {
  if (Kind(x.dtype()) != DTypeKind::kComplex) return x * x;
  const V real = g.Map(OpId::kReal, {x}), imag = g.Map(OpId::kImag, {x});
  return real * real + imag * imag;
}
void Rsqrt(G& g) { g.Return(V(1.0) / g.Map(OpId::kSqrt, {g.operand(0)})); }
void Exp2(G& g) {
  const V x = g.AsFloat(g.operand(0));
  const bool is_complex = Kind(x.dtype()) == DTypeKind::kComplex;
  g.Return(is_complex ? g.Map(OpId::kExp, {x * V(std::numbers::ln2)}) : g.Map(OpId::kPow, {V(2.0), x}));
}

// clip(x, min, max): either bound may be left out; attribute mode says which there are. The dtype is x's.
void Clip(G& g) {
  V x = g.operand(0);
  const std::string& bounds = g.attributes().Get(attribute::mode);
  size_t next = 1;
  const DType dtype = x.dtype();
  const auto bound = [&](OpId op) {
    V limit = g.operand(next++);
    if (limit.is_tensor()) limit = g.AsType(limit, dtype);
    x = g.Map(op, {x, limit});
  };
  if (bounds != "max") bound(OpId::kMaximum);
  if (bounds != "min") bound(OpId::kMinimum);
  g.Return(x);
}

// log(x / (1 - x))
void Logit(G& g) {
  const V x = g.AsFloat(g.operand(0));
  g.Return(g.Map(OpId::kLog, {x / (V(1) - x)}));
}

void Lerp(G& g) { g.Return(g.operand(0) + g.operand(2) * (g.operand(1) - g.operand(0))); }

// |x1 - x2| <= atol + rtol |x2|, and equal infinities are close; scalars {rtol, atol}.
V Close(G& g) {
  V a = g.operand(0), b = g.operand(1);
  if (a.is_tensor()) a = g.AsFloat(a);
  if (b.is_tensor()) b = g.AsFloat(b);
  const Scalar rtol = g.scalars().size() > 0 ? g.scalars()[0] : Scalar::Float(1e-5);
  const Scalar atol = g.scalars().size() > 1 ? g.scalars()[1] : Scalar::Float(1e-8);
  const V size = b.is_tensor() ? g.Map(OpId::kAbs, {b}) : V(std::abs(std::get<Scalar>(b.operand()).AsComplex()));
  const V difference = g.Map(OpId::kAbs, {a - b});
  const V limit = size.is_tensor() ? V(atol) + V(rtol) * size
                                   : V(atol.AsDouble() + rtol.AsDouble() * std::get<Scalar>(size.operand()).AsDouble());
  const V near =
      g.Map(OpId::kLogicalAnd, {g.Map(OpId::kLessEqual, {difference, limit}), g.Map(OpId::kIsFinite, {difference})});
  return g.Map(OpId::kLogicalOr, {near, g.Map(OpId::kEqual, {a, b})});
}
void IsClose(G& g) { g.Return(Close(g)); }
void AllClose(G& g) { g.Return(g.Reduce(OpId::kAll, Close(g), g.DimsOf(g.operand(0)), Keep::kNo)); }

void CountNonzero(G& g) {
  const V& x = g.operand(0);
  const V truth = g.AsType(g.AsType(x, DType::kBool), DType::kI64);
  const Keep keep = g.attributes().Get(attribute::keepdims) ? Keep::kDims : Keep::kNo;
  g.Return(g.Reduce(OpId::kSum, truth, g.DimsOf(x), keep));
}

// Two passes: the mean, then the mean of squared differences from it (Chan, Golub, LeVeque, "Algorithms for computing
// the sample variance", 1983: the textbook two-pass form, which doesn't cancel).
V Variance(G& g) {
  const V x = g.AsFloat(g.operand(0));
  const Dims dims = g.DimsOf(x);
  const Keep keep = g.attributes().Get(attribute::keepdims) ? Keep::kDims : Keep::kNo;
  double count = 1;
  for (const int64_t dim : dims) count *= static_cast<double>(x.extent(dim));
  const double divisor = count - NumberOr(g.attributes().Get(attribute::correction), 0);
  // f16 and bf16 are computed in f32 and rounded once.
  const V wide = g.AsType(x, AccumulatedIn(x.dtype()));
  const V difference = wide - g.Reduce(OpId::kMean, wide, dims, Keep::kDims);
  const V sum = g.Reduce(OpId::kSum, SquaredSize(g, difference), dims, keep);
  return sum / V(std::max(divisor, 0.0));
}
void Var(G& g) { g.Return(g.AsType(Variance(g), FloatOf(g.operand(0)))); }
void Std(G& g) { g.Return(g.AsType(g.Map(OpId::kSqrt, {Variance(g)}), FloatOf(g.operand(0)))); }

// average(x, weights): sum(x * weights) / sum(weights)
void Average(G& g) {
  const V x = g.AsFloat(g.operand(0));
  const V weights = g.AsFloat(g.operand(1));
  const Dims dims = g.DimsOf(x);
  const Keep keep = g.attributes().Get(attribute::keepdims) ? Keep::kDims : Keep::kNo;
  const V whole = g.BroadcastTo(weights, x.spec().shape);
  g.Return(g.Reduce(OpId::kSum, x * whole, dims, keep) / g.Reduce(OpId::kSum, whole, dims, keep));
}

// The norm of vectors: ord is a number, inf or -inf as a text; 2 without it.
void VectorNorm(G& g) {
  const V x = g.AsFloat(g.operand(0));
  const Dims dims = g.DimsOf(x);
  const Keep keep = g.attributes().Get(attribute::keepdims) ? Keep::kDims : Keep::kNo;
  const std::string& text = g.attributes().Get(attribute::ord);
  const absl::StatusOr<Scalar> parsed = text.empty() ? absl::StatusOr<Scalar>(Scalar::Float(2)) : ParseScalar(text);
  if (!parsed.ok() || Kind(parsed->dtype()) == DTypeKind::kComplex) return g.Refuse(StrCat("ord is ", text));
  const double ord = parsed->AsDouble();
  const V size = g.Map(OpId::kAbs, {x});
  if (std::isinf(ord)) return g.Return(g.Reduce(ord > 0 ? OpId::kMax : OpId::kMin, size, dims, keep));
  if (ord == 0) {
    return g.Return(
        g.AsType(g.Reduce(OpId::kSum, g.AsType(g.AsType(x, DType::kBool), DType::kI64), dims, keep), FloatOf(x)));
  }
  if (ord == 1) return g.Return(g.Reduce(OpId::kSum, size, dims, keep));
  const V wide = g.AsType(x, AccumulatedIn(x.dtype()));
  if (ord == 2) {
    const V sum = g.Reduce(OpId::kSum, SquaredSize(g, wide), dims, keep);
    return g.Return(g.AsType(g.Map(OpId::kSqrt, {sum}), FloatOf(x)));
  }
  const V sum = g.Reduce(OpId::kSum, g.Map(OpId::kPow, {g.Map(OpId::kAbs, {wide}), V(ord)}), dims, keep);
  g.Return(g.AsType(g.Map(OpId::kPow, {sum, V(1 / ord)}), FloatOf(x)));
}

constexpr int64_t kMaxDifferences = 64;  // docs/limits.md: max_differences

// x[i + 1] - x[i] along one dim, n times (attribute k).
void Diff(G& g) {
  V x = g.operand(0);
  const int64_t dim = g.DimOf(x);
  const int64_t times = g.attributes().Get(attribute::k) == nullptr ? 1 : *g.attributes().Get(attribute::k);
  if (times < 0 || times > kMaxDifferences) {
    return g.Refuse(StrCat("n is ", times, "; from 0 to ", kMaxDifferences, " (max_differences)"));
  }
  const bool is_bool = x.dtype() == DType::kBool;
  for (int64_t i = 0; i < times && !g.failed(); ++i) {
    const int64_t extent = std::max<int64_t>(x.extent(dim) - 1, 0);
    const V after = g.SliceDim(x, dim, x.extent(dim) - extent, extent);
    const V before = g.SliceDim(x, dim, 0, extent);
    x = is_bool ? g.Map(OpId::kNotEqual, {after, before}) : after - before;
  }
  g.Return(x);
}

// The product of vectors of 3 along one dim, which is the same counted from the end; the others are broadcast.
void Cross(G& g) {
  const V &a = g.operand(0), &b = g.operand(1);
  const int64_t from_end = a.rank() - g.DimOf(a);
  if (g.failed()) return;
  if (a.extent(a.rank() - from_end) != 3 || b.extent(b.rank() - from_end) != 3) {
    return g.Refuse(StrCat("dim ", g.attributes().Get(attribute::dims)[0], " must have 3 elements"));
  }
  const auto at = [&](const V& x, int64_t i) { return g.SliceDim(x, x.rank() - from_end, i % 3, 1); };
  std::vector<V> parts;
  for (int64_t i = 0; i < 3; ++i) parts.push_back(at(a, i + 1) * at(b, i + 2) - at(a, i + 2) * at(b, i + 1));
  if (!g.failed()) g.Return(g.Concat(parts, parts[0].rank() - from_end));
}

// Compares the index along two dims: 1 where column - row has the relation to k.
V Triangle(G& g, OpId relation) {
  const V& x = g.operand(0);
  const int64_t k = g.attributes().Get(attribute::k) == nullptr ? 0 : *g.attributes().Get(attribute::k);
  const V row = g.Iota(x, x.rank() - 2, x.extent(x.rank() - 2));
  const V column = g.Iota(x, x.rank() - 1, x.extent(x.rank() - 1));
  return g.Map(relation, {column - row, V(k)});
}
void Triangular(G& g, OpId relation) {
  const V& x = g.operand(0);
  if (x.rank() < 2) return g.Refuse("needs at least 2 dims");
  const V zero = x.dtype() == DType::kBool ? V(Scalar::Bool(false)) : V(0);
  g.Return(g.Where(Triangle(g, relation), x, zero));
}
void Tril(G& g) { Triangular(g, OpId::kLessEqual); }
void Triu(G& g) { Triangular(g, OpId::kGreaterEqual); }

// The sum of the diagonal of the last two dims: elements off it count as 0.
void Trace(G& g) {
  const V& x = g.operand(0);
  if (x.rank() < 2) return g.Refuse("needs at least 2 dims");
  const V zero = x.dtype() == DType::kBool ? V(Scalar::Bool(false)) : V(0);
  const V kept = g.Where(Triangle(g, OpId::kEqual), x, zero);
  Attributes attributes;
  attributes.Set(attribute::dims, {x.rank() - 2, x.rank() - 1});
  if (g.attributes().Get(attribute::dtype) != nullptr)
    attributes.Set(attribute::dtype, *g.attributes().Get(attribute::dtype));
  g.Return(g.Call(OpId::kSum, std::move(attributes), {kept}));
}

// The diagonal of the last two dims, as the last dim: rows from the first on it, each at its column, which a sum over
// columns of zeros picks.
void Diagonal(G& g) {
  V x = g.operand(0);
  if (x.rank() < 2) return g.Refuse("needs at least 2 dims");
  const int64_t rows = x.extent(x.rank() - 2), columns = x.extent(x.rank() - 1);
  const int64_t k = g.attributes().Get(attribute::k) == nullptr ? 0 : *g.attributes().Get(attribute::k);
  const int64_t row = k < 0 ? std::min(-k, rows) : 0, column = k > 0 ? std::min(k, columns) : 0;
  const int64_t count = std::min(rows - row, columns - column);
  x = g.SliceDim(g.SliceDim(x, x.rank() - 2, row, count), x.rank() - 1, column, count);
  const bool is_bool = x.dtype() == DType::kBool;
  const V is_on = g.Map(OpId::kEqual, {g.Iota(x, x.rank() - 2, count), g.Iota(x, x.rank() - 1, count)});
  Attributes attributes;
  attributes.Set(attribute::dims, {x.rank() - 2});
  if (is_bool) return g.Return(g.Call(OpId::kAny, std::move(attributes), {g.Where(is_on, x, Scalar::Bool(false))}));
  attributes.Set(attribute::dtype, x.dtype());
  g.Return(g.Call(OpId::kSum, std::move(attributes), {g.Where(is_on, x, V(0))}));
}

constexpr std::array kRows = {
    MapComposite(OpId::kSquare, "square", 1, 1, Square, "square(x, /)", "Multiplies each element by itself.",
                 "ts.square(ts.asarray([2, 3])).tolist() => [4, 9]"),
    MapComposite(OpId::kReciprocal, "reciprocal", 1, 1, Reciprocal, "reciprocal(x, /)",
                 "Calculates 1 divided by each element; integers give f64.",
                 "ts.reciprocal(ts.asarray([2.0, 4.0])).tolist() => [0.5, 0.25]"),
    MapComposite(OpId::kPositive, "positive", 1, 1, Positive, "positive(x, /)", "Gives each element as it is.",
                 "ts.positive(ts.asarray([1, -2])).tolist() => [1, -2]"),
    MapComposite(OpId::kAngle, "angle", 1, 1, Angle, "angle(x, /)",
                 "Calculates the angle of each element in the complex plane; integers give f64.",
                 "ts.angle(ts.asarray([1.0, -1.0])).tolist() => [0.0, 3.141592653589793]"),
    MapComposite(OpId::kClip, "clip", 2, 3, Clip, "clip(x, /, min=None, max=None)",
                 "Gives each element, or the bound that it is beyond; NaN propagates.",
                 "ts.clip(ts.asarray([-3, 1, 9]), 0, 5).tolist() => [0, 1, 5]"),
    MapComposite(OpId::kRsqrt, "rsqrt", 1, 1, Rsqrt, "rsqrt(x, /)",
                 "Calculates 1 divided by the square root of each element.",
                 "ts.rsqrt(ts.asarray([4.0])).tolist() => [0.5]"),
    MapComposite(OpId::kExp2, "exp2", 1, 1, Exp2, "exp2(x, /)",
                 "Calculates 2 raised to each element; integers give f64.",
                 "ts.exp2(ts.asarray([3.0])).tolist() => [8.0]"),
    MapComposite(OpId::kLogit, "logit", 1, 1, Logit, "logit(x, /)", "Calculates log(x / (1 - x)) of each element.",
                 "ts.logit(ts.asarray([0.5])).tolist() => [0.0]"),
    MapComposite(OpId::kLerp, "lerp", 3, 3, Lerp, "lerp(x1, x2, weight, /)", "Gives x1 + weight * (x2 - x1).",
                 "ts.lerp(ts.asarray([0.0]), ts.asarray([10.0]), 0.25).tolist() => [2.5]"),
    MapComposite(OpId::kIsClose, "isclose", 2, 2, IsClose, "isclose(x1, x2, /, *, rtol=1e-05, atol=1e-08)",
                 "Tests for each element whether |x1 - x2| <= atol + rtol * |x2|; equal infinities are close.",
                 "ts.isclose(ts.asarray([1.0, 2.0]), ts.asarray([1.0, 2.1])).tolist() => [True, False]"),
    Composite(OpId::kAllClose, "allclose", 2, 2, AllClose, "allclose(x1, x2, /, *, rtol=1e-05, atol=1e-08)",
              "Tests whether all elements are close, as isclose says.",
              "ts.allclose(ts.asarray([1.0, 2.0]), ts.asarray([1.0, 2.0 + 1e-9])).item() => True"),
    Composite(OpId::kCountNonzero, "count_nonzero", 1, 1, CountNonzero,
              "count_nonzero(x, /, axis=None, *, keepdims=False)", "Counts the elements along the axes that are not 0.",
              "ts.count_nonzero(ts.asarray([0, 3, 0, 4])).item() => 2"),
    Composite(OpId::kVar, "var", 1, 1, Var, "var(x, /, axis=None, *, correction=0.0, keepdims=False)",
              "Calculates the variance over the axes: squared differences from the mean, divided by their number minus "
              "correction.",
              "ts.var(ts.asarray([1.0, 3.0])).item() => 1.0"),
    Composite(OpId::kStd, "std", 1, 1, Std, "std(x, /, axis=None, *, correction=0.0, keepdims=False)",
              "Calculates the standard deviation over the axes: the square root of var.",
              "ts.std(ts.asarray([1.0, 3.0])).item() => 1.0"),
    Composite(OpId::kAverage, "average", 2, 2, Average, "average(x, weights, /, axis=None, *, keepdims=False)",
              "Calculates the mean over the axes, in which each element counts by its weight.",
              "ts.average(ts.asarray([1.0, 4.0]), ts.asarray([3.0, 1.0])).item() => 1.75"),
    Composite(OpId::kVectorNorm, "vector_norm", 1, 1, VectorNorm,
              "vector_norm(x, /, axis=None, *, keepdims=False, ord=2)",
              "Calculates the norm of vectors along the axes: the ord-th root of the sum of |x| ** ord.",
              "ts.vector_norm(ts.asarray([3.0, 4.0])).item() => 5.0"),
    Composite(OpId::kDiff, "diff", 1, 1, Diff, "diff(x, /, axis=-1, *, n=1)",
              "Calculates the difference of each element and the one before it along an axis, n times.",
              "ts.diff(ts.asarray([1, 4, 9])).tolist() => [3, 5]"),
    Composite(OpId::kCross, "cross", 2, 2, Cross, "cross(x1, x2, /, axis=-1)",
              "Calculates the cross product of vectors of 3 elements along an axis.",
              "ts.cross(ts.asarray([1.0, 0.0, 0.0]), ts.asarray([0.0, 1.0, 0.0])).tolist() => [0.0, 0.0, 1.0]"),
    Composite(OpId::kTril, "tril", 1, 1, Tril, "tril(x, /, *, k=0)",
              "Gives the last two dims with zeros above the k-th diagonal.",
              "ts.tril(ts.asarray([[1, 2], [3, 4]])).tolist() => [[1, 0], [3, 4]]"),
    Composite(OpId::kTriu, "triu", 1, 1, Triu, "triu(x, /, *, k=0)",
              "Gives the last two dims with zeros below the k-th diagonal.",
              "ts.triu(ts.asarray([[1, 2], [3, 4]])).tolist() => [[1, 2], [0, 4]]"),
    Composite(OpId::kTrace, "trace", 1, 1, Trace, "trace(x, /, *, offset=0, dtype=None)",
              "Sums the offset-th diagonal of the last two dims.",
              "ts.trace(ts.asarray([[1, 2], [3, 4]])).item() => 5"),
    Composite(OpId::kDiagonal, "diagonal", 1, 1, Diagonal, "diagonal(x, /, *, offset=0)",
              "Gives the offset-th diagonal of the last two dims as the last dim.",
              "ts.diagonal(ts.asarray([[1, 2], [3, 4]])).tolist() => [1, 4]"),
};

}  // namespace

absl::Span<const OpRow> MathRows() { return kRows; }

}  // namespace tessera::composites
