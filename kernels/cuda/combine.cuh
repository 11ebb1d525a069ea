#pragma once

// Combine: two elements to one, by a reduction's op; the types that reductions accumulate in, and results that are
// stored as another dtype.

#include "kernels/cuda/nest.cuh"
#include "kernels/cuda/wide.cuh"

namespace tessera::cuda {

template <typename T>
struct AccumulatorOf {
  using Type = T;
};
template <>
struct AccumulatorOf<F16> {
  using Type = float;
};
template <>
struct AccumulatorOf<BF16> {
  using Type = float;
};

template <typename T>
inline constexpr int kCodeOf = kIsSame<T, Bool>    ? kBoolCode
                               : kIsSame<T, i8>    ? kI8Code
                               : kIsSame<T, i16>   ? kI16Code
                               : kIsSame<T, i32>   ? kI32Code
                               : kIsSame<T, i64>   ? kI64Code
                               : kIsSame<T, u8>    ? kU8Code
                               : kIsSame<T, u16>   ? kU16Code
                               : kIsSame<T, u32>   ? kU32Code
                               : kIsSame<T, u64>   ? kU64Code
                               : kIsSame<T, F16>   ? kF16Code
                               : kIsSame<T, BF16>  ? kBF16Code
                               : kIsSame<T, float> ? kF32Code
                               : kIsSame<T, double> ? kF64Code
                               : kIsSame<T, C64>    ? kC64Code
                                                    : kC128Code;

// The op is the same for all threads, and not bitwise. Complex numbers have no extremes. A sum of bools is whether any is
// true, a product whether all are.
template <typename T>
__device__ inline T Combine(int op, T a, T b) {
  if constexpr (kIsSame<T, Bool>) {
    const bool is_all = op == kCodeMin || op == kCodeProduct;
    return {static_cast<u8>(is_all ? a.byte != 0 && b.byte != 0 : a.byte != 0 || b.byte != 0)};
  } else if constexpr (kIsComplex<T>) {
    return op == kCodeProduct ? Multiply(a, b) : Add(a, b);
  } else {
    if (op == kCodeSum || op == kCodeAvg) return Add(a, b);
    if (op == kCodeMax) return Maximum(a, b);
    return op == kCodeMin ? Minimum(a, b) : Multiply(a, b);
  }
}

template <typename T>
__device__ inline Wide ToWide(T v) {
  Wide w;
  if constexpr (kIsComplex<T>) {
    w.real = v.real;
    w.imag = v.imag;
  } else if constexpr (kIsFloat<T>) {
    w.real = v;
  } else if constexpr (kIsHalf<T>) {
    w.real = ToFloat(v);
  } else if constexpr (kIsSame<T, Bool>) {
    w.i = v.byte != 0;
  } else {
    w.i = static_cast<i64>(v);
  }
  return w;
}
template <typename T>
__device__ inline T FromWide(const Wide& w) {
  if constexpr (kIsComplex<T>) {
    return {static_cast<typename T::Part>(w.real), static_cast<typename T::Part>(w.imag)};
  } else if constexpr (kIsFloat<T>) {
    return static_cast<T>(w.real);
  } else if constexpr (kIsHalf<T>) {
    return Convert<T>(w.real);
  } else if constexpr (kIsSame<T, Bool>) {
    return {static_cast<u8>(w.i != 0)};
  } else {
    return static_cast<T>(w.i);
  }
}

// The value as an element of the dtype; complex numbers become complex numbers and truth values alone.
template <typename T>
__device__ inline void StoreAs(int dtype, void* base, i64 at, T value) {
  if constexpr (kIsComplex<T>) {
    switch (dtype) {
      case kBoolCode: static_cast<Bool*>(base)[at] = Convert<Bool>(value); break;
      case kC64Code: static_cast<C64*>(base)[at] = Convert<C64>(value); break;
      default: static_cast<C128*>(base)[at] = Convert<C128>(value); break;
    }
  } else if (dtype == kCodeOf<T>) {
    if constexpr (kIsSame<T, Bool>) value.byte = value.byte != 0;
    static_cast<T*>(base)[at] = value;
  } else {
    StoreWide(dtype, base, at, CastWide(kCodeOf<T>, dtype, ToWide(value)));
  }
}
// An element of the dtype, cast to another one, whose numbers T has all.
template <typename T>
__device__ inline T LoadAs(int dtype, int as, const void* base, i64 at) {
  return FromWide<T>(CastWide(dtype, as, LoadWide(dtype, base, at)));
}

// The result as an element of the output, whose dtype is accumulated in T.
template <typename T>
__device__ inline void StoreReduced(int dtype, void* base, i64 at, T value) {
  if constexpr (kIsSame<T, float>) {
    switch (dtype) {
      case kF16Code: static_cast<F16*>(base)[at] = ToF16(value); break;
      case kBF16Code: static_cast<BF16*>(base)[at] = ToBF16(value); break;
      default: static_cast<float*>(base)[at] = value; break;
    }
  } else if constexpr (kIsSame<T, i64>) {
    switch (dtype) {
      case kBoolCode:
      case kI8Code:
      case kU8Code: static_cast<u8*>(base)[at] = static_cast<u8>(value); break;
      case kI16Code:
      case kU16Code: static_cast<u16*>(base)[at] = static_cast<u16>(value); break;
      case kI32Code:
      case kU32Code: static_cast<u32*>(base)[at] = static_cast<u32>(value); break;
      default: static_cast<i64*>(base)[at] = value; break;
    }
  } else {
    static_cast<T*>(base)[at] = value;
  }
}

template <typename T>
__device__ inline T ShuffleDown(u32 mask, T value, int distance, int width) {
  if constexpr (sizeof(T) == 4) {
    return __shfl_down_sync(mask, value, distance, width);
  } else if constexpr (kIsComplex<T>) {
    return {ShuffleDown(mask, value.real, distance, width), ShuffleDown(mask, value.imag, distance, width)};
  } else if constexpr (kIsSame<T, Bool>) {
    return {static_cast<u8>(__shfl_down_sync(mask, static_cast<u32>(value.byte), distance, width))};
  } else if constexpr (sizeof(T) == 8) {
    return __shfl_down_sync(mask, value, distance, width);
  } else {
    return static_cast<T>(__shfl_down_sync(mask, static_cast<i32>(value), distance, width));
  }
}

// The value of the lane whose number differs in this bit; all lanes of the warp.
template <typename T>
__device__ inline T ShuffleXor(T value, int bit) {
  return __shfl_xor_sync(0xFFFFFFFFU, value, bit);
}

}  // namespace tessera::cuda
