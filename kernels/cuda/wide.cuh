#pragma once

// Elements whose dtype is known at run time alone: an integer or a bool as 64 bits, a float as a double, a complex
// number as two. For kernels that memory or latency bounds, whatever the type: one kernel in place of fifteen.

#include "kernels/cuda/elements.cuh"

namespace tessera::cuda {

// As schemas/types/dtype.h numbers them.
enum DTypeCode : int {
  kBoolCode = 0,
  kI8Code = 1,
  kI16Code = 2,
  kI32Code = 3,
  kI64Code = 4,
  kU8Code = 5,
  kU16Code = 6,
  kU32Code = 7,
  kU64Code = 8,
  kF16Code = 9,
  kBF16Code = 10,
  kF32Code = 11,
  kF64Code = 12,
  kC64Code = 13,
  kC128Code = 14,
};
__device__ inline bool IsUnsignedCode(int dtype) { return dtype == kBoolCode || (dtype >= kU8Code && dtype <= kU64Code); }
__device__ inline bool IsFloatCode(int dtype) { return dtype >= kF16Code && dtype <= kF64Code; }
__device__ inline bool IsComplexCode(int dtype) { return dtype >= kC64Code; }

struct Wide {
  i64 i = 0;  // of u64 its bits
  double real = 0, imag = 0;
};

__device__ inline Wide LoadWide(int dtype, const void* base, i64 at) {
  Wide w;
  switch (dtype) {
    case kBoolCode: w.i = static_cast<const u8*>(base)[at] != 0; break;
    case kI8Code: w.i = static_cast<const i8*>(base)[at]; break;
    case kI16Code: w.i = static_cast<const i16*>(base)[at]; break;
    case kI32Code: w.i = static_cast<const i32*>(base)[at]; break;
    case kI64Code:
    case kU64Code: w.i = static_cast<const i64*>(base)[at]; break;
    case kU8Code: w.i = static_cast<const u8*>(base)[at]; break;
    case kU16Code: w.i = static_cast<const u16*>(base)[at]; break;
    case kU32Code: w.i = static_cast<const u32*>(base)[at]; break;
    case kF16Code: w.real = ToFloat(static_cast<const F16*>(base)[at]); break;
    case kBF16Code: w.real = ToFloat(static_cast<const BF16*>(base)[at]); break;
    case kF32Code: w.real = static_cast<const float*>(base)[at]; break;
    case kF64Code: w.real = static_cast<const double*>(base)[at]; break;
    case kC64Code: {
      const C64 c = static_cast<const C64*>(base)[at];
      w.real = c.real;
      w.imag = c.imag;
      break;
    }
    default: {
      const C128 c = static_cast<const C128*>(base)[at];
      w.real = c.real;
      w.imag = c.imag;
      break;
    }
  }
  return w;
}

// Stores it as a number of the dtype; integers are cut to its bits, floats rounded once.
__device__ inline void StoreWide(int dtype, void* base, i64 at, const Wide& w) {
  switch (dtype) {
    case kBoolCode: static_cast<u8*>(base)[at] = w.i != 0; break;
    case kI8Code:
    case kU8Code: static_cast<u8*>(base)[at] = static_cast<u8>(w.i); break;
    case kI16Code:
    case kU16Code: static_cast<u16*>(base)[at] = static_cast<u16>(w.i); break;
    case kI32Code:
    case kU32Code: static_cast<u32*>(base)[at] = static_cast<u32>(w.i); break;
    case kI64Code:
    case kU64Code: static_cast<i64*>(base)[at] = w.i; break;
    case kF16Code: static_cast<F16*>(base)[at] = Convert<F16>(w.real); break;
    case kBF16Code: static_cast<BF16*>(base)[at] = Convert<BF16>(w.real); break;
    case kF32Code: static_cast<float*>(base)[at] = static_cast<float>(w.real); break;
    case kF64Code: static_cast<double*>(base)[at] = w.real; break;
    case kC64Code:
      static_cast<C64*>(base)[at] = {static_cast<float>(w.real), static_cast<float>(w.imag)};
      break;
    default: static_cast<C128*>(base)[at] = {w.real, w.imag}; break;
  }
}

// The integer as the dtype's bits hold it.
__device__ inline i64 CutInteger(int dtype, i64 value) {
  switch (dtype) {
    case kBoolCode: return value != 0;
    case kI8Code: return static_cast<i8>(value);
    case kI16Code: return static_cast<i16>(value);
    case kI32Code: return static_cast<i32>(value);
    case kU8Code: return static_cast<u8>(value);
    case kU16Code: return static_cast<u16>(value);
    case kU32Code: return static_cast<u32>(value);
    default: return value;
  }
}
// Whether a dtype may be any, or is one that numbers are accumulated in: no bool, and no float of 16 bits.
enum class DTypes : int { kAny, kAccumulated };
// The float as the dtype holds it. From f64 itself; an operation of two f32 in f64 gives the same bits so.
template <DTypes kOf = DTypes::kAny>
__device__ inline double RoundFloat(int dtype, double value) {
  if (dtype == kF32Code || dtype == kC64Code) return static_cast<float>(value);
  if constexpr (kOf == DTypes::kAny) {
    if (dtype == kF16Code) return ToFloat(Convert<F16>(value));
    if (dtype == kBF16Code) return ToFloat(Convert<BF16>(value));
  }
  return value;
}
__device__ inline i64 SaturateTo(int dtype, double value) {
  switch (dtype) {
    case kI8Code: return Convert<i8>(value);
    case kI16Code: return Convert<i16>(value);
    case kI32Code: return Convert<i32>(value);
    case kI64Code: return Convert<i64>(value);
    case kU8Code: return Convert<u8>(value);
    case kU16Code: return Convert<u16>(value);
    case kU32Code: return Convert<u32>(value);
    default: return static_cast<i64>(Convert<u64>(value));
  }
}

// As a cast of the catalog: a number of `from` as one of `to`.
template <DTypes kTo = DTypes::kAny>
__device__ inline Wide CastWide(int from, int to, const Wide& w) {
  Wide result;
  const bool is_integer = from <= kU64Code;
  if (kTo == DTypes::kAny && to == kBoolCode) {
    result.i = is_integer ? w.i != 0 : (w.real != 0 || w.imag != 0);
  } else if (to <= kU64Code) {
    result.i = is_integer ? CutInteger(to, w.i) : SaturateTo(to, w.real);
  } else if (is_integer) {
    const bool is_unsigned = IsUnsignedCode(from);
    const u64 bits = static_cast<u64>(w.i);
    if (to == kF64Code || to == kC128Code) {
      result.real = is_unsigned ? static_cast<double>(bits) : static_cast<double>(w.i);
    } else if (kTo == DTypes::kAccumulated || to == kF32Code || to == kC64Code) {
      result.real = is_unsigned ? static_cast<float>(bits) : static_cast<float>(w.i);
    } else {
      const float odd = is_unsigned ? OddFloat(bits) : OddFloat(w.i);
      result.real = to == kF16Code ? ToFloat(ToF16(odd)) : ToFloat(ToBF16(odd));
    }
  } else {
    result.real = RoundFloat<kTo>(to, w.real);
    if (IsComplexCode(to)) result.imag = RoundFloat<kTo>(to, w.imag);
  }
  return result;
}

}  // namespace tessera::cuda
