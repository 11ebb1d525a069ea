#pragma once

// The law of normal numbers. Two uniform numbers make two normal ones: G. E. P. Box, M. E. Muller, "A note on the
// generation of random normal deviates", 1958.
//
//   radius = sqrt(-2 ln u), angle = 2 pi v: radius * cos(angle) and radius * sin(angle)
//
// So numbers i and i + 1 of even i are a pair, which lies in one counter (philox.h): of f32 and shorter the two words
// of these numbers are those of u and v, of f64 the four words of the counter are, two each. An element needs no other
// element for that, only the counter's words, which it makes by itself where its neighbour lies on another shard.
//
// A number is 0 +- 6.7 at most in f32, and 0 +- 8.6 in f64: u is at least 2^-32 and 2^-53. f16 and bf16 are made in
// f32 and rounded. There are additions, multiplications, divisions and roots alone, of which none is fused, so that a
// number has the same bits on every CPU and GPU (kernels/cuda/normal.cuh). Polynomials: those of FreeBSD's msun
// (e_log.c, e_logf.c, k_sin.c, k_cos.c) and, of f32, Cephes' sinf.c; within 2 units in the last place.

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace tessera {

template <typename T>
struct NormalPair {
  T first, second;
};

template <typename T>
struct NormalParts;
template <>
struct NormalParts<float> {
  using Bits = uint32_t;
  static constexpr int kFraction = 23;
  static constexpr Bits kOne = 0x3F800000, kRootOfHalf = 0x3F3504F3, kLastWhole = 0x4B000000;  // 2^23
  static constexpr float kLastWholeAndBias = 0x1p23F + 127;
  static constexpr float kLog2 = 6.9313812256e-01F, kRestOfLog2 = 9.0580006145e-06F;
  // u = (bits / 2 + 1/2) / 2^31, and the angle beyond the nearest quarter of a turn.
  static float Unit(Bits bits) { return static_cast<float>(static_cast<int32_t>(bits >> 1)) * 0x1p-31F + 0x1p-32F; }
  static float Angle(Bits bits, Bits quarter) {
    return static_cast<float>(static_cast<int32_t>(bits - (quarter << 30))) * 1.4629180793e-09F;
  }
  // (ln(1 + f) - 2 s) / s - f^2 / s of s = f / (2 + f), by z = s^2 and w = z^2.
  static float Log(float z, float w) {
    return z * (6.6666662693e-01F + w * 2.8498786688e-01F) + w * (4.0000972152e-01F + w * 2.4279078841e-01F);
  }
  static float Sine(float z) { return -1.6666654611e-01F + z * (8.3321608736e-03F + z * -1.9515295891e-04F); }
  static float Cosine(float z) { return 4.1666645683e-02F + z * (-1.3887316255e-03F + z * 2.4433157118e-05F); }
};
template <>
struct NormalParts<double> {
  using Bits = uint64_t;
  static constexpr int kFraction = 52;
  static constexpr Bits kOne = 0x3FF0000000000000, kRootOfHalf = 0x3FE6A09E667F3BCD,
                        kLastWhole = 0x4330000000000000;  // 2^52
  static constexpr double kLastWholeAndBias = 0x1p52 + 1023;
  static constexpr double kLog2 = 6.93147180369123816490e-01, kRestOfLog2 = 1.90821492927058770002e-10;
  // u = (bits / 2^12 + 1/2) / 2^52. Without conversions of integers, which few CPUs have vectors for.
  static double Unit(Bits bits) { return std::bit_cast<double>(kOne | bits >> 12) - 1 + 0x1p-53; }
  static double Angle(Bits bits, Bits quarter) {
    const double turn = std::bit_cast<double>(kOne | bits >> 12) - 1;
    return (turn - (std::bit_cast<double>(kOne + (quarter << 50)) - 1)) * 6.28318530717958647693;
  }
  static double Log(double z, double w) {
    const double odd = 6.666666666666735130e-01 +
                       w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01));
    return z * odd + w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  }
  static double Sine(double z) {
    const double rest = 2.75573137070700676789e-06 + z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10);
    return -1.66666666666666324348e-01 +
           z * (8.33333333332248946124e-03 + z * (-1.98412698298579493134e-04 + z * rest));
  }
  static double Cosine(double z) {
    const double rest =
        -2.75573143513906633035e-07 + z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11);
    return 4.16666666666666019037e-02 + z * (-1.38888888888741095749e-03 + z * (2.48015872894767294178e-05 + z * rest));
  }
};

// The logarithm of a number from 2^-53 to 1.
template <typename T>
[[gnu::always_inline]] inline T LogOfUnit(T u) {
  using Parts = NormalParts<T>;
  using Bits = typename Parts::Bits;
  // u = m * 2^e, of m from the root of 1/2 to that of 2.
  const Bits bits = std::bit_cast<Bits>(u);
  const Bits biased = (bits + (Parts::kOne - Parts::kRootOfHalf)) >> Parts::kFraction;
  const T e = std::bit_cast<T>(Parts::kLastWhole | biased) - Parts::kLastWholeAndBias;
  const T f = std::bit_cast<T>(bits - (biased << Parts::kFraction) + Parts::kOne) - 1;
  const T s = f / (2 + f), z = s * s, half = T(0.5) * f * f;
  return s * (half + Parts::Log(z, z * z)) + e * Parts::kRestOfLog2 - half + f + e * Parts::kLog2;
}

template <typename T>
[[gnu::always_inline]] inline NormalPair<T> NormalPairOf(typename NormalParts<T>::Bits u,
                                                         typename NormalParts<T>::Bits v) {
  using Parts = NormalParts<T>;
  using Bits = typename Parts::Bits;
  const T radius = std::sqrt(-2 * LogOfUnit(Parts::Unit(u)));
  // 0 to 4: the quarter of a turn that is nearest.
  const Bits quarter = ((v >> (8 * sizeof(Bits) - 3)) + 1) >> 1;
  const T angle = Parts::Angle(v, quarter), z = angle * angle;
  const T sine = angle + angle * z * Parts::Sine(z), cosine = 1 - T(0.5) * z + z * z * Parts::Cosine(z);
  const bool is_odd = (quarter & 1) != 0;
  const T x = is_odd ? sine : cosine, y = is_odd ? cosine : sine;
  return {radius * (((quarter + 1) & 2) != 0 ? -x : x), radius * ((quarter & 2) != 0 ? -y : y)};
}

// Number `number` of a stream, by the words of its counter: of f32 and shorter in float, of f64 in double.
template <typename T>
T NormalOf(const std::array<uint32_t, 4>& words, uint64_t number) {
  NormalPair<T> pair;
  if constexpr (sizeof(T) == 8) {
    pair = NormalPairOf<T>(uint64_t{words[0]} << 32 | words[1], uint64_t{words[2]} << 32 | words[3]);
  } else {
    pair = NormalPairOf<T>(words[number & 2], words[(number & 2) + 1]);
  }
  return (number & 1) == 0 ? pair.first : pair.second;
}

}  // namespace tessera
