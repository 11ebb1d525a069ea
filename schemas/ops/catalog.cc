#include "schemas/ops/catalog.h"

#include <array>
#include <vector>

#include "schemas/ops/composites/rows.h"
#include "schemas/ops/graph_text.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

using F = OpFamily;
using D = DTypeRule;
using P = PartialRule;
using S = ScalarOp;

static_assert(kGraphOp == OpId::kGraph);

// An elementwise row of one or two operands.
constexpr OpRow Elementwise(OpId id, std::string_view name, int operands, S op, D dtype, P partial,
                            std::string_view signature, std::string_view doc, std::string_view example) {
  return {id, name, F::kElementwise, operands, operands, "", op, std::nullopt, dtype, partial, signature, doc, example};
}

constexpr OpRow Reduction(OpId id, std::string_view name, ReduceOp op, D dtype, P partial, std::string_view signature,
                          std::string_view doc, std::string_view example) {
  return {id, name, F::kReduction, 1, 1, "", std::nullopt, op, dtype, partial, signature, doc, example};
}

// Rows without a scalar op, a reduce op or a notation.
constexpr OpRow Plain(OpId id, std::string_view name, F family, int operands, D dtype, P partial,
                      std::string_view signature, std::string_view doc, std::string_view example = "") {
  return {id,           name,  family,  operands,  operands, "",     std::nullopt,
          std::nullopt, dtype, partial, signature, doc,      example};
}

constexpr std::array kRows = {
    Plain(OpId::kFull, "full", F::kCreation, 0, D::kAttribute, P::kNone,
          "full(shape, fill_value, *, dtype=None, device_mesh=None, placements=None)",
          "Returns a new tensor of the shape, filled with fill_value.", "ts.full((2,), 7).tolist() => [7, 7]"),
    Plain(OpId::kArange, "arange", F::kCreation, 0, D::kAttribute, P::kNone,
          "arange(start, /, stop=None, step=1, *, dtype=None, device_mesh=None, placements=None)",
          "Returns evenly spaced values within the half-open interval [start, stop).",
          "ts.arange(2, 10, 3).tolist() => [2, 5, 8]"),
    Plain(OpId::kRand, "rand", F::kCreation, 0, D::kAttribute, P::kNone,
          "rand(*shape, dtype=None, device_mesh=None, placements=None)",
          "Returns uniform random numbers in [0, 1), the same on every mesh and placement.",
          "ts.rand(2, 3).shape => (2, 3)"),
    Plain(OpId::kNormal, "normal", F::kCreation, 0, D::kAttribute, P::kNone,
          "normal(loc=0.0, scale=1.0, shape=(), *, dtype=None, device_mesh=None, placements=None)",
          "Random numbers of the normal distribution, the same on every mesh and placement.",
          "ts.normal(0.0, 1.0, (2, 3)).shape => (2, 3)"),
    Plain(OpId::kEye, "eye", F::kCreation, 0, D::kAttribute, P::kNone,
          "eye(n_rows, n_cols=None, /, *, k=0, dtype=None, device_mesh=None, placements=None)",
          "Returns a matrix with ones on the k-th diagonal and zeros elsewhere.",
          "ts.eye(2).tolist() => [[1.0, 0.0], [0.0, 1.0]]"),
    Elementwise(OpId::kAdd, "add", 2, S::kAdd, D::kPromoteNumeric, P::kLinear, "add(x1, x2, /)",
                "Calculates the sum of each element of x1 with the respective element of x2.",
                "ts.add(ts.asarray([1, 2]), 10).tolist() => [11, 12]"),
    Elementwise(OpId::kSub, "subtract", 2, S::kSub, D::kPromoteNumeric, P::kLinear, "subtract(x1, x2, /)",
                "Calculates the difference of each element of x1 with the respective element of x2.",
                "ts.subtract(ts.asarray([5, 6]), 1).tolist() => [4, 5]"),
    Elementwise(OpId::kMul, "multiply", 2, S::kMul, D::kPromoteNumeric, P::kScale, "multiply(x1, x2, /)",
                "Calculates the product of each element of x1 with the respective element of x2.",
                "ts.multiply(ts.asarray([1, 2]), 3).tolist() => [3, 6]"),
    Elementwise(OpId::kDiv, "divide", 2, S::kDiv, D::kFloating, P::kScale, "divide(x1, x2, /)",
                "Calculates the quotient of each element of x1 with the respective element of x2; integers give f64.",
                "ts.divide(ts.asarray([1, 2]), 4).tolist() => [0.25, 0.5]"),
    Elementwise(OpId::kMaximum, "maximum", 2, S::kMaximum, D::kPromoteNumeric, P::kExtreme, "maximum(x1, x2, /)",
                "Computes the larger of each element of x1 and the respective element of x2; NaN propagates.",
                "ts.maximum(ts.asarray([1, 5]), 3).tolist() => [3, 5]"),
    Elementwise(OpId::kMinimum, "minimum", 2, S::kMinimum, D::kPromoteNumeric, P::kExtreme, "minimum(x1, x2, /)",
                "Computes the smaller of each element of x1 and the respective element of x2; NaN propagates.",
                "ts.minimum(ts.asarray([1, 5]), 3).tolist() => [1, 3]"),
    Elementwise(OpId::kEqual, "equal", 2, S::kEqual, D::kBool, P::kNone, "equal(x1, x2, /)",
                "Computes the truth value of x1_i == x2_i for each element.",
                "ts.equal(ts.asarray([1, 2]), ts.asarray([1, 3])).tolist() => [True, False]"),
    Elementwise(OpId::kNotEqual, "not_equal", 2, S::kNotEqual, D::kBool, P::kNone, "not_equal(x1, x2, /)",
                "Computes the truth value of x1_i != x2_i for each element.",
                "ts.not_equal(ts.asarray([1, 2]), ts.asarray([1, 3])).tolist() => [False, True]"),
    Elementwise(OpId::kLess, "less", 2, S::kLess, D::kBool, P::kNone, "less(x1, x2, /)",
                "Computes the truth value of x1_i < x2_i for each element.",
                "ts.less(ts.asarray([1, 3]), 2).tolist() => [True, False]"),
    Elementwise(OpId::kLessEqual, "less_equal", 2, S::kLessEqual, D::kBool, P::kNone, "less_equal(x1, x2, /)",
                "Computes the truth value of x1_i <= x2_i for each element.",
                "ts.less_equal(ts.asarray([1, 2]), 1).tolist() => [True, False]"),
    Elementwise(OpId::kGreater, "greater", 2, S::kGreater, D::kBool, P::kNone, "greater(x1, x2, /)",
                "Computes the truth value of x1_i > x2_i for each element.",
                "ts.greater(ts.asarray([1, 3]), 2).tolist() => [False, True]"),
    Elementwise(OpId::kGreaterEqual, "greater_equal", 2, S::kGreaterEqual, D::kBool, P::kNone,
                "greater_equal(x1, x2, /)", "Computes the truth value of x1_i >= x2_i for each element.",
                "ts.greater_equal(ts.asarray([1, 2]), 2).tolist() => [False, True]"),
    Elementwise(OpId::kNeg, "negative", 1, S::kNeg, D::kPromoteNumeric, P::kLinear, "negative(x, /)",
                "Computes the numerical negative of each element.",
                "ts.negative(ts.asarray([1, -2])).tolist() => [-1, 2]"),
    Elementwise(OpId::kExp, "exp", 1, S::kExp, D::kFloating, P::kMonotone, "exp(x, /)",
                "Calculates e raised to each element; integers give f64.",
                "ts.exp(ts.asarray([0.0, 1.0])).tolist() => [1.0, 2.7182818284590455]"),
    // A pending term below 0 would give NaN where the maximum has a root, so P(max) does not pass.
    Elementwise(OpId::kSqrt, "sqrt", 1, S::kSqrt, D::kFloating, P::kNone, "sqrt(x, /)",
                "Calculates the square root of each element; integers give f64.",
                "ts.sqrt(ts.asarray([1.0, 4.0])).tolist() => [1.0, 2.0]"),
    Elementwise(OpId::kRelu, "relu", 1, S::kRelu, D::kPromoteNumeric, P::kMonotone, "relu(x, /)",
                "Gives each element, or 0 where it is negative; NaN propagates.",
                "ts.relu(ts.asarray([-1.0, 2.0])).tolist() => [0.0, 2.0]"),
    Elementwise(OpId::kLog, "log", 1, S::kLog, D::kFloating, P::kNone, "log(x, /)",
                "Calculates the natural logarithm of each element; integers give f64.",
                "ts.log(ts.asarray([1.0])).tolist() => [0.0]"),
    Elementwise(OpId::kLog1p, "log1p", 1, S::kLog1p, D::kFloating, P::kMonotone, "log1p(x, /)",
                "Calculates the natural logarithm of 1 plus each element; integers give f64.",
                "ts.log1p(ts.asarray([0.0])).tolist() => [0.0]"),
    Elementwise(OpId::kLog2, "log2", 1, S::kLog2, D::kFloating, P::kNone, "log2(x, /)",
                "Calculates the logarithm to base 2 of each element; integers give f64.",
                "ts.log2(ts.asarray([8.0])).tolist() => [3.0]"),
    Elementwise(OpId::kLog10, "log10", 1, S::kLog10, D::kFloating, P::kNone, "log10(x, /)",
                "Calculates the logarithm to base 10 of each element; integers give f64.",
                "ts.log10(ts.asarray([100.0])).tolist() => [2.0]"),
    Elementwise(OpId::kExpm1, "expm1", 1, S::kExpm1, D::kFloating, P::kMonotone, "expm1(x, /)",
                "Calculates e raised to the power, minus 1, of each element; integers give f64.",
                "ts.expm1(ts.asarray([0.0])).tolist() => [0.0]"),
    Elementwise(OpId::kSin, "sin", 1, S::kSin, D::kFloating, P::kNone, "sin(x, /)",
                "Calculates the sine of each element; integers give f64.",
                "ts.sin(ts.asarray([0.0])).tolist() => [0.0]"),
    Elementwise(OpId::kCos, "cos", 1, S::kCos, D::kFloating, P::kNone, "cos(x, /)",
                "Calculates the cosine of each element; integers give f64.",
                "ts.cos(ts.asarray([0.0])).tolist() => [1.0]"),
    Elementwise(OpId::kTan, "tan", 1, S::kTan, D::kFloating, P::kNone, "tan(x, /)",
                "Calculates the tangent of each element; integers give f64.",
                "ts.tan(ts.asarray([0.0])).tolist() => [0.0]"),
    Elementwise(OpId::kAsin, "asin", 1, S::kAsin, D::kFloating, P::kNone, "asin(x, /)",
                "Calculates the inverse sine of each element; integers give f64.",
                "ts.asin(ts.asarray([0.0])).tolist() => [0.0]"),
    Elementwise(OpId::kAcos, "acos", 1, S::kAcos, D::kFloating, P::kNone, "acos(x, /)",
                "Calculates the inverse cosine of each element; integers give f64.",
                "ts.acos(ts.asarray([1.0, 0.0])).tolist() => [0.0, 1.5707963267948966]"),
    Elementwise(OpId::kAtan, "atan", 1, S::kAtan, D::kFloating, P::kMonotone, "atan(x, /)",
                "Calculates the inverse tangent of each element; integers give f64.",
                "ts.atan(ts.asarray([0.0])).tolist() => [0.0]"),
    Elementwise(OpId::kSinh, "sinh", 1, S::kSinh, D::kFloating, P::kMonotone, "sinh(x, /)",
                "Calculates the hyperbolic sine of each element; integers give f64.",
                "ts.sinh(ts.asarray([0.0])).tolist() => [0.0]"),
    Elementwise(OpId::kCosh, "cosh", 1, S::kCosh, D::kFloating, P::kNone, "cosh(x, /)",
                "Calculates the hyperbolic cosine of each element; integers give f64.",
                "ts.cosh(ts.asarray([0.0])).tolist() => [1.0]"),
    Elementwise(OpId::kTanh, "tanh", 1, S::kTanh, D::kFloating, P::kMonotone, "tanh(x, /)",
                "Calculates the hyperbolic tangent of each element; integers give f64.",
                "ts.tanh(ts.asarray([0.0])).tolist() => [0.0]"),
    Elementwise(OpId::kAsinh, "asinh", 1, S::kAsinh, D::kFloating, P::kMonotone, "asinh(x, /)",
                "Calculates the inverse hyperbolic sine of each element; integers give f64.",
                "ts.asinh(ts.asarray([0.0])).tolist() => [0.0]"),
    Elementwise(OpId::kAcosh, "acosh", 1, S::kAcosh, D::kFloating, P::kNone, "acosh(x, /)",
                "Calculates the inverse hyperbolic cosine of each element; integers give f64.",
                "ts.acosh(ts.asarray([1.0])).tolist() => [0.0]"),
    Elementwise(OpId::kAtanh, "atanh", 1, S::kAtanh, D::kFloating, P::kNone, "atanh(x, /)",
                "Calculates the inverse hyperbolic tangent of each element; integers give f64.",
                "ts.atanh(ts.asarray([0.0])).tolist() => [0.0]"),
    Elementwise(OpId::kErf, "erf", 1, S::kErf, D::kFloating, P::kMonotone, "erf(x, /)",
                "Calculates the error function of each element; integers give f64.",
                "ts.erf(ts.asarray([0.0])).tolist() => [0.0]"),
    Elementwise(OpId::kSigmoid, "sigmoid", 1, S::kSigmoid, D::kFloating, P::kMonotone, "sigmoid(x, /)",
                "Calculates 1 / (1 + exp(-x)) of each element; integers give f64.",
                "ts.sigmoid(ts.asarray([0.0])).tolist() => [0.5]"),
    Elementwise(OpId::kAbs, "abs", 1, S::kAbs, D::kPart, P::kNone, "abs(x, /)",
                "Calculates the absolute value of each element.",
                "ts.abs(ts.asarray([-1.5, 2.0])).tolist() => [1.5, 2.0]"),
    Elementwise(OpId::kReal, "real", 1, S::kReal, D::kPart, P::kLinear, "real(x, /)",
                "Gives the real part of each element.", "ts.real(ts.asarray([1 + 2j])).tolist() => [1.0]"),
    Elementwise(OpId::kImag, "imag", 1, S::kImag, D::kPart, P::kLinear, "imag(x, /)",
                "Gives the imaginary part of each element, 0 of real numbers.",
                "ts.imag(ts.asarray([1 + 2j])).tolist() => [2.0]"),
    Elementwise(OpId::kConj, "conj", 1, S::kConj, D::kPromoteNumeric, P::kLinear, "conj(x, /)",
                "Gives the complex conjugate of each element.", "ts.conj(ts.asarray([1 + 2j])).tolist() => [(1-2j)]"),
    Elementwise(OpId::kComplex, "complex", 2, S::kComplex, D::kParts, P::kNone, "complex(x1, x2, /)",
                "Makes complex numbers of real parts x1 and imaginary parts x2.",
                "ts.complex(ts.asarray([1.0]), ts.asarray([2.0])).tolist() => [(1+2j)]"),
    // A complex x gives x / |x|: nothing is increasing there, and no maximum of them is pending.
    Elementwise(OpId::kSign, "sign", 1, S::kSign, D::kPromoteNumeric, P::kMonotone, "sign(x, /)",
                "Calculates -1, 0 or 1, the sign of each element; x / |x| of complex ones.",
                "ts.sign(ts.asarray([-3, 0, 5])).tolist() => [-1, 0, 1]"),
    Elementwise(OpId::kFloor, "floor", 1, S::kFloor, D::kPromoteNumeric, P::kMonotone, "floor(x, /)",
                "Calculates the largest integer that is not above each element.",
                "ts.floor(ts.asarray([1.7, -1.2])).tolist() => [1.0, -2.0]"),
    Elementwise(OpId::kCeil, "ceil", 1, S::kCeil, D::kPromoteNumeric, P::kMonotone, "ceil(x, /)",
                "Calculates the smallest integer that is not below each element.",
                "ts.ceil(ts.asarray([1.2, -1.2])).tolist() => [2.0, -1.0]"),
    Elementwise(OpId::kTrunc, "trunc", 1, S::kTrunc, D::kPromoteNumeric, P::kMonotone, "trunc(x, /)",
                "Calculates the integer part of each element.",
                "ts.trunc(ts.asarray([1.7, -1.7])).tolist() => [1.0, -1.0]"),
    Elementwise(OpId::kRound, "round", 1, S::kRound, D::kPromoteNumeric, P::kMonotone, "round(x, /)",
                "Calculates the nearest integer, halves to the even one, of each element.",
                "ts.round(ts.asarray([0.5, 1.5, 2.4])).tolist() => [0.0, 2.0, 2.0]"),
    Elementwise(OpId::kIsNan, "isnan", 1, S::kIsNan, D::kPredicate, P::kNone, "isnan(x, /)",
                "Tests for each element whether it is NaN.",
                "ts.isnan(ts.asarray([1.0, float(\"nan\")])).tolist() => [False, True]"),
    Elementwise(OpId::kIsInf, "isinf", 1, S::kIsInf, D::kPredicate, P::kNone, "isinf(x, /)",
                "Tests for each element whether it is infinite.",
                "ts.isinf(ts.asarray([1.0, float(\"inf\")])).tolist() => [False, True]"),
    Elementwise(OpId::kIsFinite, "isfinite", 1, S::kIsFinite, D::kPredicate, P::kNone, "isfinite(x, /)",
                "Tests for each element whether it is neither infinite nor NaN.",
                "ts.isfinite(ts.asarray([1.0, float(\"inf\")])).tolist() => [True, False]"),
    Elementwise(OpId::kSignBit, "signbit", 1, S::kSignBit, D::kPredicate, P::kNone, "signbit(x, /)",
                "Tests for each element whether it has its sign bit set.",
                "ts.signbit(ts.asarray([-1.0, 1.0])).tolist() => [True, False]"),
    Elementwise(OpId::kBitwiseInvert, "bitwise_invert", 1, S::kNot, D::kBits, P::kNone, "bitwise_invert(x, /)",
                "Inverts each bit; of bools, the truth value.",
                "ts.bitwise_invert(ts.asarray([0, 1])).tolist() => [-1, -2]"),
    Elementwise(OpId::kBitwiseAnd, "bitwise_and", 2, S::kAnd, D::kBits, P::kNone, "bitwise_and(x1, x2, /)",
                "Computes the bitwise AND of each element of x1 with the respective element of x2.",
                "ts.bitwise_and(ts.asarray([6, 5]), 4).tolist() => [4, 4]"),
    Elementwise(OpId::kBitwiseOr, "bitwise_or", 2, S::kOr, D::kBits, P::kNone, "bitwise_or(x1, x2, /)",
                "Computes the bitwise OR of each element of x1 with the respective element of x2.",
                "ts.bitwise_or(ts.asarray([1, 2]), 4).tolist() => [5, 6]"),
    Elementwise(OpId::kBitwiseXor, "bitwise_xor", 2, S::kXor, D::kBits, P::kNone, "bitwise_xor(x1, x2, /)",
                "Computes the bitwise XOR of each element of x1 with the respective element of x2.",
                "ts.bitwise_xor(ts.asarray([1, 3]), 1).tolist() => [0, 2]"),
    Elementwise(OpId::kShiftLeft, "bitwise_left_shift", 2, S::kShiftLeft, D::kInteger, P::kNone,
                "bitwise_left_shift(x1, x2, /)",
                "Shifts the bits of each element of x1 to the left by the respective element of x2.",
                "ts.bitwise_left_shift(ts.asarray([1, 2]), 3).tolist() => [8, 16]"),
    Elementwise(OpId::kShiftRight, "bitwise_right_shift", 2, S::kShiftRight, D::kInteger, P::kNone,
                "bitwise_right_shift(x1, x2, /)",
                "Shifts the bits of each element of x1 to the right by the respective element of x2, keeping the sign.",
                "ts.bitwise_right_shift(ts.asarray([8, -8]), 1).tolist() => [4, -4]"),
    Elementwise(
        OpId::kFloorDivide, "floor_divide", 2, S::kFloorDivide, D::kPromoteNumeric, P::kNone, "floor_divide(x1, x2, /)",
        "Rounds the quotient of each element of x1 with the respective element of x2 down; of integers, by 0 it is 0.",
        "ts.floor_divide(ts.asarray([7, -7]), 2).tolist() => [3, -4]"),
    Elementwise(OpId::kRemainder, "remainder", 2, S::kRemainder, D::kPromoteNumeric, P::kNone, "remainder(x1, x2, /)",
                "Gives the remainder of floor_divide, which has the sign of x2's element.",
                "ts.remainder(ts.asarray([7, -7]), 3).tolist() => [1, 2]"),
    Elementwise(OpId::kPow, "pow", 2, S::kPow, D::kPromoteNumeric, P::kNone, "pow(x1, x2, /)",
                "Raises each element of x1 to the power of the respective element of x2.",
                "ts.pow(ts.asarray([2, 3]), 2).tolist() => [4, 9]"),
    Elementwise(OpId::kAtan2, "atan2", 2, S::kAtan2, D::kFloating, P::kNone, "atan2(x1, x2, /)",
                "Calculates the angle of the point (x2_i, x1_i) for each element; integers give f64.",
                "ts.atan2(ts.asarray([0.0]), ts.asarray([1.0])).tolist() => [0.0]"),
    Elementwise(OpId::kGcd, "gcd", 2, S::kGcd, D::kInteger, P::kNone, "gcd(x1, x2, /)",
                "Calculates the greatest common divisor of each element of x1 and the respective element of x2.",
                "ts.gcd(ts.asarray([12, 7]), 18).tolist() => [6, 1]"),
    Elementwise(OpId::kCbrt, "cbrt", 1, S::kCbrt, D::kFloating, P::kMonotone, "cbrt(x, /)",
                "Calculates the cube root of each element; integers give f64.",
                "ts.cbrt(ts.asarray([8.0, -27.0])).tolist() => [2.0, -3.0]"),
    Elementwise(OpId::kHypot, "hypot", 2, S::kHypot, D::kFloating, P::kNone, "hypot(x1, x2, /)",
                "Calculates the square root of x1_i ** 2 + x2_i ** 2 for each element; integers give f64.",
                "ts.hypot(ts.asarray([3.0]), ts.asarray([4.0])).tolist() => [5.0]"),
    Elementwise(OpId::kLogAddExp, "logaddexp", 2, S::kLogAddExp, D::kFloating, P::kNone, "logaddexp(x1, x2, /)",
                "Calculates the logarithm of exp(x1_i) + exp(x2_i) for each element; integers give f64.",
                "round(ts.logaddexp(ts.asarray([0.0]), ts.asarray([0.0])).item(), 6) => 0.693147"),
    Elementwise(OpId::kCopySign, "copysign", 2, S::kCopySign, D::kFloating, P::kNone, "copysign(x1, x2, /)",
                "Calculates x1_i with the sign of x2_i for each element; integers give f64.",
                "ts.copysign(ts.asarray([1.0, 2.0]), ts.asarray([-1.0, 1.0])).tolist() => [-1.0, 2.0]"),
    Elementwise(OpId::kNextAfter, "nextafter", 2, S::kNextAfter, D::kFloating, P::kNone, "nextafter(x1, x2, /)",
                "Calculates the number next to x1_i towards x2_i for each element; integers give f64.",
                "ts.nextafter(ts.asarray([0.0]), ts.asarray([0.0])).tolist() => [0.0]"),
    Elementwise(OpId::kLogicalAnd, "logical_and", 2, S::kAnd, D::kLogical, P::kNone, "logical_and(x1, x2, /)",
                "Computes the logical AND of each element of x1 with the respective element of x2.",
                "ts.logical_and(ts.asarray([True, True]), ts.asarray([True, False])).tolist() => [True, False]"),
    Elementwise(OpId::kLogicalOr, "logical_or", 2, S::kOr, D::kLogical, P::kNone, "logical_or(x1, x2, /)",
                "Computes the logical OR of each element of x1 with the respective element of x2.",
                "ts.logical_or(ts.asarray([False, False]), ts.asarray([True, False])).tolist() => [True, False]"),
    Elementwise(OpId::kLogicalXor, "logical_xor", 2, S::kXor, D::kLogical, P::kNone, "logical_xor(x1, x2, /)",
                "Computes the logical XOR of each element of x1 with the respective element of x2.",
                "ts.logical_xor(ts.asarray([True, False]), ts.asarray([True, True])).tolist() => [False, True]"),
    Elementwise(OpId::kLogicalNot, "logical_not", 1, S::kNot, D::kLogical, P::kNone, "logical_not(x, /)",
                "Computes the logical NOT of each element.",
                "ts.logical_not(ts.asarray([True, False])).tolist() => [False, True]"),
    OpRow{OpId::kWhere, "where", F::kElementwise, 3, 3, "", S::kWhere, std::nullopt, D::kWhere, P::kNone,
          "where(condition, x1, x2, /)", "Returns elements of x1 where condition is true and of x2 where it is false.",
          "ts.where(ts.asarray([True, False]), ts.asarray([1, 2]), ts.asarray([3, 4])).tolist() => [1, 4]"},
    OpRow{OpId::kAsType, "astype", F::kElementwise, 1, 1, "", S::kCast, std::nullopt, D::kAttribute, P::kLinear,
          "astype(x, dtype, /)", "Copies a tensor to the dtype; a float out of an integer's range saturates.",
          "ts.astype(ts.asarray([1.7, -1.7]), ts.int32).tolist() => [1, -1]"},
    Reduction(OpId::kSum, "sum", ReduceOp::kSum, D::kSum, P::kLinear,
              "sum(x, /, axis=None, *, dtype=None, keepdims=False)",
              "Calculates the sum over the axes; bool and i32 are summed as i64.",
              "ts.sum(ts.asarray([[1, 2], [3, 4]]), axis=0).tolist() => [4, 6]"),
    Reduction(OpId::kMean, "mean", ReduceOp::kSum, D::kFloating, P::kLinear, "mean(x, /, axis=None, *, keepdims=False)",
              "Calculates the arithmetic mean over the axes; integers give f64.",
              "ts.mean(ts.asarray([[1.0, 3.0], [5.0, 7.0]]), axis=0).tolist() => [3.0, 5.0]"),
    Reduction(OpId::kMax, "max", ReduceOp::kMax, D::kPromoteNumeric, P::kExtreme,
              "max(x, /, axis=None, *, keepdims=False)", "Calculates the maximum over the axes; NaN propagates.",
              "ts.max(ts.asarray([[1, 5], [7, 0]]), axis=0).tolist() => [7, 5]"),
    Reduction(OpId::kMin, "min", ReduceOp::kMin, D::kPromoteNumeric, P::kExtreme,
              "min(x, /, axis=None, *, keepdims=False)", "Calculates the minimum over the axes; NaN propagates.",
              "ts.min(ts.asarray([[1, 5], [7, 0]]), axis=0).tolist() => [1, 0]"),
    Reduction(OpId::kProd, "prod", ReduceOp::kProduct, D::kSum, P::kNone,
              "prod(x, /, axis=None, *, dtype=None, keepdims=False)",
              "Calculates the product over the axes; bool and i32 are multiplied as i64.",
              "ts.prod(ts.asarray([2, 3, 4])).item() => 24"),
    Reduction(OpId::kAny, "any", ReduceOp::kMax, D::kLogical, P::kNone, "any(x, /, axis=None, *, keepdims=False)",
              "Tests whether any element is true along the axes.",
              "ts.any(ts.asarray([[False, False], [True, False]]), axis=1).tolist() => [False, True]"),
    Reduction(OpId::kAll, "all", ReduceOp::kMin, D::kLogical, P::kNone, "all(x, /, axis=None, *, keepdims=False)",
              "Tests whether all elements are true along the axes.",
              "ts.all(ts.asarray([[True, False], [True, True]]), axis=1).tolist() => [False, True]"),
    Plain(OpId::kArgMin, "argmin", F::kArgReduction, 1, D::kIndex, P::kNone,
          "argmin(x, /, axis=None, *, keepdims=False)",
          "Returns the indices of the minimum values along an axis; the first one of several.",
          "ts.argmin(ts.asarray([[1, 5, 2], [7, 0, 3]]), axis=1).tolist() => [0, 1]"),
    Plain(OpId::kArgMax, "argmax", F::kArgReduction, 1, D::kIndex, P::kNone,
          "argmax(x, /, axis=None, *, keepdims=False)",
          "Returns the indices of the maximum values along an axis; the first one of several.",
          "ts.argmax(ts.asarray([[1, 5, 2], [7, 0, 3]]), axis=1).tolist() => [1, 0]"),
    OpRow{OpId::kMatmul, "matmul", F::kContraction, 2, 2, "mk,kn->mn", std::nullopt, std::nullopt, D::kPromoteNumeric,
          P::kLinear, "matmul(x1, x2, /, *, precision='full')",
          "Computes the matrix product; leading dims are broadcast, a 1-D operand is a vector. Floats of 8 bits give "
          "f32. precision='tf32' lets GPUs read f32 factors with 10 bits of mantissa.",
          "ts.matmul(ts.asarray([[1, 2], [3, 4]]), ts.asarray([1, 1])).tolist() => [3, 7]"},
    OpRow{
        OpId::kEinsum, "einsum", F::kContraction, 2, 2, "", std::nullopt, std::nullopt, D::kPromoteNumeric, P::kLinear,
        "einsum(notation, x1, x2, /, *, precision='full')",
        "Sums products over the letters that the output does not have; copies nothing to permute dims. precision as of "
        "matmul.",
        "ts.einsum(\"ij,j->i\", ts.asarray([[1, 2], [3, 4]]), ts.asarray([1, 1])).tolist() => [3, 7]"},
    Plain(OpId::kTranspose, "permute_dims", F::kView, 1, D::kSame, P::kMove, "permute_dims(x, /, axes)",
          "Permutes the axes of a tensor; copies nothing.",
          "ts.permute_dims(ts.ones((2, 3, 4)), (2, 0, 1)).shape => (4, 2, 3)"),
    Plain(OpId::kSlice, "slice", F::kView, 1, D::kSame, P::kMove, "x[index]",
          "Basic indexing with slices, integers and None; copies nothing unless a sharded dim is cut."),
    Plain(OpId::kReshape, "reshape", F::kView, 1, D::kSame, P::kMove, "reshape(x, /, shape)",
          "Reshapes a tensor in row-major order; refused where it would move data between workers.",
          "ts.reshape(ts.asarray([1, 2, 3, 4]), (2, 2)).tolist() => [[1, 2], [3, 4]]"),
    Plain(OpId::kBroadcastTo, "broadcast_to", F::kView, 1, D::kSame, P::kMove, "broadcast_to(x, /, shape)",
          "Broadcasts a tensor to a shape; copies nothing.",
          "ts.broadcast_to(ts.asarray([1, 2]), (2, 2)).tolist() => [[1, 2], [1, 2]]"),
    Plain(OpId::kRelabel, "relabel", F::kView, 1, D::kSame, P::kMove, "relabel(x, /, shape, placements)",
          "Reads the bytes that each worker holds as its part of another tensor: as shards, terms or copies.",
          "ts.relabel(ts.ones((4, 2), placements=[ts.Replicate()]), (4, 2), [ts.Replicate()]).shape => (4, 2)"),
    OpRow{OpId::kPlace, "place", F::kPlace, 1, kMaxOperands, "", std::nullopt, std::nullopt, D::kSame, P::kNone,
          "place(*tensors, mode, starts, step, shape=None)",
          "Writes pieces over a base: the first tensor, a number, or nothing, which they tile.",
          "[x := ts.arange(4), ts.place(x, x > 1, [7, 8])][0].tolist() => [0, 1, 7, 8]"},
    Plain(OpId::kCumulativeSum, "cumulative_sum", F::kAlong, 1, D::kSum, P::kNone,
          "cumulative_sum(x, /, axis=None, *, dtype=None)",
          "Calculates the sum of the elements up to each one along an axis; bool and i32 are summed as i64.",
          "ts.cumulative_sum(ts.asarray([1, 2, 3]), include_initial=True).tolist() => [0, 1, 3, 6]"),
    Plain(OpId::kCumulativeProd, "cumulative_prod", F::kAlong, 1, D::kSum, P::kNone,
          "cumulative_prod(x, /, axis=None, *, dtype=None)",
          "Calculates the product of the elements up to each one along an axis.",
          "ts.cumulative_prod(ts.asarray([1, 2, 3])).tolist() => [1, 2, 6]"),
    Plain(OpId::kCumulativeMax, "cumulative_max", F::kAlong, 1, D::kPromoteNumeric, P::kNone,
          "cumulative_max(x, /, axis=None)", "Calculates the maximum of the elements up to each one; NaN propagates.",
          "ts.cumulative_max(ts.asarray([1, 3, 2])).tolist() => [1, 3, 3]"),
    Plain(OpId::kCumulativeMin, "cumulative_min", F::kAlong, 1, D::kPromoteNumeric, P::kNone,
          "cumulative_min(x, /, axis=None)", "Calculates the minimum of the elements up to each one; NaN propagates.",
          "ts.cumulative_min(ts.asarray([3, 1, 2])).tolist() => [3, 1, 1]"),
    Plain(OpId::kSort, "sort", F::kAlong, 1, D::kSame, P::kNone,
          "sort(x, /, axis=-1, *, descending=False, stable=True)",
          "Sorts the elements along an axis; equal ones keep their order, NaN is above all numbers.",
          "ts.sort(ts.asarray([3, 1, 2]), descending=True).tolist() => [3, 2, 1]"),
    Plain(OpId::kArgSort, "argsort", F::kAlong, 1, D::kIndex, P::kNone,
          "argsort(x, /, axis=-1, *, descending=False, stable=True)",
          "Returns the indices that sort the elements along an axis, stably.",
          "ts.argsort(ts.asarray([30, 10, 20])).tolist() => [1, 2, 0]"),
    Plain(OpId::kArgSortFirst, "argsort_first", F::kAlong, 1, D::kIndex, P::kNone,
          "argsort_first(x, /, k, axis=-1, *, descending=False)",
          "Returns the first k of argsort's indices along an axis; not all elements are sorted for it.",
          "ts.argsort_first(ts.asarray([30, 10, 20]), 2).tolist() => [1, 2]"),
    Plain(OpId::kSearchSorted, "searchsorted", F::kIndexed, 2, D::kIndex, P::kNone,
          "searchsorted(x1, x2, /, *, side='left')",
          "Finds where elements of x2 belong in the sorted vector x1: before equal ones (left), or behind (right).",
          "ts.searchsorted(ts.asarray([1, 3, 5]), ts.asarray([3, 4])).tolist() => [1, 2]"),
    Plain(OpId::kTakeAlongAxis, "take_along_axis", F::kIndexed, 2, D::kSame, P::kNone,
          "take_along_axis(x, indices, /, axis=-1)",
          "Takes elements along an axis at indices, which are broadcast or of that axis alone; negative ones count "
          "from the end.",
          "ts.take_along_axis(ts.asarray([[1, 2], [3, 4]]), ts.asarray([[1], [0]]), axis=1).tolist() => [[2], [3]]"),
    Plain(OpId::kScatter, "scatter", F::kIndexed, 3, D::kSame, P::kNone,
          "scatter(x, indices, updates, /, axis=-1, *, mode='set')",
          "Gives x with updates at indices along an axis; mode is set (the last of several wins), add, max or min.",
          "ts.scatter(ts.asarray([0, 0, 0]), ts.asarray([2, 0]), ts.asarray([5, 7])).tolist() => [7, 0, 5]"),
    OpRow{OpId::kFilter, "filter", F::kIndexed, 1, 2, "", std::nullopt, std::nullopt, D::kSame, P::kNone,
          "filter(x, mask=None, /, axis=0, *, lengths)",
          "What x[mask] is made of: along an axis what a mask keeps of each shard, of which lengths says how much that "
          "is; of a mask alone, the places where it is true.",
          "ts.filter(ts.asarray([5, 6, 7]), ts.asarray([True, False, True]), lengths=[2]).tolist() => [5, 7]"},
    OpRow{OpId::kShardCounts, "shard_counts", F::kIndexed, 1, 2, "", std::nullopt, std::nullopt, D::kIndex, P::kNone,
          "shard_counts(mask, x=None, /, axis=0)",
          "Counts the true elements of each shard of a mask; beside x, of the shards that it has along the axis.",
          "ts.shard_counts(ts.asarray([True, False, True])).tolist() => [2]"},
    Plain(OpId::kCheckRange, "check_range", F::kIndexed, 1, D::kSame, P::kNone,
          "check_range(x, /, low, high, other=None, *, mode='element')",
          "Gives x. An element that isn't from low to high, as a NaN, and isn't other, is an error of what is computed "
          "of "
          "the result; it says what the element is: mode, a word.",
          "ts.check_range(ts.asarray([1, 2]), 0, 2, mode=\"label\").tolist() => [1, 2]"),
    OpRow{OpId::kAttention, "attention", F::kAttention, 3, 4, "", std::nullopt, std::nullopt, D::kSame, P::kNone,
          "attention(query, key, value, attn_mask=None, /, *, is_causal=False, scale)",
          "What scaled_dot_product_attention is made of: keys by blocks, no scores in memory."},
    OpRow{OpId::kAttentionGradients, "attention_gradients", F::kAttention, 4, 5, "", std::nullopt, std::nullopt,
          D::kSame, P::kNone,
          "attention_gradients(gradient, query, key, value, attn_mask=None, /, *, is_causal=False, scale)",
          "What scaled_dot_product_attention_backward is made of: the gradients of query, key and value one after the "
          "other, (..., elements of the three); some rows of the scores in memory at a time."},
    OpRow{OpId::kAttentionLogarithms, "attention_logarithms", F::kAttention, 2, 3, "", std::nullopt, std::nullopt,
          D::kSame, P::kNone, "attention_logarithms(query, key, attn_mask=None, /, *, is_causal=False, scale)",
          "The logarithm of the sum of exponentials of each row of an attention's scores."},
    OpRow{OpId::kAttentionGradientsOfResult, "attention_gradients_of_result", F::kAttention, 6, 7, "", std::nullopt,
          std::nullopt, D::kSame, P::kNone,
          "attention_gradients_of_result(gradient, query, key, value, result, logarithms, attn_mask=None, /, *, "
          "is_causal=False, scale)",
          "attention_gradients of an attention whose result and logarithms are known."},
    Plain(OpId::kGroupedMatmul, "grouped_matmul", F::kGrouped, 3, D::kSame, P::kNone,
          "grouped_matmul(x1, x2, offsets, /)",
          "Multiplies each row of x1 (m,k) by its group's matrix of x2 (g,k,n); offsets say where each group ends, and "
          "rows behind the last give 0. Of x2 (k,n) the groups are those of k, and the result is (g,m,n).",
          "ts.grouped_matmul(ts.ones((3, 2)), ts.asarray([[[1.0], [1.0]], [[5.0], [5.0]]]), ts.asarray([1, "
          "3])).tolist() => [[2.0], [10.0], [10.0]]"),
    OpRow{OpId::kMatrixFunction, "matrix_function", F::kMatrices, 1, 2, "", std::nullopt, std::nullopt, D::kSame,
          P::kNone,
          "matrix_function(*matrices, mode, upper=False, full_matrices=False, transposed=False, unit_diagonal=False)",
          "What LAPACK computes of whole matrices, the results behind each other in one; the functions of linalg are "
          "made of it."},
    Plain(OpId::kFft, "fft", F::kFourier, 1, D::kSame, P::kNone, "fft(x, /, *, n=None, axis=-1, norm='backward')",
          "Computes the discrete Fourier transform along an axis, of n elements: cut, or continued with zeros.",
          "ts.fft.fft(ts.asarray([1.0, 0.0])).tolist() => [(1+0j), (1+0j)]"),
    Plain(OpId::kIfft, "ifft", F::kFourier, 1, D::kSame, P::kNone, "ifft(x, /, *, n=None, axis=-1, norm='backward')",
          "Computes the inverse of fft.", "ts.fft.ifft(ts.asarray([1.0, 1.0])).tolist() => [(1-0j), 0j]"),
    Plain(OpId::kRfft, "rfft", F::kFourier, 1, D::kSame, P::kNone, "rfft(x, /, *, n=None, axis=-1, norm='backward')",
          "Computes the first n / 2 + 1 elements of the discrete Fourier transform of real numbers.",
          "ts.fft.rfft(ts.asarray([1.0, 0.0])).tolist() => [(1+0j), (1+0j)]"),
    Plain(OpId::kIrfft, "irfft", F::kFourier, 1, D::kSame, P::kNone, "irfft(x, /, *, n=None, axis=-1, norm='backward')",
          "Computes the inverse of rfft, n real numbers; by default 2 (m - 1) of m elements.",
          "ts.fft.irfft(ts.asarray([1.0, 1.0])).tolist() => [1.0, 0.0]"),
    Plain(OpId::kConvWindows, "conv_windows", F::kWindows, 2, D::kSame, P::kNone,
          "conv_windows(x, weight, /, *, stride, padding, dilation, groups=1)",
          "Convolves as conv does, in shards that have their windows whole."),
    Plain(OpId::kConvBackwardXWindows, "conv_backward_x_windows", F::kWindows, 2, D::kSame, P::kNone,
          "conv_backward_x_windows(gradient, weight, /, *, shape, stride, padding, dilation, groups=1)",
          "Gives the gradient of conv_backward_x, in shards that have their windows whole."),
    Plain(OpId::kConvBackwardWeightWindows, "conv_backward_weight_windows", F::kWindows, 2, D::kSame, P::kNone,
          "conv_backward_weight_windows(gradient, x, /, *, shape, stride, padding, dilation, groups=1)",
          "Gives the gradient of conv_backward_weight, in shards that have their windows whole."),
    Plain(OpId::kMaxPoolWindows, "max_pool_windows", F::kWindows, 1, D::kSame, P::kNone,
          "max_pool_windows(x, /, *, kernel_size, stride, padding, dilation, ceil_mode=False)",
          "Gives the maxima of max_pool, in shards that have their windows whole."),
    Plain(OpId::kAvgPoolWindows, "avg_pool_windows", F::kWindows, 1, D::kSame, P::kNone,
          "avg_pool_windows(x, /, *, kernel_size, stride, padding, dilation, ceil_mode=False, count_include_pad=False)",
          "Gives the means of avg_pool, in shards that have their windows whole."),
    OpRow{OpId::kRedistribute, "redistribute", F::kRedistribute, 1, kMaxOperands, "", std::nullopt, std::nullopt,
          D::kSame, P::kMove,
          "redistribute(x, /, device_mesh=None, placements=None, *, dtype=None, async_op=False, relabel=False)",
          "Gives the same tensor with other placements, moving the fewest bytes; several tensors move in one plan."},
};

// All rows, and where each is by its id.
struct AllRows {
  std::vector<OpRow> rows;
  std::vector<const OpRow*> by_id;

  AllRows() {
    for (const absl::Span<const OpRow> some :
         {absl::Span<const OpRow>(kRows), composites::MathRows(), composites::ModelRows(),
          composites::ArrangementRows(), composites::LinalgRows(), composites::MatrixRows(), composites::FourierRows(),
          composites::RandomRows(), composites::WindowRows(), composites::StatisticsRows(), composites::TrainingRows(),
          composites::GradientRows(), composites::GraphRows()}) {
      rows.insert(rows.end(), some.begin(), some.end());
    }
    for (const OpRow& row : rows) {
      const size_t number = static_cast<size_t>(row.id);
      if (number >= by_id.size()) by_id.resize(number + 1, nullptr);
      by_id[number] = &row;
    }
  }
};

const AllRows& Rows() {
  static const AllRows* const kAll = new AllRows();
  return *kAll;
}

}  // namespace

absl::Span<const OpRow> Catalog() { return Rows().rows; }

absl::StatusOr<const OpRow*> FindOp(OpId id) {
  const size_t number = static_cast<size_t>(id);
  const std::vector<const OpRow*>& by_id = Rows().by_id;
  if (number < by_id.size() && by_id[number] != nullptr) return by_id[number];
  return absl::InvalidArgumentError(StrCat("unknown op number ", number));
}

std::string_view NameOf(OpId id) {
  const absl::StatusOr<const OpRow*> row = FindOp(id);
  return row.ok() ? (*row)->name : std::string_view("unknown op");
}

absl::StatusOr<const OpRow*> FindOpByName(std::string_view name) {
  std::string known;
  for (const OpRow& row : Catalog()) {
    if (row.name == name) return &row;
    StrAppend(&known, " ", row.name);
  }
  return absl::InvalidArgumentError(StrCat("unknown op \"", Printable(name, 40), "\"; known:", known));
}

}  // namespace tessera
