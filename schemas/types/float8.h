#pragma once

// Floats of 8 bits as C++ types, kept in 8 bits and read as float: e4m3 has 4 bits of exponent, 3 of mantissa and no
// infinity, e5m2 has 5, 2 and infinities (Micikevicius et al., "FP8 formats for deep learning", 2022). Conversions
// round to nearest, ties to even, once, from whatever they convert. A number that is too large becomes NaN in e4m3 and
// infinite in e5m2, as in NumPy (ml_dtypes) and torch; nothing saturates.
//
//   F8E4M3(0.1f).bits == 0x1D;  float(F8E4M3(0.1f)) == 0.1015625f;  F8E4M3(465.0f) is NaN, F8E4M3(464.0f) is 448

#include <bit>
#include <cstdint>
#include <type_traits>

#include "schemas/types/half.h"

namespace tessera {

template <int kMantissa>
struct Byte8 {
  using Bits = uint8_t;
  static constexpr int kBias = kMantissa == 3 ? 7 : 15;
  static constexpr uint32_t kNaN = 0x7F;
  // Above kGreatest are NaNs alone; e4m3 has no infinity.
  static constexpr uint32_t kGreatest = kMantissa == 3 ? 0x7E : 0x7C, kInfinity = kMantissa == 3 ? ~0U : 0x7C;
  static constexpr uint32_t kTooLargeIs = kMantissa == 3 ? kNaN : kInfinity;
  // The first number that rounds to none of the format's, whatever its last bits.
  static constexpr float kTooLarge = kMantissa == 3 ? 480.0f : 0x1p16f;

  static float ToFloat(uint32_t bits) {
    // A product brings the exponent to a float's, and makes subnormals right.
    constexpr float kScale = kMantissa == 3 ? 0x1p120f : 0x1p112f;
    const uint32_t rest = bits & 0x7F;
    const float scaled = std::bit_cast<float>(rest << (23 - kMantissa)) * kScale;
    const uint32_t infinite = rest == kInfinity ? uint32_t{0xFF} << 23 : 0;
    const uint32_t number = std::bit_cast<uint32_t>(scaled) | infinite;
    return std::bit_cast<float>((rest > kGreatest ? 0x7FC00000 : number) | (bits & 0x80) << 24);
  }
  static uint32_t FromFloat(float value) {
    constexpr int kCut = 23 - kMantissa;
    constexpr uint32_t kInfinite = uint32_t{0xFF} << 23, kAbove = std::bit_cast<uint32_t>(kTooLarge);
    constexpr uint32_t kLeastNormal = uint32_t{127 - kBias + 1} << 23;
    constexpr uint32_t kSubnormal = uint32_t{127 - kBias + kCut + 1} << 23;
    const uint32_t all = std::bit_cast<uint32_t>(value);
    const uint32_t sign = all & 0x80000000, rest = all ^ sign;
    const uint32_t special = rest > kInfinite ? kNaN : kTooLargeIs;
    // Adding a number whose last place is the last one of a subnormal rounds to it.
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(rest) + std::bit_cast<float>(kSubnormal)) - kSubnormal;
    constexpr uint32_t kHalf = (uint32_t{1} << (kCut - 1)) - 1;
    const uint32_t normal = (rest - kLeastNormal + (1 << 23) + kHalf + ((rest >> kCut) & 1)) >> kCut;
    const uint32_t small = rest < kLeastNormal ? subnormal : normal;
    return (rest >= kAbove ? special : small) | sign >> 24;
  }
};

template <int kMantissa>
using Float8 = ShortFloat<Byte8<kMantissa>>;
using F8E4M3 = Float8<3>;
using F8E5M2 = Float8<2>;

template <typename T>
inline constexpr bool kIsFloat8 = std::is_same_v<T, F8E4M3> || std::is_same_v<T, F8E5M2>;

}  // namespace tessera
