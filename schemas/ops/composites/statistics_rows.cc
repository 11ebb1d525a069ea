// NumPy's elementwise functions and statistics, besides the array API's, as graphs of other ops.

#include <array>
#include <cmath>
#include <limits>
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

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

bool IsComplex(const V& x) { return Kind(x.dtype()) == DTypeKind::kComplex; }
V IsNaN(G& g, const V& x) { return g.Map(OpId::kIsNan, {x}); }
// A number beside `like` as a tensor, of the dtype that the two have together.
V AsTensor(G& g, const V& x, const V& like) {
  return x.is_tensor() ? x : g.Where(g.Full(like, DType::kBool, {}, Scalar::Bool(true)), x, like);
}

// ---- elementwise ---------------------------------------------------------------------------------------------------

void Heaviside(G& g) {
  const V x = g.AsFloat(AsTensor(g, g.operand(0), g.operand(1)));
  V middle = g.operand(1);
  if (middle.is_tensor()) middle = g.AsFloat(middle);
  const V step = g.AsType(g.Map(OpId::kGreater, {x, V(0)}), x.dtype());
  g.Return(g.Where(g.Map(OpId::kEqual, {x, V(0)}), middle, g.Where(IsNaN(g, x), x, step)));
}

// sin(pi x) / (pi x); beside 0, where it is 1, at a number whose sine is itself.
void Sinc(G& g) {
  const V x = g.AsFloat(g.operand(0));
  const double least = x.dtype() == DType::kF16 ? 1e-7 : 1e-20;
  const V y = g.Where(g.Map(OpId::kEqual, {x, V(0)}), V(least), x) * V(std::numbers::pi);
  g.Return(g.Map(OpId::kSin, {y}) / y);
}

void Scaled(G& g, double factor) {
  if (IsComplex(g.operand(0))) return g.RefuseDType("needs a real dtype");
  g.Return(g.AsFloat(g.operand(0)) * V(factor));
}
void DegToRad(G& g) { Scaled(g, std::numbers::pi / 180); }
void RadToDeg(G& g) { Scaled(g, 180 / std::numbers::pi); }

// The remainder that has the sign of the dividend, as C's. That of floats is exact of what they are without signs.
void Fmod(G& g) {
  const V a = AsTensor(g, g.operand(0), g.operand(1)), b = AsTensor(g, g.operand(1), g.operand(0));
  if (Kind(a.dtype()) == DTypeKind::kFloat || Kind(b.dtype()) == DTypeKind::kFloat) {
    const V rest = g.Map(OpId::kRemainder, {g.Map(OpId::kAbs, {a}), g.Map(OpId::kAbs, {b})});
    return g.Return(g.Map(OpId::kCopySign, {rest, g.AsType(a, rest.dtype())}));
  }
  const V rest = g.Map(OpId::kRemainder, {a, b});
  const V is_other = g.Map(OpId::kNotEqual, {g.Map(OpId::kLess, {a, V(0)}), g.Map(OpId::kLess, {rest, V(0)})});
  const V is_beyond = g.Map(OpId::kLogicalAnd, {g.Map(OpId::kNotEqual, {rest, V(0)}), is_other});
  g.Return(g.Where(is_beyond, rest - b, rest));
}

// maximum and minimum propagate a NaN; here the other operand counts where one is.
void Extreme(G& g, OpId op) {
  const V a = g.operand(0).is_tensor() ? g.operand(0) : g.operand(1);
  const V b = g.operand(0).is_tensor() ? g.operand(1) : g.operand(0);
  const V extreme = g.Map(op, {a, b});
  g.Return(g.Where(IsNaN(g, a), b, g.Where(IsNaN(g, extreme), a, extreme)));
}
void Fmax(G& g) { Extreme(g, OpId::kMaximum); }
void Fmin(G& g) { Extreme(g, OpId::kMinimum); }

void FloatPower(G& g) {
  const auto wide = [&](const V& x) {
    return x.is_tensor() ? g.AsType(x, IsComplex(x) ? DType::kC128 : DType::kF64) : x;
  };
  g.Return(g.Map(OpId::kPow, {wide(g.operand(0)), wide(g.operand(1))}));
}

// |a| / gcd |b|; 0 where both are 0, whose quotient is.
void Lcm(G& g) {
  const V &a = g.operand(0), &b = g.operand(1);
  const V divisor = g.Map(OpId::kGcd, {a, b});
  g.Return(g.Map(OpId::kAbs, {g.Map(OpId::kFloorDivide, {a, divisor}) * b}));
}

double LargestOf(DType dtype) {
  switch (dtype) {
    case DType::kF16: return 65504;
    case DType::kBF16: return 0x1.fep127;
    case DType::kF32: return std::numeric_limits<float>::max();
    default: return std::numeric_limits<double>::max();
  }
}
// Scalars: what stands for NaN, inf and -inf; by default 0 and the largest numbers.
void NanToNum(G& g) {
  const V& x = g.operand(0);
  const size_t count = g.scalars().size();
  const auto replaced = [&](const V& part) {
    const double largest = LargestOf(part.dtype());
    const V nan = count > 0 ? V(g.scalars()[0]) : V(0.0);
    const V above = count > 1 ? V(g.scalars()[1]) : V(largest), below = count > 2 ? V(g.scalars()[2]) : V(-largest);
    const V of_infinities = g.Where(g.Map(OpId::kEqual, {part, V(kInfinity)}), above,
                                    g.Where(g.Map(OpId::kEqual, {part, V(-kInfinity)}), below, part));
    return g.Where(IsNaN(g, part), nan, of_infinities);
  };
  if (IsComplex(x)) {
    const V real = replaced(g.Map(OpId::kReal, {x})), imag = replaced(g.Map(OpId::kImag, {x}));
    return g.Return(g.Map(OpId::kComplex, {real, imag}));
  }
  if (Kind(x.dtype()) != DTypeKind::kFloat) return g.RefuseDType("integers have neither NaN nor infinities");
  g.Return(replaced(x));
}

void Addcmul(G& g) {
  const V product = g.operand(1) * g.operand(2);
  g.Return(g.operand(0) + (g.operand_count() > 3 ? product * g.operand(3) : product));
}
void Addcdiv(G& g) {
  const V quotient = g.operand(1) / g.operand(2);
  g.Return(g.operand(0) + (g.operand_count() > 3 ? quotient * g.operand(3) : quotient));
}

// ---- reductions that leave NaN out ---------------------------------------------------------------------------------

Keep KeepOf(G& g) { return g.attributes().Get(attribute::keepdims) ? Keep::kDims : Keep::kNo; }
bool MayBeNaN(const V& x) { return Kind(x.dtype()) == DTypeKind::kFloat || IsComplex(x); }
// x with another number where it is NaN.
V Without(G& g, const V& x, const V& number) { return MayBeNaN(x) ? g.Where(IsNaN(g, x), number, x) : x; }

void NanFold(G& g, OpId op, int neutral) {
  const V& x = g.operand(0);
  Attributes attributes;
  attributes.Set(attribute::dims, g.DimsOf(x));
  attributes.Set(attribute::keepdims, g.attributes().Get(attribute::keepdims));
  if (g.attributes().Get(attribute::dtype) != nullptr)
    attributes.Set(attribute::dtype, *g.attributes().Get(attribute::dtype));
  g.Return(g.Call(op, std::move(attributes), {Without(g, x, V(neutral))}));
}
void NanSum(G& g) { NanFold(g, OpId::kSum, 0); }
void NanProd(G& g) { NanFold(g, OpId::kProd, 1); }

// NaN of what is NaN alone.
void NanExtreme(G& g, OpId op, double beyond) {
  const V& x = g.operand(0);
  const Dims dims = g.DimsOf(x);
  const V extreme = g.Reduce(op, Without(g, x, V(beyond)), dims, KeepOf(g));
  if (!MayBeNaN(x)) return g.Return(extreme);
  g.Return(g.Where(g.Reduce(OpId::kAll, IsNaN(g, x), dims, KeepOf(g)), V(kNaN), extreme));
}
void NanMax(G& g) { NanExtreme(g, OpId::kMax, -kInfinity); }
void NanMin(G& g) { NanExtreme(g, OpId::kMin, kInfinity); }

// How many there are along the dims that aren't NaN, in f64.
V CountOf(G& g, const V& x, const Dims& dims, Keep keep) {
  const V counts = g.AsType(g.Map(OpId::kLogicalNot, {IsNaN(g, x)}), DType::kI64);
  return g.AsType(g.Reduce(OpId::kSum, counts, dims, keep), DType::kF64);
}
V MeanOf(G& g, const V& x, const Dims& dims, Keep keep) {
  return g.AsType(g.Reduce(OpId::kSum, Without(g, x, V(0)), dims, keep) / CountOf(g, x, dims, keep), x.dtype());
}
void NanMean(G& g) {
  const V x = g.AsFloat(g.operand(0));
  g.Return(g.AsType(MeanOf(g, g.AsType(x, AccumulatedIn(x.dtype())), g.DimsOf(x), KeepOf(g)), x.dtype()));
}

// Two passes, as var's; NaN where there are no more numbers than are taken off.
V NanVariance(G& g) {
  const V x = g.AsFloat(g.operand(0));
  const Dims dims = g.DimsOf(x);
  const double correction =
      g.attributes().Get(attribute::correction) == nullptr ? 0 : *g.attributes().Get(attribute::correction);
  const V wide = g.AsType(x, AccumulatedIn(x.dtype()));
  // A difference that an infinity makes NaN counts.
  const V difference = g.Where(IsNaN(g, wide), V(0), wide - MeanOf(g, wide, dims, Keep::kDims));
  const V conjugate = IsComplex(x) ? g.Map(OpId::kConj, {difference}) : difference;
  V squares = difference * conjugate;
  if (IsComplex(x)) squares = g.Map(OpId::kReal, {squares});
  const V divisor = CountOf(g, x, dims, KeepOf(g)) - V(correction);
  const V variance = g.Reduce(OpId::kSum, squares, dims, KeepOf(g)) / divisor;
  return g.Where(g.Map(OpId::kLessEqual, {divisor, V(0)}), V(kNaN), variance);
}
void NanVar(G& g) { g.Return(g.AsType(NanVariance(g), FloatOf(g.operand(0)))); }
void NanStd(G& g) { g.Return(g.AsType(g.Map(OpId::kSqrt, {NanVariance(g)}), FloatOf(g.operand(0)))); }

// ---- others --------------------------------------------------------------------------------------------------------

void Ptp(G& g) {
  const V& x = g.operand(0);
  const Dims dims = g.DimsOf(x);
  g.Return(g.Reduce(OpId::kMax, x, dims, KeepOf(g)) - g.Reduce(OpId::kMin, x, dims, KeepOf(g)));
}

// Each dim of x1 stands before the one of x2 that it is multiplied with, and the two become one.
void Kron(G& g) {
  const V &a = g.operand(0), &b = g.operand(1);
  if (!a.is_tensor() || !b.is_tensor()) return g.Return(a * b);
  const int rank = std::max(a.rank(), b.rank());
  Shape spread_a, spread_b, merged;
  for (int d = 0; d < rank; ++d) {
    const int of_a = d - (rank - a.rank()), of_b = d - (rank - b.rank());
    const int64_t rows = of_a < 0 ? 1 : a.extent(of_a), columns = of_b < 0 ? 1 : b.extent(of_b);
    spread_a.insert(spread_a.end(), {rows, 1});
    spread_b.insert(spread_b.end(), {1, columns});
    merged.push_back(rows * columns);
  }
  g.Return(g.Reshape(g.Reshape(a, spread_a) * g.Reshape(b, spread_b), merged));
}

// Covariance of rows that are variables, columns that are observations.
void Cov(G& g) {
  const V& given = g.operand(0);
  if (given.rank() != 2) return g.Refuse("needs a row for each variable, and 2 dims");
  const V x = g.AsType(given, IsComplex(given) ? DType::kC128 : DType::kF64);
  const double correction =
      g.attributes().Get(attribute::correction) == nullptr ? 1 : *g.attributes().Get(attribute::correction);
  const double count = std::max(static_cast<double>(x.extent(1)) - correction, 0.0);
  const V difference = x - g.Reduce(OpId::kMean, x, {1}, Keep::kDims);
  const V transposed = g.Permute(difference, {1, 0});
  const V conjugate = IsComplex(x) ? g.Map(OpId::kConj, {transposed}) : transposed;
  g.Return(g.Map(OpId::kMatmul, {difference, conjugate}) * V(1 / count));
}

constexpr std::array kRows = {
    MapComposite(OpId::kHeaviside, "heaviside", 2, 2, Heaviside, "heaviside(x1, x2, /)",
                 "Gives 0 where x1 is negative, 1 where it is positive, and x2 where it is 0; integers give f64.",
                 "ts.heaviside(ts.asarray([-1.0, 0.0, 2.0]), 0.5).tolist() => [0.0, 0.5, 1.0]"),
    MapComposite(OpId::kSinc, "sinc", 1, 1, Sinc, "sinc(x, /)",
                 "Calculates sin(pi x) / (pi x) of each element, 1 of 0; integers give f64.",
                 "ts.sinc(ts.asarray([0.0])).tolist() => [1.0]"),
    MapComposite(OpId::kDegToRad, "deg2rad", 1, 1, DegToRad, "deg2rad(x, /)",
                 "Converts degrees to radians; integers give f64.",
                 "ts.deg2rad(ts.asarray([180.0])).tolist() => [3.141592653589793]"),
    MapComposite(OpId::kRadToDeg, "rad2deg", 1, 1, RadToDeg, "rad2deg(x, /)",
                 "Converts radians to degrees; integers give f64.",
                 "ts.rad2deg(ts.asarray([np.pi])).tolist() => [180.0]"),
    MapComposite(OpId::kFmod, "fmod", 2, 2, Fmod, "fmod(x1, x2, /)",
                 "Gives the remainder of the quotient rounded to 0, which has the sign of x1's element.",
                 "ts.fmod(ts.asarray([7, -7]), 3).tolist() => [1, -1]"),
    MapComposite(
        OpId::kFmax, "fmax", 2, 2, Fmax, "fmax(x1, x2, /)",
        "Computes the larger of each element of x1 and the respective element of x2, or the one that isn't NaN.",
        "ts.fmax(ts.asarray([1.0, float(\"nan\")]), 0.5).tolist() => [1.0, 0.5]"),
    MapComposite(OpId::kFmin, "fmin", 2, 2, Fmin, "fmin(x1, x2, /)",
                 "Computes the smaller of each element of x1 and the respective element of x2, or the one that isn't "
                 "NaN.",
                 "ts.fmin(ts.asarray([1.0, float(\"nan\")]), 0.5).tolist() => [0.5, 0.5]"),
    MapComposite(OpId::kFloatPower, "float_power", 2, 2, FloatPower, "float_power(x1, x2, /)",
                 "Raises each element of x1 to the power of the respective element of x2, in f64 or c128.",
                 "ts.float_power(ts.asarray([2, 3]), -1).tolist() => [0.5, 0.3333333333333333]"),
    MapComposite(OpId::kLcm, "lcm", 2, 2, Lcm, "lcm(x1, x2, /)",
                 "Calculates the least common multiple of each element of x1 and the respective element of x2.",
                 "ts.lcm(ts.asarray([4, 5]), 6).tolist() => [12, 30]"),
    MapComposite(OpId::kNanToNum, "nan_to_num", 1, 1, NanToNum,
                 "nan_to_num(x, /, *, nan=0.0, posinf=None, neginf=None)",
                 "Gives each element, or a number where it is NaN or infinite; by default 0 and the largest numbers.",
                 "ts.nan_to_num(ts.asarray([1.0, float(\"nan\")])).tolist() => [1.0, 0.0]"),
    MapComposite(OpId::kAddcmul, "addcmul", 3, 4, Addcmul, "addcmul(x, x1, x2, value=1)",
                 "Gives x + value * x1 * x2 of each element.",
                 "ts.addcmul(ts.asarray([1.0]), ts.asarray([4.0]), ts.asarray([2.0]), value=0.5).tolist() => [5.0]"),
    MapComposite(OpId::kAddcdiv, "addcdiv", 3, 4, Addcdiv, "addcdiv(x, x1, x2, value=1)",
                 "Gives x + value * x1 / x2 of each element.",
                 "ts.addcdiv(ts.asarray([1.0]), ts.asarray([4.0]), ts.asarray([2.0]), value=0.5).tolist() => [2.0]"),
    Composite(OpId::kNanSum, "nansum", 1, 1, NanSum, "nansum(x, /, axis=None, *, dtype=None, keepdims=False)",
              "Calculates the sum over the axes, in which NaN counts as 0.",
              "ts.nansum(ts.asarray([1.0, float(\"nan\"), 3.0])).item() => 4.0"),
    Composite(OpId::kNanProd, "nanprod", 1, 1, NanProd, "nanprod(x, /, axis=None, *, dtype=None, keepdims=False)",
              "Calculates the product over the axes, in which NaN counts as 1.",
              "ts.nanprod(ts.asarray([2.0, float(\"nan\"), 3.0])).item() => 6.0"),
    Composite(OpId::kNanMax, "nanmax", 1, 1, NanMax, "nanmax(x, /, axis=None, *, keepdims=False)",
              "Calculates the maximum over the axes of what isn't NaN; NaN where all are.",
              "ts.nanmax(ts.asarray([1.0, float(\"nan\"), 3.0])).item() => 3.0"),
    Composite(OpId::kNanMin, "nanmin", 1, 1, NanMin, "nanmin(x, /, axis=None, *, keepdims=False)",
              "Calculates the minimum over the axes of what isn't NaN; NaN where all are.",
              "ts.nanmin(ts.asarray([1.0, float(\"nan\"), 3.0])).item() => 1.0"),
    Composite(OpId::kNanMean, "nanmean", 1, 1, NanMean, "nanmean(x, /, axis=None, *, keepdims=False)",
              "Calculates the mean over the axes of what isn't NaN; NaN where all are.",
              "ts.nanmean(ts.asarray([1.0, float(\"nan\"), 3.0])).item() => 2.0"),
    Composite(OpId::kNanVar, "nanvar", 1, 1, NanVar, "nanvar(x, /, axis=None, *, correction=0.0, keepdims=False)",
              "Calculates the variance over the axes of what isn't NaN; NaN of no more elements than correction.",
              "ts.nanvar(ts.asarray([1.0, float(\"nan\"), 3.0])).item() => 1.0"),
    Composite(OpId::kNanStd, "nanstd", 1, 1, NanStd, "nanstd(x, /, axis=None, *, correction=0.0, keepdims=False)",
              "Calculates the standard deviation over the axes of what isn't NaN: the square root of nanvar.",
              "ts.nanstd(ts.asarray([1.0, float(\"nan\"), 3.0])).item() => 1.0"),
    Composite(OpId::kPtp, "ptp", 1, 1, Ptp, "ptp(x, /, axis=None, *, keepdims=False)",
              "Calculates the maximum minus the minimum over the axes.", "ts.ptp(ts.asarray([5, 1, 3])).item() => 4"),
    Composite(OpId::kKron, "kron", 2, 2, Kron, "kron(x1, x2, /)",
              "Computes the Kronecker product: x2 as a whole times each element of x1.",
              "ts.kron(ts.asarray([1, 10]), ts.asarray([1, 2])).tolist() => [1, 2, 10, 20]"),
    Composite(
        OpId::kCov, "cov", 1, 1, Cov, "cov(x, /, *, correction=1.0)",
        "Calculates the covariances of rows, in f64: products of differences from the mean, summed and divided by "
        "their number minus correction.",
        "ts.cov(ts.asarray([[1.0, 3.0], [4.0, 0.0]])).tolist() => [[2.0, -4.0], [-4.0, 8.0]]"),
};

}  // namespace

absl::Span<const OpRow> StatisticsRows() { return kRows; }

}  // namespace tessera::composites
