#pragma once

// The functions of map expressions beside those of elements.cuh, which rows of schemas/ops/scalar_ops.inc name.
// Halves are passed to them as float. It includes elements.cuh alone.

#include "kernels/cuda/elements.cuh"

namespace tessera::cuda {

#define TESSERA_LIBRARY(Name, function)                                        \
  __device__ inline float Name(float a) { return function##f(a); }             \
  __device__ inline double Name(double a) { return function(a); }
TESSERA_LIBRARY(Exp, exp)
TESSERA_LIBRARY(Expm1, expm1)
TESSERA_LIBRARY(Log, log)
TESSERA_LIBRARY(Log1p, log1p)
TESSERA_LIBRARY(Log2, log2)
TESSERA_LIBRARY(Log10, log10)
TESSERA_LIBRARY(Sin, sin)
TESSERA_LIBRARY(Cos, cos)
TESSERA_LIBRARY(Tan, tan)
TESSERA_LIBRARY(Asin, asin)
TESSERA_LIBRARY(Acos, acos)
TESSERA_LIBRARY(Atan, atan)
TESSERA_LIBRARY(Sinh, sinh)
TESSERA_LIBRARY(Cosh, cosh)
TESSERA_LIBRARY(Tanh, tanh)
TESSERA_LIBRARY(Asinh, asinh)
TESSERA_LIBRARY(Acosh, acosh)
TESSERA_LIBRARY(Atanh, atanh)
TESSERA_LIBRARY(Erf, erf)
TESSERA_LIBRARY(Sqrt, sqrt)
TESSERA_LIBRARY(WholeBelow, floor)
TESSERA_LIBRARY(WholeAbove, ceil)
TESSERA_LIBRARY(WholeToZero, trunc)
TESSERA_LIBRARY(WholeNearest, rint)
#undef TESSERA_LIBRARY
// As scalar::CubeRoot: exact of a cube.
__device__ inline double Cbrt(double a) {
  const double size = Magnitude(a);
  const bool is_small = size < 0x1p-500, is_large = size > 0x1p500;
  const double x = a * (is_small ? 0x1p300 : is_large ? 0x1p-300 : 1.0);
  const double root = cbrt(x), square = root * root, cube = square * root;
  const double rest = x - cube - fma(square, root, -cube) - fma(root, root, -square) * root;
  const double better = root + rest / (3 * square);
  return (better == better ? better : root) * (is_small ? 0x1p-100 : is_large ? 0x1p100 : 1.0);
}
__device__ inline float Cbrt(float a) { return static_cast<float>(cbrt(static_cast<double>(a))); }
__device__ inline float Modulo(float a, float b) { return fmodf(a, b); }
__device__ inline double Modulo(double a, double b) { return fmod(a, b); }
__device__ inline float WithSign(float a, float b) { return copysignf(a, b); }
__device__ inline double WithSign(double a, double b) { return copysign(a, b); }
__device__ inline float Atan2(float a, float b) { return atan2f(a, b); }
__device__ inline double Atan2(double a, double b) { return atan2(a, b); }
__device__ inline float Hypot(float a, float b) { return hypotf(a, b); }
__device__ inline double Hypot(double a, double b) { return hypot(a, b); }

// ---- of one number

template <typename T>
__device__ inline T Relu(T a) {
  return Maximum(a, T(0));
}
template <typename T>
__device__ inline auto Absolute(T a) {
  if constexpr (kIsComplex<T>) return Hypot(a.real, a.imag);
  else if constexpr (kIsFloat<T>) return Magnitude(a);
  else if constexpr (kIsSigned<T>) return a < 0 ? Negate(a) : a;
  else return a;
}
// NaN of a NaN.
template <typename T>
__device__ inline T Sign(T a) {
  if constexpr (kIsComplex<T>) {
    using P = typename T::Part;
    const P size = Absolute(a);
    if (size == 0) return {0, 0};
    const bool is_real_infinite = Magnitude(a.real) == Infinity<P>();
    const bool is_imag_infinite = Magnitude(a.imag) == Infinity<P>();
    if (size != size || (is_real_infinite && is_imag_infinite)) return {NaN<P>(), NaN<P>()};
    if (is_real_infinite) return {a.real > 0 ? P(1) : P(-1), 0};
    if (is_imag_infinite) return {0, a.imag > 0 ? P(1) : P(-1)};
    return {a.real / size, a.imag / size};
  } else if constexpr (kIsFloat<T>) {
    return a != a ? a : static_cast<T>((a > 0) - (a < 0));
  } else {
    return static_cast<T>((a > T(0)) - (a < T(0)));
  }
}
template <typename T>
__device__ inline T Floor(T a) {
  if constexpr (kIsFloat<T>) return WholeBelow(a);
  else return a;
}
template <typename T>
__device__ inline T Ceil(T a) {
  if constexpr (kIsFloat<T>) return WholeAbove(a);
  else return a;
}
template <typename T>
__device__ inline T Trunc(T a) {
  if constexpr (kIsFloat<T>) return WholeToZero(a);
  else return a;
}
// Halves to even.
template <typename T>
__device__ inline T Round(T a) {
  if constexpr (kIsComplex<T>) return {WholeNearest(a.real), WholeNearest(a.imag)};
  else if constexpr (kIsFloat<T>) return WholeNearest(a);
  else return a;
}
template <typename T>
__device__ inline T Not(T a) {
  if constexpr (kIsSame<T, bool>) return !a;
  else return static_cast<T>(~a);
}
template <typename T>
__device__ inline T Sigmoid(T a) {
  const T e = Exp(-Magnitude(a));
  return (a < 0 ? e : T(1)) / (1 + e);
}
template <typename T>
__device__ inline auto Real(T a) {
  if constexpr (kIsComplex<T>) return a.real;
  else return a;
}
template <typename T>
__device__ inline auto Imag(T a) {
  if constexpr (kIsComplex<T>) return a.imag;
  else return T(0);
}
template <typename T>
__device__ inline T Conj(T a) {
  if constexpr (kIsComplex<T>) return {a.real, -a.imag};
  else return a;
}

template <typename T>
__device__ inline bool IsNan(T a) {
  if constexpr (kIsComplex<T>) return IsNan(a.real) || IsNan(a.imag);
  else return a != a;
}
template <typename T>
__device__ inline bool IsInf(T a) {
  if constexpr (kIsComplex<T>) return IsInf(a.real) || IsInf(a.imag);
  else if constexpr (kIsFloat<T>) return Magnitude(a) == Infinity<T>();
  else return false;
}
template <typename T>
__device__ inline bool IsFinite(T a) {
  if constexpr (kIsComplex<T>) return IsFinite(a.real) && IsFinite(a.imag);
  else if constexpr (kIsFloat<T>) return Magnitude(a) < Infinity<T>();
  else return true;
}
template <typename T>
__device__ inline bool SignBit(T a) {
  if constexpr (kIsFloat<T>) return WithSign(T(1), a) < 0;
  else return a < T(0);
}

// ---- of two

template <typename T>
__device__ inline bool Equal(T a, T b) {
  if constexpr (kIsComplex<T>) return a.real == b.real && a.imag == b.imag;
  else return a == b;
}
template <typename T>
__device__ inline bool NotEqual(T a, T b) {
  return !Equal(a, b);
}
template <typename T>
__device__ inline bool Less(T a, T b) {
  return a < b;
}
template <typename T>
__device__ inline bool LessEqual(T a, T b) {
  return a <= b;
}
template <typename T>
__device__ inline bool Greater(T a, T b) {
  return a > b;
}
template <typename T>
__device__ inline bool GreaterEqual(T a, T b) {
  return a >= b;
}
template <typename T>
__device__ inline T And(T a, T b) {
  return static_cast<T>(a & b);
}
template <typename T>
__device__ inline T Or(T a, T b) {
  return static_cast<T>(a | b);
}
template <typename T>
__device__ inline T Xor(T a, T b) {
  return static_cast<T>(a ^ b);
}
template <typename T>
__device__ inline bool ShiftsAll(T count) {
  return static_cast<u64>(static_cast<i64>(count)) >= sizeof(T) * 8;
}
template <typename T>
__device__ inline T ShiftLeft(T a, T count) {
  return ShiftsAll(count) ? T(0) : static_cast<T>(static_cast<Wrapping<T>>(a) << count);
}
template <typename T>
__device__ inline T ShiftRight(T a, T count) {
  return ShiftsAll(count) ? static_cast<T>(a < T(0) ? -1 : 0) : static_cast<T>(a >> count);
}
// Rounded towards minus infinity; floats as Python rounds them.
template <typename T>
__device__ inline T FloorDivide(T a, T b) {
  if constexpr (kIsFloat<T>) {
    if (b == 0) return a / b;
    const T rest = Modulo(a, b);
    T quotient = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
    if (quotient == 0) return WithSign(T(0), a / b);
    const T whole = WholeBelow(quotient);
    return quotient - whole > T(0.5) ? whole + 1 : whole;
  } else {
    const T quotient = Divide(a, b);
    if constexpr (kIsSigned<T>) {
      if (b != 0 && b != -1 && a % b != 0 && (a < 0) != (b < 0)) return static_cast<T>(quotient - 1);
    }
    return quotient;
  }
}
// With the sign of b; a zero, too.
template <typename T>
__device__ inline T Remainder(T a, T b) {
  if constexpr (kIsFloat<T>) {
    const T rest = Modulo(a, b);
    if (b == 0 || rest != rest) return rest;
    if (rest == 0) return WithSign(T(0), b);
    return (b < 0) != (rest < 0) ? rest + b : rest;
  } else {
    if (b == 0) return 0;
    if constexpr (kIsSigned<T>) {
      if (b == -1) return 0;
      const T rest = static_cast<T>(a % b);
      return rest != 0 && (rest < 0) != (b < 0) ? static_cast<T>(rest + b) : rest;
    } else {
      return static_cast<T>(a % b);
    }
  }
}
// By Euclid, wrapped where it is one more than the largest number of the type.
template <typename T>
__device__ inline T CommonDivisor(T a, T b) {
  if constexpr (kIsSigned<T>) {
    if (a < 0) a = Negate(a);
    if (b < 0) b = Negate(b);
  }
  Unsigned<T> larger = static_cast<Unsigned<T>>(a), smaller = static_cast<Unsigned<T>>(b);
  while (smaller != 0) {
    const Unsigned<T> rest = static_cast<Unsigned<T>>(larger % smaller);
    larger = smaller;
    smaller = rest;
  }
  return static_cast<T>(larger);
}
// Whole powers of 2 are exact; floats are computed in double, as exp2f is within 2 ulps.
__device__ inline float Power(float base, float exponent) {
  return base == 2 ? static_cast<float>(exp2(static_cast<double>(exponent))) : powf(base, exponent);
}
__device__ inline double Power(double base, double exponent) {
  return base == 2 ? exp2(exponent) : pow(base, exponent);
}
template <typename T>
__device__ inline T Power(T base, T exponent) {
  if constexpr (kIsSigned<T>) {
    if (exponent < 0) {
      return base == 1 ? T(1) : base == -1 ? static_cast<T>(exponent % 2 == 0 ? 1 : -1) : T(0);
    }
  }
  T power = 1;
  for (Unsigned<T> rest = static_cast<Unsigned<T>>(exponent); rest != 0; rest >>= 1) {
    if ((rest & 1) != 0) power = Multiply(power, base);
    base = Multiply(base, base);
  }
  return power;
}
template <typename T>
__device__ inline T LogAddExp(T a, T b) {
  if (a == b) return a + T(0.693147180559945309417232121458176568);
  const T distance = a - b;
  if (distance != distance) return distance;
  return (distance > 0 ? a : b) + Log1p(Exp(-Magnitude(distance)));
}
// The next number of the type after a, towards b.
template <typename T, typename Bits>
__device__ inline T NextBits(T a, T b, Bits bits, bool is_zero, bool is_below, bool is_positive, bool is_to_negative) {
  constexpr Bits kSign = static_cast<Bits>(Bits(1) << (sizeof(T) * 8 - 1));
  if (is_zero) {
    bits = static_cast<Bits>((is_to_negative ? kSign : Bits(0)) | Bits(1));
  } else {
    bits = static_cast<Bits>(is_below == is_positive ? bits + 1 : bits - 1);
  }
  if constexpr (kIsSame<T, float>) return FloatOfBits(bits);
  else if constexpr (kIsSame<T, double>) return DoubleOfBits(bits);
  else return T{bits};
}
template <typename T>
__device__ inline T NextAfter(T a, T b) {
  if constexpr (kIsHalf<T>) {
    const float from = ToFloat(a), to = ToFloat(b);
    if (from != from) return a;
    if (to != to || from == to) return b;
    return NextBits(a, b, a.bits, from == 0, from < to, from > 0, to < 0);
  } else {
    if (a != a) return a;
    if (b != b || a == b) return b;
    if constexpr (kIsSame<T, float>) return NextBits(a, b, BitsOfFloat(a), a == 0, a < b, a > 0, b < 0);
    else return NextBits(a, b, BitsOfDouble(a), a == 0, a < b, a > 0, b < 0);
  }
}

}  // namespace tessera::cuda
