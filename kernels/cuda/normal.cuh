#pragma once

// The law of normal numbers on a GPU, as schemas/ops/normal_law.h says it: the same bits. No branch, and no function of
// the CUDA library.

#include "kernels/cuda/elements.cuh"

namespace tessera::cuda {

template <typename T>
struct NormalParts;
template <>
struct NormalParts<float> {
  using Bits = u32;
  static constexpr int kFraction = 23;
  static constexpr Bits kOne = 0x3F800000, kRootOfHalf = 0x3F3504F3, kLastWhole = 0x4B000000;
  static constexpr float kLastWholeAndBias = 0x1p23F + 127;
  static constexpr float kLog2 = 6.9313812256e-01F, kRestOfLog2 = 9.0580006145e-06F;
  __device__ static Bits BitsOf(float value) { return BitsOfFloat(value); }
  __device__ static float OfBits(Bits bits) { return FloatOfBits(bits); }
  __device__ static float Root(float value) { return __fsqrt_rn(value); }
  __device__ static float Unit(Bits bits) {
    return static_cast<float>(static_cast<i32>(bits >> 1)) * 0x1p-31F + 0x1p-32F;
  }
  __device__ static float Angle(Bits bits, Bits quarter) {
    return static_cast<float>(static_cast<i32>(bits - (quarter << 30))) * 1.4629180793e-09F;
  }
  __device__ static float Log(float z, float w) {
    return z * (6.6666662693e-01F + w * 2.8498786688e-01F) + w * (4.0000972152e-01F + w * 2.4279078841e-01F);
  }
  __device__ static float Sine(float z) {
    return -1.6666654611e-01F + z * (8.3321608736e-03F + z * -1.9515295891e-04F);
  }
  __device__ static float Cosine(float z) {
    return 4.1666645683e-02F + z * (-1.3887316255e-03F + z * 2.4433157118e-05F);
  }
};
template <>
struct NormalParts<double> {
  using Bits = u64;
  static constexpr int kFraction = 52;
  static constexpr Bits kOne = 0x3FF0000000000000, kRootOfHalf = 0x3FE6A09E667F3BCD, kLastWhole = 0x4330000000000000;
  static constexpr double kLastWholeAndBias = 0x1p52 + 1023;
  static constexpr double kLog2 = 6.93147180369123816490e-01, kRestOfLog2 = 1.90821492927058770002e-10;
  __device__ static Bits BitsOf(double value) { return BitsOfDouble(value); }
  __device__ static double OfBits(Bits bits) { return DoubleOfBits(bits); }
  __device__ static double Root(double value) { return __dsqrt_rn(value); }
  __device__ static double Unit(Bits bits) { return OfBits(kOne | bits >> 12) - 1 + 0x1p-53; }
  __device__ static double Angle(Bits bits, Bits quarter) {
    return (OfBits(kOne | bits >> 12) - 1 - (OfBits(kOne + (quarter << 50)) - 1)) * 6.28318530717958647693;
  }
  __device__ static double Log(double z, double w) {
    const double odd = 6.666666666666735130e-01 +
                       w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01));
    return z * odd + w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  }
  __device__ static double Sine(double z) {
    const double rest =
        2.75573137070700676789e-06 + z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10);
    const double inner = 8.33333333332248946124e-03 + z * (-1.98412698298579493134e-04 + z * rest);
    return -1.66666666666666324348e-01 + z * inner;
  }
  __device__ static double Cosine(double z) {
    const double rest =
        -2.75573143513906633035e-07 + z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11);
    const double inner = -1.38888888888741095749e-03 + z * (2.48015872894767294178e-05 + z * rest);
    return 4.16666666666666019037e-02 + z * inner;
  }
};

template <typename T>
struct NormalPair {
  T first, second;
};
template <typename T>
__device__ inline NormalPair<T> NormalPairOf(typename NormalParts<T>::Bits u, typename NormalParts<T>::Bits v) {
  using Parts = NormalParts<T>;
  using Bits = typename Parts::Bits;
  const Bits bits = Parts::BitsOf(Parts::Unit(u));
  const Bits biased = (bits + (Parts::kOne - Parts::kRootOfHalf)) >> Parts::kFraction;
  const T e = Parts::OfBits(Parts::kLastWhole | biased) - Parts::kLastWholeAndBias;
  const T f = Parts::OfBits(bits - (biased << Parts::kFraction) + Parts::kOne) - 1;
  const T s = f / (2 + f), square = s * s, half = T(0.5) * f * f;
  const T series = s * (half + Parts::Log(square, square * square));
  const T logarithm = series + e * Parts::kRestOfLog2 - half + f + e * Parts::kLog2;
  const T radius = Parts::Root(-2 * logarithm);
  const Bits quarter = ((v >> (8 * sizeof(Bits) - 3)) + 1) >> 1;
  const T angle = Parts::Angle(v, quarter), z = angle * angle;
  const T sine = angle + angle * z * Parts::Sine(z), cosine = 1 - T(0.5) * z + z * z * Parts::Cosine(z);
  const bool is_odd = (quarter & 1) != 0;
  const T x = is_odd ? sine : cosine, y = is_odd ? cosine : sine;
  return {radius * (((quarter + 1) & 2) != 0 ? -x : x), radius * ((quarter & 2) != 0 ? -y : y)};
}

}  // namespace tessera::cuda
