#pragma once

// PTX's arithmetic, as templates over C++ types of numbers: int8_t to int64_t, float and double. The names and laws are
// those of the PTX ISA's section "Instructions".

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace tessera::ptx {

template <int kBytes>
struct BitsOfSize;
template <>
struct BitsOfSize<1> {
  using Type = uint8_t;
};
template <>
struct BitsOfSize<2> {
  using Type = uint16_t;
};
template <>
struct BitsOfSize<4> {
  using Type = uint32_t;
};
template <>
struct BitsOfSize<8> {
  using Type = uint64_t;
};

template <typename T>
inline T ValueOf(uint64_t bits) {
  using Bits = typename BitsOfSize<sizeof(T)>::Type;
  return std::bit_cast<T>(static_cast<Bits>(bits));
}
template <typename T>
inline uint64_t BitsOf(T value) {
  using Bits = typename BitsOfSize<sizeof(T)>::Type;
  return std::bit_cast<Bits>(value);
}

template <typename T>
inline constexpr bool kIsFloating = std::is_floating_point_v<T>;
// Products of narrow integers in an unsigned type: int would overflow.
template <typename T>
using Wide = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <typename T>
T Add(T a, T b) {
  if constexpr (kIsFloating<T>) return a + b;
  if constexpr (!kIsFloating<T>) return static_cast<T>(static_cast<Wide<T>>(a) + static_cast<Wide<T>>(b));
}
template <typename T>
T Subtract(T a, T b) {
  if constexpr (kIsFloating<T>) return a - b;
  if constexpr (!kIsFloating<T>) return static_cast<T>(static_cast<Wide<T>>(a) - static_cast<Wide<T>>(b));
}
template <typename T>
T Multiply(T a, T b) {
  if constexpr (kIsFloating<T>) return a * b;
  if constexpr (!kIsFloating<T>) return static_cast<T>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b));
}
template <typename T>
T MultiplyHigh(T a, T b) {
  using Product = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
  return static_cast<T>((static_cast<Product>(a) * static_cast<Product>(b)) >> (8 * sizeof(T)));
}
template <typename T>
T Divide(T a, T b) {
  if constexpr (kIsFloating<T>) {
    return a / b;
  } else {
    if (b == 0) return static_cast<T>(-1);
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return Subtract(T{0}, a);
    }
    return static_cast<T>(a / b);
  }
}
template <typename T>
T Remainder(T a, T b) {
  if (b == 0) return a;
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) return 0;
  }
  return static_cast<T>(a % b);
}
template <typename T>
T Minimum(T a, T b) {
  if constexpr (kIsFloating<T>) return std::fmin(a, b);
  return a < b ? a : b;
}
template <typename T>
T Maximum(T a, T b) {
  if constexpr (kIsFloating<T>) return std::fmax(a, b);
  return a > b ? a : b;
}
template <typename T>
T Negate(T a) {
  if constexpr (kIsFloating<T>) return -a;
  if constexpr (!kIsFloating<T>) return Subtract(T{0}, a);
}
template <typename T>
T Absolute(T a) {
  if constexpr (kIsFloating<T>) return std::fabs(a);
  if constexpr (!kIsFloating<T>) return a < T{0} ? Negate(a) : a;
}
template <typename T>
T ShiftLeft(T a, uint32_t count) {
  return count >= 8 * sizeof(T) ? T{0} : static_cast<T>(static_cast<Wide<T>>(a) << count);
}
template <typename T>
T ShiftRight(T a, uint32_t count) {
  if (count >= 8 * sizeof(T)) return static_cast<T>(a < T{0} ? -1 : 0);
  return static_cast<T>(a >> count);
}

// In another direction than to the nearest, which compilers don't know of.
class RoundingScope {
 public:
  explicit RoundingScope(uint8_t mode) : mode_(mode) {
    constexpr int kModes[] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
    if (mode_ != 0) std::fesetround(kModes[mode_]);
  }
  ~RoundingScope() {
    if (mode_ != 0) std::fesetround(FE_TONEAREST);
  }
  RoundingScope(const RoundingScope&) = delete;
  RoundingScope& operator=(const RoundingScope&) = delete;

 private:
  uint8_t mode_;
};

// To a whole number: 0 none, 1 to zero, 2 to the nearest, 3 down, 4 up.
template <typename T>
T ToWhole(T value, uint8_t mode) {
  switch (mode) {
    case 1: return std::trunc(value);
    case 2: return std::nearbyint(value);
    case 3: return std::floor(value);
    case 4: return std::ceil(value);
    default: return value;
  }
}

// A float out of an integer's range saturates; a NaN gives 0, in 64 bits the lowest bit pattern 2^63.
template <typename To, typename From>
To Convert(From value, uint8_t mode) {
  if constexpr (kIsFloating<From> && !kIsFloating<To>) {
    const From whole = ToWhole(value, mode);
    if (whole != whole) return sizeof(To) == 8 ? static_cast<To>(uint64_t{1} << 63) : To{0};
    if (whole >= std::ldexp(From{1}, std::numeric_limits<To>::digits)) return std::numeric_limits<To>::max();
    if (whole < static_cast<From>(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
    return static_cast<To>(whole);
  } else if constexpr (kIsFloating<From> && std::is_same_v<From, To>) {
    return ToWhole(value, mode);
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace tessera::ptx
