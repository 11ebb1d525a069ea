#pragma once

// f16 (IEEE 754 binary16) and bf16 as C++ types: kept in 16 bits, computed with as float. Conversions round to nearest,
// ties to even, once, from whatever they convert; a number that is too large becomes infinite.
//
//   F16(0.1f).bits == 0x2E66;  float(BF16(0.1f)) == 0.10009765625f;  float(F16(65520.0)) is infinite
//
// Without branches, so that loops over them are vectorised. Source for f16: Giesen, "Float->half variants" (2012).

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace tessera {

// The float that rounds to 16 bits as the double does: cut off, and odd where something was.
inline float RoundToOdd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = static_cast<double>(nearest);
  if (back == value || value != value) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  bits -= std::fabs(back) > std::fabs(value) ? 1 : 0;
  return std::bit_cast<float>(bits | 1);
}

// The double that rounds to 16 bits as the number does: of 64 bits that a double has not, 53 are kept, the last of them
// odd where something was cut off.
template <typename N>
inline double DoubleForHalf(N value) {
  if constexpr (std::is_integral_v<N> && sizeof(N) == 8) {
    constexpr N kExact = N{1} << 53;
    bool is_exact = value <= kExact;
    if constexpr (std::is_signed_v<N>) is_exact = is_exact && value >= -kExact;
    const N odd = (value >> 11) | static_cast<N>((value & 0x7FF) != 0 ? 1 : 0);
    return is_exact ? static_cast<double>(value) : static_cast<double>(odd) * 0x1p11;
  } else {
    return static_cast<double>(value);
  }
}

template <typename N>
inline float FloatForHalf(N value) {
  if constexpr (std::is_same_v<N, float>) {
    return value;
  } else {
    return RoundToOdd(DoubleForHalf(value));
  }
}

struct Ieee16 {
  using Bits = uint16_t;
  static float ToFloat(uint32_t bits) {
    // A product brings the exponent to a float's, and makes subnormals right.
    const float scaled = std::bit_cast<float>((bits & 0x7FFF) << 13) * 0x1p112f;
    const uint32_t special = scaled >= 0x1p16f ? uint32_t{0xFF} << 23 : 0;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | (bits & 0x8000) << 16);
  }
  static uint32_t FromFloat(float value) {
    constexpr uint32_t kInfinite = uint32_t{0xFF} << 23, kTooLarge = uint32_t{127 + 16} << 23;
    constexpr uint32_t kLeastNormal = uint32_t{127 - 14} << 23, kSubnormal = uint32_t{127 - 15 + 23 - 10 + 1} << 23;
    const uint32_t all = std::bit_cast<uint32_t>(value);
    const uint32_t sign = all & 0x80000000, rest = all ^ sign;
    const uint32_t special = rest > kInfinite ? 0x7E00 : 0x7C00;
    // Adding a number whose last place is the last one of a subnormal f16 rounds to it.
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(rest) + std::bit_cast<float>(kSubnormal)) - kSubnormal;
    const uint32_t normal = (rest - kLeastNormal + (1 << 23) + 0xFFF + ((rest >> 13) & 1)) >> 13;
    const uint32_t small = rest < kLeastNormal ? subnormal : normal;
    return (rest >= kTooLarge ? special : small) | sign >> 16;
  }
};

struct Brain16 {
  using Bits = uint16_t;
  static float ToFloat(uint32_t bits) { return std::bit_cast<float>(bits << 16); }
  static uint32_t FromFloat(float value) {
    const uint32_t all = std::bit_cast<uint32_t>(value);
    const bool is_nan = (all & 0x7FFFFFFF) > uint32_t{0xFF} << 23;
    return is_nan ? (all >> 16) | 0x40 : (all + 0x7FFF + ((all >> 16) & 1)) >> 16;
  }
};

// A number that is kept in the bits of a format, and read as float.
template <typename Format>
struct ShortFloat {
  typename Format::Bits bits;

  ShortFloat() = default;
  template <typename N>
  requires std::is_arithmetic_v<N>
  explicit ShortFloat(N value) : bits(static_cast<typename Format::Bits>(Format::FromFloat(FloatForHalf(value)))) {}

  operator float() const { return Format::ToFloat(bits); }  // NOLINT: read as the number it is
};

using F16 = ShortFloat<Ieee16>;
using BF16 = ShortFloat<Brain16>;

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, F16> || std::is_same_v<T, BF16>;

}  // namespace tessera
