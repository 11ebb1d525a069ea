// Conversions between dtypes, of loops.h: a loop for each pair.

#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/loops.h"
#include "schemas/ops/complex_functions.h"
#include "schemas/ops/scalar_functions.h"
#include "schemas/ops/scalar_ops.h"

// Memory is slower than plain loops with AVX2; each set of instructions takes its time to compile.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cast_loops.cc"
// The order is Highway's.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

// As in loops.cc. Plain loops: the compiler vectorises them for each instruction set. The pragma says what donation
// guarantees: an output lies on an operand only element by element. Four vectors a turn: of one, a turn of the loop
// would take as long as its store.
#define TESSERA_LOOP _Pragma("GCC ivdep") _Pragma("GCC unroll 4") for (int64_t i = 0; i < n; ++i)

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {

using scalar::kIsComplex;
using scalar::kIsFloat;

// Complex numbers become complex numbers and truth values alone.
template <typename To, typename From>
inline constexpr bool kConverts = !kIsComplex<From> || kIsComplex<To> || std::is_same_v<To, BoolElement>;

template <typename To, typename From>
HWY_INLINE To Convert(From v) {
  if constexpr (std::is_same_v<From, BoolElement>) {
    return Convert<To>(static_cast<int32_t>(v.byte != 0));
  } else if constexpr (kIsComplex<From> && kIsComplex<To>) {
    return To(static_cast<typename To::value_type>(v.real()), static_cast<typename To::value_type>(v.imag()));
  } else if constexpr (kIsComplex<From>) {
    return BoolElement{static_cast<uint8_t>((v.real() != 0) | (v.imag() != 0))};
  } else if constexpr (kIsComplex<To>) {
    return To(Convert<typename To::value_type>(v), 0);
  } else if constexpr (kIsHalf<From> || kIsFloat8<From>) {
    return Convert<To>(static_cast<float>(v));
  } else if constexpr (kIsHalf<To> || kIsFloat8<To>) {
    return To(v);
  } else if constexpr (std::is_same_v<To, BoolElement>) {
    return BoolElement{static_cast<uint8_t>(v != From{0})};
  } else if constexpr (kIsFloat<From> && !kIsFloat<To>) {
    // Saturates, NaN is 0. The bounds are exact in From: 0 or -2^k, and the first value above 2^k - 1.
    constexpr From kLow = static_cast<From>(std::numeric_limits<To>::min());
    constexpr From kAbove = static_cast<From>(std::numeric_limits<To>::max() / 2 + 1) * 2;
    if (v >= kAbove) return std::numeric_limits<To>::max();
    if (v < kLow) return std::numeric_limits<To>::min();
    return v == v ? static_cast<To>(v) : To{0};
  } else {
    return static_cast<To>(v);
  }
}

template <typename To, typename From>
bool CastLoop(const NodeBlock& block) {
  const From* a = static_cast<const From*>(block.a);
  To* out = static_cast<To*>(block.out);
  const int64_t n = block.count;
  TESSERA_LOOP out[i] = Convert<To>(a[i]);
  return true;
}

// As VisitElement, of floats of 8 bits, too.
template <typename F>
bool VisitCast(DType dtype, F&& f) {
  if (dtype == DType::kF8E4M3) return f(F8E4M3{});
  return dtype == DType::kF8E5M2 ? f(F8E5M2{}) : VisitElement(dtype, f);
}

bool Cast(const NodeBlock& block) {
  return VisitCast(block.dtype, [&](auto to) {
    return VisitCast(block.operand, [&](auto from) {
      if constexpr (kConverts<decltype(to), decltype(from)>) return CastLoop<decltype(to), decltype(from)>(block);
      return false;
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(Cast);

bool RunCastBlock(const NodeBlock& block) { return HWY_DYNAMIC_DISPATCH(Cast)(block); }
void CastBlock(DType from, DType to, const void* values, int64_t count, void* converted) {
  RunCastBlock({.op = ScalarOp::kCast,
                .dtype = to,
                .operand = from,
                .a = values,
                .b = nullptr,
                .c = nullptr,
                .out = converted,
                .count = count});
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
