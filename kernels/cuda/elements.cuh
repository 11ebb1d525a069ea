#pragma once

// The laws of elements on a GPU, as schemas/ops/scalar_functions.h, complex_functions.h, philox.h and
// schemas/types/half.h say them: the same bits, save where a function of the CUDA library rounds otherwise. It includes
// nothing, so that NVRTC compiles it without a toolkit, and is compiled with --fmad=false.

namespace tessera::cuda {

using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

// Anything but 0 is true.
struct Bool {
  u8 byte;
};
struct F16 {
  u16 bits;
};
struct BF16 {
  u16 bits;
};
struct F8E4M3 {
  u8 bits;
};
struct F8E5M2 {
  u8 bits;
};
template <typename P>
struct alignas(2 * sizeof(P)) Complex {
  using Part = P;
  P real, imag;
};
using C64 = Complex<float>;
using C128 = Complex<double>;

// ---- what types are

template <typename A, typename B>
inline constexpr bool kIsSame = false;
template <typename A>
inline constexpr bool kIsSame<A, A> = true;
template <typename T>
inline constexpr bool kIsFloat = kIsSame<T, float> || kIsSame<T, double>;
template <typename T>
inline constexpr bool kIsHalf = kIsSame<T, F16> || kIsSame<T, BF16>;
template <typename T>
inline constexpr bool kIsFloat8 = kIsSame<T, F8E4M3> || kIsSame<T, F8E5M2>;
template <typename T>
inline constexpr bool kIsComplex = kIsSame<T, C64> || kIsSame<T, C128>;
template <typename T>
inline constexpr bool kIsSigned = kIsSame<T, i8> || kIsSame<T, i16> || kIsSame<T, i32> || kIsSame<T, i64>;

template <typename T>
struct UnsignedOf {
  using Type = T;
};
template <>
struct UnsignedOf<i8> {
  using Type = u8;
};
template <>
struct UnsignedOf<i16> {
  using Type = u16;
};
template <>
struct UnsignedOf<i32> {
  using Type = u32;
};
template <>
struct UnsignedOf<i64> {
  using Type = u64;
};
template <typename T>
using Unsigned = typename UnsignedOf<T>::Type;
// Arithmetic that wraps; narrow integers don't use int, which a product of two can leave.
template <typename T, bool kIsNarrow>
struct WrappingOf {
  using Type = u32;
};
template <typename T>
struct WrappingOf<T, false> {
  using Type = Unsigned<T>;
};
template <typename T>
using Wrapping = typename WrappingOf<T, (sizeof(T) < 4)>::Type;

template <typename T>
inline constexpr T kHighest = kIsSigned<T> ? static_cast<T>((Unsigned<T>(1) << (8 * sizeof(T) - 1)) - 1)
                                           : static_cast<T>(~Unsigned<T>(0));
template <typename T>
inline constexpr T kLowest = kIsSigned<T> ? static_cast<T>(Unsigned<T>(1) << (8 * sizeof(T) - 1)) : T(0);

__device__ inline float FloatOfBits(u32 bits) { return __uint_as_float(bits); }
__device__ inline u32 BitsOfFloat(float value) { return __float_as_uint(value); }
__device__ inline double DoubleOfBits(u64 bits) { return __longlong_as_double(static_cast<i64>(bits)); }
__device__ inline u64 BitsOfDouble(double value) { return static_cast<u64>(__double_as_longlong(value)); }
template <typename T>
__device__ inline T Infinity() {
  if constexpr (kIsSame<T, float>) return FloatOfBits(0x7F800000U);
  if constexpr (!kIsSame<T, float>) return DoubleOfBits(0x7FF0000000000000ULL);
}
template <typename T>
__device__ inline T NaN() {
  if constexpr (kIsSame<T, float>) return FloatOfBits(0x7FC00000U);
  if constexpr (!kIsSame<T, float>) return DoubleOfBits(0x7FF8000000000000ULL);
}

// ---- conversions

__device__ inline float ToFloat(F16 a) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(a.bits));
  return result;
}
__device__ inline float ToFloat(BF16 a) { return FloatOfBits(static_cast<u32>(a.bits) << 16); }

// The float that rounds to 16 bits as the number does: cut off, and odd where something was.
__device__ inline float OddFloat(float value) { return value; }
__device__ inline float OddFloat(double value) {
  const float cut = __double2float_rz(value);
  return static_cast<double>(cut) == value || value != value ? cut : FloatOfBits(BitsOfFloat(cut) | 1);
}
__device__ inline float OddFloat(i64 value) {
  const float cut = __ll2float_rz(value);
  return static_cast<i64>(cut) == value ? cut : FloatOfBits(BitsOfFloat(cut) | 1);
}
__device__ inline float OddFloat(u64 value) {
  const float cut = __ull2float_rz(value);
  return static_cast<u64>(cut) == value ? cut : FloatOfBits(BitsOfFloat(cut) | 1);
}
__device__ inline float OddFloat(i32 value) { return OddFloat(static_cast<i64>(value)); }
__device__ inline float OddFloat(u32 value) { return OddFloat(static_cast<u64>(value)); }
__device__ inline float OddFloat(i16 value) { return static_cast<float>(value); }
__device__ inline float OddFloat(u16 value) { return static_cast<float>(value); }
__device__ inline float OddFloat(i8 value) { return static_cast<float>(value); }
__device__ inline float OddFloat(u8 value) { return static_cast<float>(value); }

__device__ inline F16 ToF16(float value) {
  F16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
}
__device__ inline BF16 ToBF16(float value) {
  const u32 all = BitsOfFloat(value);
  if (value != value) return {static_cast<u16>((all >> 16) | 0x40)};
  return {static_cast<u16>((all + 0x7FFF + ((all >> 16) & 1)) >> 16)};
}

// As schemas/types/float8.h has them.
__device__ inline float FloatOf8(u32 rest, u32 sign, int mantissa, float scale) {
  const float scaled = FloatOfBits(rest << (23 - mantissa)) * scale;
  const u32 infinite = mantissa == 2 && rest == 0x7C ? 0x7F800000U : 0U;
  const bool is_nan = rest > (mantissa == 3 ? 0x7EU : 0x7CU);
  return FloatOfBits((is_nan ? 0x7FC00000U : BitsOfFloat(scaled) | infinite) | sign << 24);
}
__device__ inline float ToFloat(F8E4M3 a) { return FloatOf8(a.bits & 0x7F, a.bits & 0x80, 3, 0x1p120f); }
__device__ inline float ToFloat(F8E5M2 a) { return FloatOf8(a.bits & 0x7F, a.bits & 0x80, 2, 0x1p112f); }
template <int kMantissa>
__device__ inline u8 Float8Bits(float value) {
  constexpr int kBias = kMantissa == 3 ? 7 : 15, kCut = 23 - kMantissa;
  constexpr u32 kLeastNormal = u32(127 - kBias + 1) << 23, kSubnormal = u32(127 - kBias + kCut + 1) << 23;
  constexpr u32 kTooLarge = kMantissa == 3 ? 0x43F00000U : 0x47800000U;  // 480, 2^16
  const u32 all = BitsOfFloat(value), rest = all & 0x7FFFFFFF;
  const u32 special = kMantissa == 3 || rest > 0x7F800000U ? 0x7F : 0x7C;
  const u32 subnormal = BitsOfFloat(FloatOfBits(rest) + FloatOfBits(kSubnormal)) - kSubnormal;
  const u32 normal = (rest - kLeastNormal + (1U << 23) + ((1U << (kCut - 1)) - 1) + ((rest >> kCut) & 1)) >> kCut;
  const u32 small = rest < kLeastNormal ? subnormal : normal;
  return static_cast<u8>((rest >= kTooLarge ? special : small) | (all >> 31) << 7);
}

// As a cast of the catalog: a number out of an integer's range saturates, NaN is 0; complex numbers become complex
// numbers and truth values alone.
template <typename To, typename From>
__device__ inline To Convert(From v) {
  if constexpr (kIsSame<From, To>) {
    return v;
  } else if constexpr (kIsSame<From, Bool>) {
    return Convert<To>(static_cast<i32>(v.byte != 0));
  } else if constexpr (kIsComplex<From> && kIsComplex<To>) {
    return {static_cast<typename To::Part>(v.real), static_cast<typename To::Part>(v.imag)};
  } else if constexpr (kIsComplex<From>) {
    return {static_cast<u8>((v.real != 0) | (v.imag != 0))};
  } else if constexpr (kIsComplex<To>) {
    return {Convert<typename To::Part>(v), 0};
  } else if constexpr (kIsHalf<From> || kIsFloat8<From>) {
    return Convert<To>(ToFloat(v));
  } else if constexpr (kIsSame<To, F16>) {
    return ToF16(OddFloat(v));
  } else if constexpr (kIsSame<To, BF16>) {
    return ToBF16(OddFloat(v));
  } else if constexpr (kIsFloat8<To>) {
    return {Float8Bits<kIsSame<To, F8E4M3> ? 3 : 2>(OddFloat(v))};
  } else if constexpr (kIsSame<To, Bool>) {
    return {static_cast<u8>(v != From(0))};
  } else if constexpr (kIsFloat<From> && !kIsFloat<To>) {
    // The bounds are exact in From: 0 or -2^k, and the first value above 2^k - 1.
    constexpr From kLow = static_cast<From>(kLowest<To>);
    constexpr From kAbove = static_cast<From>(kHighest<To> / 2 + 1) * 2;
    if (v >= kAbove) return kHighest<To>;
    if (v < kLow) return kLowest<To>;
    return v == v ? static_cast<To>(v) : To(0);
  } else {
    return static_cast<To>(v);
  }
}
template <typename To>
__device__ inline To MakeComplex(typename To::Part real, typename To::Part imag) {
  return {real, imag};
}

// ---- numbers

template <typename T>
__device__ inline T Add(T a, T b) {
  if constexpr (kIsComplex<T>) return {a.real + b.real, a.imag + b.imag};
  else if constexpr (kIsFloat<T>) return a + b;
  else return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
}
template <typename T>
__device__ inline T Subtract(T a, T b) {
  if constexpr (kIsComplex<T>) return {a.real - b.real, a.imag - b.imag};
  else if constexpr (kIsFloat<T>) return a - b;
  else return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
}
__device__ inline float Fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ inline double Fused(double a, double b, double c) { return __fma_rn(a, b, c); }
template <typename T>
__device__ inline T Multiply(T a, T b) {
  if constexpr (kIsComplex<T>) {
    return {Fused(a.real, b.real, -(a.imag * b.imag)), Fused(a.real, b.imag, a.imag * b.real)};
  } else if constexpr (kIsFloat<T>) {
    return a * b;
  } else {
    return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
  }
}
__device__ inline float Magnitude(float a) { return fabsf(a); }
__device__ inline double Magnitude(double a) { return fabs(a); }
template <typename T>
__device__ inline T Negate(T a) {
  if constexpr (kIsComplex<T>) return {-a.real, -a.imag};
  else if constexpr (kIsFloat<T>) return -a;
  else return Subtract(T(0), a);
}
template <typename T>
__device__ inline T Divide(T a, T b) {
  if constexpr (kIsComplex<T>) {
    using P = typename T::Part;
    const P real_size = Magnitude(b.real), imag_size = Magnitude(b.imag);
    if (real_size >= imag_size) {
      if (real_size == 0 && imag_size == 0) return {a.real / real_size, a.imag / real_size};
      const P ratio = b.imag / b.real, scale = P(1) / Fused(b.imag, ratio, b.real);
      return {Fused(a.imag, ratio, a.real) * scale, Fused(-a.real, ratio, a.imag) * scale};
    }
    const P ratio = b.real / b.imag, scale = P(1) / Fused(b.real, ratio, b.imag);
    return {Fused(a.real, ratio, a.imag) * scale, Fused(a.imag, ratio, -a.real) * scale};
  } else if constexpr (kIsFloat<T>) {
    return a / b;
  } else {
    if (b == 0) return 0;
    if constexpr (kIsSigned<T>) {
      if (b == -1) return Negate(a);
    }
    return static_cast<T>(a / b);
  }
}
// NaN propagates.
template <typename T>
__device__ inline T Maximum(T a, T b) {
  if constexpr (kIsFloat<T>) return (a > b || a != a) ? a : b;
  else return a > b ? a : b;
}
template <typename T>
__device__ inline T Minimum(T a, T b) {
  if constexpr (kIsFloat<T>) return (a < b || a != a) ? a : b;
  else return a < b ? a : b;
}

// ---- random numbers

struct Words {
  u32 word[4];
};
// One instruction: the compiler makes a product of 64 bits of `u64(a) * b`, which is several.
__device__ inline u64 WideProduct(u32 a, u32 b) {
  u64 product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
}
// Philox 4x32-10.
__device__ inline Words CounterWords(u64 seed, u64 stream, u64 counter) {
  u32 k0 = static_cast<u32>(seed), k1 = static_cast<u32>(seed >> 32);
  Words c = {static_cast<u32>(counter), static_cast<u32>(counter >> 32), static_cast<u32>(stream),
             static_cast<u32>(stream >> 32)};
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const u64 p0 = WideProduct(c.word[0], 0xD2511F53), p1 = WideProduct(c.word[2], 0xCD9E8D57);
    c = {static_cast<u32>(p1 >> 32) ^ c.word[1] ^ k0, static_cast<u32>(p1),
         static_cast<u32>(p0 >> 32) ^ c.word[3] ^ k1, static_cast<u32>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}
// How many neighbours share a counter.
template <typename T>
inline constexpr int kNumbersPerCounter = sizeof(T) == 8 ? 2 : 4;
// Uniform in [0, 1), as many bits as the type holds; u32 and u64 get the bits themselves. A number of 64 bits is made
// of two words, any other of the first one.
template <typename T>
__device__ inline T UniformOf(u32 word, u32 next) {
  if constexpr (kIsSame<T, BF16>) {
    const u32 bits = BitsOfFloat(static_cast<float>(word >> 24) * 0x1.0p-8f);
    return {static_cast<u16>(bits >> 16)};  // exact: the lower half is 0
  } else if constexpr (kIsSame<T, F16>) {
    return ToF16(static_cast<float>(word >> 21) * 0x1.0p-11f);
  } else if constexpr (kIsSame<T, float>) {
    return static_cast<float>(word >> 8) * 0x1.0p-24f;
  } else if constexpr (kIsSame<T, u32>) {
    return word;
  } else if constexpr (kIsSame<T, u64>) {
    return static_cast<u64>(word) << 32 | next;
  } else {
    return static_cast<double>((static_cast<u64>(word) << 32 | next) >> 11) * 0x1.0p-53;
  }
}
template <typename T>
__device__ inline T RandomOf(i64 number, i64 seed, i64 stream) {
  constexpr u64 kShared = kNumbersPerCounter<T>;
  const u64 n = static_cast<u64>(number);
  const Words w = CounterWords(static_cast<u64>(seed), static_cast<u64>(stream), n / kShared);
  const bool is_odd = (n & 1) != 0;
  if constexpr (sizeof(T) == 8) {
    return UniformOf<T>(is_odd ? w.word[2] : w.word[0], is_odd ? w.word[3] : w.word[1]);
  } else {
    const u32 low = is_odd ? w.word[1] : w.word[0], high = is_odd ? w.word[3] : w.word[2];
    return UniformOf<T>((n & 2) != 0 ? high : low, 0);
  }
}

}  // namespace tessera::cuda
