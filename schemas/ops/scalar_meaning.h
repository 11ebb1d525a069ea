#pragma once

// The meaning of a scalar op, as templates over the C++ type of a dtype: EvaluateScalarOp and the kernels' loops share
// it, so that they can't differ. f16 and bf16 are computed with as float and rounded at once; a bool is not a number
// here, save that and, or, xor, not and the comparisons take its bytes 0 and 1.
//
// An op is a line in one of these:
//   VisitUnary, VisitBinary      numbers to a number of their type, a few instructions: loops over them are vectorised
//   VisitPredicate, VisitComparison  numbers to a bool
//   VisitLibrary, VisitLibraryBinary by functions of <cmath> and branches; kernels may have vectors of their own for
//                                those of floats, within MaxUlps
// Each calls visit(function) for the op's function of T and returns what that returns, or false when T has none.
//
//   VisitBinary<int32_t>(ScalarOp::kFloorDivide, [&](auto f) { return f(-7, 2) == -4; })

#include <cmath>
#include <limits>
#include <type_traits>

#include "schemas/ops/expression.h"
#include "schemas/ops/scalar_functions.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/half.h"

namespace tessera::scalar {

// Within half an ulp and some 1e-15 of one, so exact of a cube: the library's root with a step of Newton's, for which
// what is left of the number is computed exactly. Scaled, so that no product is too large or too small for that.
inline double CubeRoot(double a) {
  const double size = std::fabs(a);
  const bool is_small = size<0x1p-500, is_large = size> 0x1p500;
  const double x = a * (is_small ? 0x1p300 : is_large ? 0x1p-300 : 1.0);
  const double root = std::cbrt(x), square = root * root, cube = square * root;
  const double rest = x - cube - std::fma(square, root, -cube) - std::fma(root, root, -square) * root;
  const double better = root + rest / (3 * square);
  return (better == better ? better : root) * (is_small ? 0x1p-100 : is_large ? 0x1p100 : 1.0);
}
inline float CubeRoot(float a) { return static_cast<float>(std::cbrt(static_cast<double>(a))); }

// A power of floats. Whole powers of 2 are exact, whatever pow gives.
template <typename T>
inline T PowerOf(T base, T exponent) {
  if constexpr (kIsFloat<T>)
    return base == 2 ? std::exp2(exponent) : Power(base, exponent);
  else
    return Power(base, exponent);
}

template <typename T, typename Visit>
inline bool VisitUnary(ScalarOp op, Visit&& visit) {
  switch (op) {
    case ScalarOp::kNeg: return visit([](T a) { return Negate(a); });
    case ScalarOp::kRelu: return visit([](T a) { return Maximum(a, T{0}); });
    case ScalarOp::kAbs: return visit([](T a) { return Absolute(a); });
    case ScalarOp::kSign: return visit([](T a) { return Sign(a); });
    case ScalarOp::kReal:
    case ScalarOp::kConj: return visit([](T a) { return a; });
    case ScalarOp::kImag: return visit([](T) { return T{0}; });
    default: break;
  }
  if constexpr (kIsFloat<T>) {
    switch (op) {
      case ScalarOp::kSqrt: return visit([](T a) { return std::sqrt(a); });
      case ScalarOp::kFloor: return visit([](T a) { return std::floor(a); });
      case ScalarOp::kCeil: return visit([](T a) { return std::ceil(a); });
      case ScalarOp::kTrunc: return visit([](T a) { return std::trunc(a); });
      case ScalarOp::kRound: return visit([](T a) { return std::rint(a); });  // halves to even
      default: return false;
    }
  } else {
    switch (op) {
      case ScalarOp::kFloor:
      case ScalarOp::kCeil:
      case ScalarOp::kTrunc:
      case ScalarOp::kRound: return visit([](T a) { return a; });
      case ScalarOp::kNot: return visit([](T a) { return static_cast<T>(~a); });
      default: return false;
    }
  }
}

template <typename T, typename Visit>
inline bool VisitBinary(ScalarOp op, Visit&& visit) {
  switch (op) {
    case ScalarOp::kAdd: return visit([](T a, T b) { return Add(a, b); });
    case ScalarOp::kSub: return visit([](T a, T b) { return Subtract(a, b); });
    case ScalarOp::kMul: return visit([](T a, T b) { return Multiply(a, b); });
    case ScalarOp::kDiv: return visit([](T a, T b) { return Divide(a, b); });
    case ScalarOp::kMaximum: return visit([](T a, T b) { return Maximum(a, b); });
    case ScalarOp::kMinimum: return visit([](T a, T b) { return Minimum(a, b); });
    default: break;
  }
  if constexpr (kIsFloat<T>) {
    if (op == ScalarOp::kCopySign) return visit([](T a, T b) { return std::copysign(a, b); });
    return false;
  } else {
    switch (op) {
      case ScalarOp::kAnd: return visit([](T a, T b) { return static_cast<T>(a & b); });
      case ScalarOp::kOr: return visit([](T a, T b) { return static_cast<T>(a | b); });
      case ScalarOp::kXor: return visit([](T a, T b) { return static_cast<T>(a ^ b); });
      case ScalarOp::kShiftLeft: return visit([](T a, T b) { return ShiftLeft(a, b); });
      case ScalarOp::kShiftRight: return visit([](T a, T b) { return ShiftRight(a, b); });
      default: return false;
    }
  }
}

// By the order's own meaning of a NaN: none is equal, none is finite, an integer is never infinite.
template <typename T, typename Visit>
inline bool VisitPredicate(ScalarOp op, Visit&& visit) {
  switch (op) {
    case ScalarOp::kIsNan: return visit([](T a) { return a != a; });
    case ScalarOp::kIsInf: return visit([](T a) { return kIsFloat<T> && Absolute(a) > std::numeric_limits<T>::max(); });
    case ScalarOp::kIsFinite:
      return visit([](T a) { return !kIsFloat<T> || Absolute(a) <= std::numeric_limits<T>::max(); });
    case ScalarOp::kSignBit:
      if constexpr (kIsFloat<T>) return visit([](T a) { return std::copysign(T{1}, a) < 0; });
      if constexpr (!kIsFloat<T>) return visit([](T a) { return a < T{0}; });
      return false;
    default: return false;
  }
}

template <typename T, typename Visit>
inline bool VisitComparison(ScalarOp op, Visit&& visit) {
  switch (op) {
    case ScalarOp::kEqual: return visit([](T a, T b) { return a == b; });
    case ScalarOp::kNotEqual: return visit([](T a, T b) { return a != b; });
    case ScalarOp::kLess: return visit([](T a, T b) { return a < b; });
    case ScalarOp::kLessEqual: return visit([](T a, T b) { return a <= b; });
    case ScalarOp::kGreater: return visit([](T a, T b) { return a > b; });
    case ScalarOp::kGreaterEqual: return visit([](T a, T b) { return a >= b; });
    default: return false;
  }
}

template <typename T, typename Visit>
inline bool VisitLibrary(ScalarOp op, Visit&& visit) {
  switch (op) {
    case ScalarOp::kExp: return visit([](T a) { return std::exp(a); });
    case ScalarOp::kExpm1: return visit([](T a) { return std::expm1(a); });
    case ScalarOp::kLog: return visit([](T a) { return std::log(a); });
    case ScalarOp::kLog1p: return visit([](T a) { return std::log1p(a); });
    case ScalarOp::kLog2: return visit([](T a) { return std::log2(a); });
    case ScalarOp::kLog10: return visit([](T a) { return std::log10(a); });
    case ScalarOp::kSin: return visit([](T a) { return std::sin(a); });
    case ScalarOp::kCos: return visit([](T a) { return std::cos(a); });
    case ScalarOp::kTan: return visit([](T a) { return std::tan(a); });
    case ScalarOp::kAsin: return visit([](T a) { return std::asin(a); });
    case ScalarOp::kAcos: return visit([](T a) { return std::acos(a); });
    case ScalarOp::kAtan: return visit([](T a) { return std::atan(a); });
    case ScalarOp::kSinh: return visit([](T a) { return std::sinh(a); });
    case ScalarOp::kCosh: return visit([](T a) { return std::cosh(a); });
    case ScalarOp::kTanh: return visit([](T a) { return std::tanh(a); });
    case ScalarOp::kAsinh: return visit([](T a) { return std::asinh(a); });
    case ScalarOp::kAcosh: return visit([](T a) { return std::acosh(a); });
    case ScalarOp::kAtanh: return visit([](T a) { return std::atanh(a); });
    case ScalarOp::kErf: return visit([](T a) { return std::erf(a); });
    case ScalarOp::kSigmoid: return visit([](T a) { return Sigmoid(a); });
    case ScalarOp::kCbrt: return visit([](T a) { return CubeRoot(a); });
    default: return false;
  }
}

// For nextafter T may be F16 or BF16.
template <typename T, typename Visit>
inline bool VisitLibraryBinary(ScalarOp op, Visit&& visit) {
  if constexpr (!std::is_integral_v<T>) {
    if (op == ScalarOp::kNextAfter) return visit([](T a, T b) { return NextAfter(a, b); });
  }
  if constexpr (!kIsHalf<T>) {
    switch (op) {
      case ScalarOp::kFloorDivide: return visit([](T a, T b) { return FloorDivide(a, b); });
      case ScalarOp::kRemainder: return visit([](T a, T b) { return Remainder(a, b); });
      case ScalarOp::kPow: return visit([](T a, T b) { return PowerOf(a, b); });
      default: break;
    }
  }
  if constexpr (std::is_integral_v<T>) {
    if (op == ScalarOp::kGcd) return visit([](T a, T b) { return CommonDivisor(a, b); });
  }
  if constexpr (kIsFloat<T>) {
    switch (op) {
      case ScalarOp::kAtan2: return visit([](T a, T b) { return std::atan2(a, b); });
      case ScalarOp::kHypot: return visit([](T a, T b) { return std::hypot(a, b); });
      case ScalarOp::kLogAddExp: return visit([](T a, T b) { return LogAddExp(a, b); });
      default: break;
    }
  }
  return false;
}

}  // namespace tessera::scalar
