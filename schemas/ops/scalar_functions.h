#pragma once

// The functions of numbers that are no operator of C++ and no function of <cmath> alone, as templates over the C++ type
// of a dtype. schemas/ops/scalar_meaning.h says which op has which.
//
// Integers wrap. Division of integers by zero gives 0, and so does the remainder. Floor division and remainder have the
// signs of Python and NumPy. The power of integers is the exact one without its fraction, so 2 ** -1 is 0; 0 ** -1
// is 0. A shift by less than 0 or by the width and more gives 0, or -1 of a negative number shifted right.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace tessera::scalar {

template <typename T>
inline constexpr bool kIsFloat = std::is_floating_point_v<T>;
// Arithmetic that wraps; narrow integers don't use int, which a product of two can leave.
template <typename T>
using Wrapping = std::common_type_t<std::make_unsigned_t<T>, unsigned>;

template <typename T>
inline T Add(T a, T b) {
  if constexpr (kIsFloat<T>) return a + b;
  if constexpr (!kIsFloat<T>) return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
}
template <typename T>
inline T Subtract(T a, T b) {
  if constexpr (kIsFloat<T>) return a - b;
  if constexpr (!kIsFloat<T>) return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
}
template <typename T>
inline T Multiply(T a, T b) {
  if constexpr (kIsFloat<T>) return a * b;
  if constexpr (!kIsFloat<T>) return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
}
template <typename T>
inline T Negate(T a) {
  if constexpr (kIsFloat<T>) return -a;
  if constexpr (!kIsFloat<T>) return Subtract(T{0}, a);
}
template <typename T>
inline T Divide(T a, T b) {
  if constexpr (kIsFloat<T>) {
    return a / b;
  } else {
    if (b == 0) return 0;
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return Negate(a);
    }
    return static_cast<T>(a / b);
  }
}
// NaN propagates: a comparison with a NaN is false, so a NaN in b is taken last.
template <typename T>
inline T Maximum(T a, T b) {
  if constexpr (kIsFloat<T>) return (a > b || a != a) ? a : b;
  return a > b ? a : b;
}
template <typename T>
inline T Minimum(T a, T b) {
  if constexpr (kIsFloat<T>) return (a < b || a != a) ? a : b;
  return a < b ? a : b;
}

// Rounded towards minus infinity. Floats are divided as Python does it: the quotient without its remainder is close to
// a whole number, and that is taken.
template <typename T>
inline T FloorDivide(T a, T b) {
  if constexpr (kIsFloat<T>) {
    if (b == 0) return a / b;
    const T rest = std::fmod(a, b);
    T quotient = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
    if (quotient == 0) return std::copysign(T{0}, a / b);
    const T whole = std::floor(quotient);
    return quotient - whole > T{0.5} ? whole + 1 : whole;
  } else {
    const T quotient = Divide(a, b);
    if constexpr (std::is_signed_v<T>) {
      if (b != 0 && b != -1 && a % b != 0 && (a < 0) != (b < 0)) return static_cast<T>(quotient - 1);
    }
    return quotient;
  }
}
// With the sign of b; a zero, too.
template <typename T>
inline T Remainder(T a, T b) {
  if constexpr (kIsFloat<T>) {
    const T rest = std::fmod(a, b);
    if (b == 0 || rest != rest) return rest;
    if (rest == 0) return std::copysign(T{0}, b);
    return (b < 0) != (rest < 0) ? rest + b : rest;
  } else {
    if (b == 0) return 0;
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return 0;
      const T rest = static_cast<T>(a % b);
      return rest != 0 && (rest < 0) != (b < 0) ? static_cast<T>(rest + b) : rest;
    }
    return static_cast<T>(a % b);
  }
}

// The greatest common divisor by Euclid, wrapped where it is one more than the largest number of the type.
template <typename T>
inline T CommonDivisor(T a, T b) {
  const auto size = [](T n) { return static_cast<std::make_unsigned_t<T>>(n < T{0} ? Negate(n) : n); };
  auto larger = size(a), smaller = size(b);
  while (smaller != 0) {
    const auto rest = static_cast<std::make_unsigned_t<T>>(larger % smaller);
    larger = smaller;
    smaller = rest;
  }
  return static_cast<T>(larger);
}

template <typename T>
inline T IntegerPower(T base, T exponent) {
  if constexpr (std::is_signed_v<T>) {
    if (exponent < 0) return base == 1 ? T{1} : base == -1 ? static_cast<T>(exponent % 2 == 0 ? 1 : -1) : T{0};
  }
  T power = 1;
  for (std::make_unsigned_t<T> rest = static_cast<std::make_unsigned_t<T>>(exponent); rest != 0; rest >>= 1) {
    if ((rest & 1) != 0) power = Multiply(power, base);
    base = Multiply(base, base);
  }
  return power;
}
template <typename T>
inline T Power(T base, T exponent) {
  if constexpr (kIsFloat<T>) return std::pow(base, exponent);
  if constexpr (!kIsFloat<T>) return IntegerPower(base, exponent);
}
template <typename T>
inline bool ShiftsAll(T count) {
  return static_cast<uint64_t>(count) >= sizeof(T) * 8;
}
template <typename T>
inline T ShiftLeft(T a, T count) {
  return ShiftsAll(count) ? T{0} : static_cast<T>(static_cast<Wrapping<T>>(a) << count);
}
template <typename T>
inline T ShiftRight(T a, T count) {
  return ShiftsAll(count) ? static_cast<T>(a < T{0} ? -1 : 0) : static_cast<T>(a >> count);
}
template <typename T>
inline T Absolute(T a) {
  if constexpr (kIsFloat<T>) return std::fabs(a);
  if constexpr (std::is_signed_v<T>) return a < 0 ? Negate(a) : a;
  return a;
}
// NaN of a NaN.
template <typename T>
inline T Sign(T a) {
  if constexpr (kIsFloat<T>) return a != a ? a : static_cast<T>(static_cast<int>(a > 0) - static_cast<int>(a < 0));
  return static_cast<T>(static_cast<int>(a > T{0}) - static_cast<int>(a < T{0}));
}

// 1 / (1 + e^-a), of small results too: nothing overflows.
template <typename T>
inline T Sigmoid(T a) {
  const T e = std::exp(-std::fabs(a));
  return (a < 0 ? e : T{1}) / (1 + e);
}
// log(e^a + e^b), of numbers whose exponentials overflow too.
template <typename T>
inline T LogAddExp(T a, T b) {
  if (a == b) return a + T{0.693147180559945309417232121458176568L};
  const T distance = a - b;
  if (distance != distance) return distance;
  return (distance > 0 ? a : b) + std::log1p(std::exp(-std::fabs(distance)));
}
// The next number of the type after a, towards b; also of f16 and bf16.
template <typename T>
inline T NextAfter(T a, T b) {
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
  using Number = std::conditional_t<sizeof(T) == 8, double, float>;
  const Number from = static_cast<Number>(a), to = static_cast<Number>(b);
  if (from != from) return a;
  if (to != to || from == to) return b;
  constexpr Bits kSign = static_cast<Bits>(Bits{1} << (sizeof(T) * 8 - 1));
  Bits bits = std::bit_cast<Bits>(a);
  if (from == 0) {
    bits = static_cast<Bits>((to < 0 ? kSign : Bits{0}) | Bits{1});
  } else {
    bits = static_cast<Bits>((from < to) == (from > 0) ? bits + 1 : bits - 1);
  }
  return std::bit_cast<T>(bits);
}

}  // namespace tessera::scalar
