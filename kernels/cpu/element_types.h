#pragma once

// The C++ type of each dtype's elements, in one place.

#include <complex>
#include <cstdint>

#include "schemas/types/dtype.h"
#include "schemas/types/float8.h"

namespace tessera::cpu {

// Anything but 0 is true.
struct BoolElement {
  uint8_t byte;
};

// The largest element's, a c128's: what room for an element of any dtype is aligned to, and has.
inline constexpr int64_t kMaxElementBytes = 16;
struct alignas(16) AnyElement {
  uint64_t parts[2];
};
// An element of any dtype that is 0.
inline constexpr AnyElement kZeroElement = {};

// The dtype as whose elements those of `dtype` are moved, where only their bits count.
inline DType MovedAs(DType dtype) { return IsFloat8(dtype) ? DType::kU8 : dtype; }

// Calls f(T{}), which returns a bool; false for floats of 8 bits, which nothing but casts and products computes with.
template <typename F>
bool VisitElement(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kBool: return f(BoolElement{});
    case DType::kI8: return f(int8_t{});
    case DType::kI16: return f(int16_t{});
    case DType::kI32: return f(int32_t{});
    case DType::kI64: return f(int64_t{});
    case DType::kU8: return f(uint8_t{});
    case DType::kU16: return f(uint16_t{});
    case DType::kU32: return f(uint32_t{});
    case DType::kU64: return f(uint64_t{});
    case DType::kF16: return f(F16{});
    case DType::kBF16: return f(BF16{});
    case DType::kF32: return f(float{});
    case DType::kF64: return f(double{});
    case DType::kC64: return f(std::complex<float>{});
    case DType::kC128: return f(std::complex<double>{});
    default: return false;
  }
}

}  // namespace tessera::cpu
