#include "kernels/cpu/loops.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/cpu/element_types.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/loops.cc"
// The order is Highway's.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
// clang-format on

// Plain loops: the compiler vectorises them for each instruction set. The pragma says what donation
// guarantees: an output lies on an operand only element by element.
#define TESSERA_LOOP _Pragma("GCC ivdep") for (int64_t i = 0; i < n; ++i)

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename T>
inline constexpr bool kIsFloat = std::is_floating_point_v<T>;
// Arithmetic that wraps; of narrow integers not in int, which a product of two can leave.
template <typename T>
using Wrapping = std::common_type_t<std::make_unsigned_t<T>, unsigned>;

// ---- conversions

template <typename To, typename From>
HWY_INLINE To Convert(From v) {
  if constexpr (std::is_same_v<From, BoolElement>) {
    return Convert<To>(static_cast<int32_t>(v.byte != 0));
  } else if constexpr (kIsHalf<From>) {
    return Convert<To>(static_cast<float>(v));
  } else if constexpr (kIsHalf<To>) {
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

bool Cast(const NodeBlock& block) {
  return VisitElement(block.dtype, [&](auto to) {
    return VisitElement(block.operand, [&](auto from) { return CastLoop<decltype(to), decltype(from)>(block); });
  });
}

// ---- numbers

template <typename T>
HWY_INLINE T Divide(T a, T b) {
  if constexpr (kIsFloat<T>) {
    return a / b;
  } else {
    if (b == 0) return 0;
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return static_cast<T>(Wrapping<T>{0} - static_cast<Wrapping<T>>(a));
    }
    return static_cast<T>(a / b);
  }
}

// NaN propagates: a comparison with a NaN is false, so a NaN in b is taken last.
template <typename T>
HWY_INLINE T Maximum(T a, T b) {
  if constexpr (kIsFloat<T>) return (a > b || a != a) ? a : b;
  return a > b ? a : b;
}
template <typename T>
HWY_INLINE T Minimum(T a, T b) {
  if constexpr (kIsFloat<T>) return (a < b || a != a) ? a : b;
  return a < b ? a : b;
}
template <typename T>
HWY_INLINE T Add(T a, T b) {
  if constexpr (kIsFloat<T>)
    return a + b;
  else
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
}
template <typename T>
HWY_INLINE T Subtract(T a, T b) {
  if constexpr (kIsFloat<T>)
    return a - b;
  else
    return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
}
template <typename T>
HWY_INLINE T Multiply(T a, T b) {
  if constexpr (kIsFloat<T>)
    return a * b;
  else
    return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
}

// Highway's polynomial where it is valid; the library's exp for a vector with a lane outside (overflow,
// NaN).
template <typename T>
void ExpLoop(const T* a, T* out, int64_t n) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto limit = hn::Set(d, static_cast<T>(sizeof(T) == 4 ? 88.0 : 706.0));
  const auto low = hn::Set(d, static_cast<T>(sizeof(T) == 4 ? -87.0 : -707.0));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto x = hn::LoadU(d, a + i);
    if (hn::AllTrue(d, hn::And(hn::Le(x, limit), hn::Ge(x, low)))) {
      hn::StoreU(hn::Exp(d, x), d, out + i);
    } else {
      for (int64_t l = 0; l < lanes; ++l) out[i + l] = std::exp(a[i + l]);
    }
  }
  for (; i < n; ++i) {
    // The tail takes the same path as a full vector, so that a value's bits don't depend on its place.
    const auto x = hn::Set(d, a[i]);
    out[i] = (a[i] <= static_cast<T>(sizeof(T) == 4 ? 88.0 : 706.0) &&
              a[i] >= static_cast<T>(sizeof(T) == 4 ? -87.0 : -707.0))
                 ? hn::GetLane(hn::Exp(d, x))
                 : std::exp(a[i]);
  }
}

template <typename T>
bool UnaryLoop(const NodeBlock& block) {
  const T* a = static_cast<const T*>(block.a);
  T* out = static_cast<T*>(block.out);
  const int64_t n = block.count;
  switch (block.op) {
    case ScalarOp::kNeg:
      if constexpr (kIsFloat<T>) {
        TESSERA_LOOP out[i] = -a[i];
      } else {
        TESSERA_LOOP out[i] = Subtract(T{0}, a[i]);
      }
      return true;
    case ScalarOp::kRelu: TESSERA_LOOP out[i] = Maximum(a[i], T{0}); return true;
    case ScalarOp::kExp:
      if constexpr (kIsFloat<T>) ExpLoop(a, out, n);
      return kIsFloat<T>;
    case ScalarOp::kSqrt:
      if constexpr (kIsFloat<T>) TESSERA_LOOP out[i] = std::sqrt(a[i]);
      return kIsFloat<T>;
    default: return false;
  }
}

template <typename T>
bool ArithmeticLoop(const NodeBlock& block) {
  const T* a = static_cast<const T*>(block.a);
  const T* b = static_cast<const T*>(block.b);
  T* out = static_cast<T*>(block.out);
  const int64_t n = block.count;
  switch (block.op) {
    case ScalarOp::kAdd: TESSERA_LOOP out[i] = Add(a[i], b[i]); return true;
    case ScalarOp::kSub: TESSERA_LOOP out[i] = Subtract(a[i], b[i]); return true;
    case ScalarOp::kMul: TESSERA_LOOP out[i] = Multiply(a[i], b[i]); return true;
    case ScalarOp::kDiv: TESSERA_LOOP out[i] = Divide(a[i], b[i]); return true;
    case ScalarOp::kMaximum: TESSERA_LOOP out[i] = Maximum(a[i], b[i]); return true;
    case ScalarOp::kMinimum: TESSERA_LOOP out[i] = Minimum(a[i], b[i]); return true;
    default: return UnaryLoop<T>(block);
  }
}

template <typename T>
bool CompareLoop(const NodeBlock& block) {
  const T* a = static_cast<const T*>(block.a);
  const T* b = static_cast<const T*>(block.b);
  uint8_t* out = static_cast<uint8_t*>(block.out);
  const int64_t n = block.count;
  switch (block.op) {
    case ScalarOp::kEqual: TESSERA_LOOP out[i] = a[i] == b[i]; return true;
    case ScalarOp::kNotEqual: TESSERA_LOOP out[i] = a[i] != b[i]; return true;
    case ScalarOp::kLess: TESSERA_LOOP out[i] = a[i] < b[i]; return true;
    case ScalarOp::kLessEqual: TESSERA_LOOP out[i] = a[i] <= b[i]; return true;
    case ScalarOp::kGreater: TESSERA_LOOP out[i] = a[i] > b[i]; return true;
    case ScalarOp::kGreaterEqual: TESSERA_LOOP out[i] = a[i] >= b[i]; return true;
    default: return false;
  }
}

template <typename T>
bool WhereLoop(const NodeBlock& block) {
  const uint8_t* condition = static_cast<const uint8_t*>(block.a);
  const T* b = static_cast<const T*>(block.b);
  const T* c = static_cast<const T*>(block.c);
  T* out = static_cast<T*>(block.out);
  const int64_t n = block.count;
  TESSERA_LOOP out[i] = condition[i] != 0 ? b[i] : c[i];
  return true;
}

template <typename T>
bool NumberNode(const NodeBlock& block) {
  switch (block.op) {
    case ScalarOp::kEqual:
    case ScalarOp::kNotEqual:
    case ScalarOp::kLess:
    case ScalarOp::kLessEqual:
    case ScalarOp::kGreater:
    case ScalarOp::kGreaterEqual: return CompareLoop<T>(block);
    case ScalarOp::kWhere: return WhereLoop<T>(block);
    default: return ArithmeticLoop<T>(block);
  }
}

// Bool: + and max are or, * and min are and, the order is false < true.
bool BoolNode(const NodeBlock& block) {
  const uint8_t* a = static_cast<const uint8_t*>(block.a);
  const uint8_t* b = static_cast<const uint8_t*>(block.b);
  uint8_t* out = static_cast<uint8_t*>(block.out);
  const int64_t n = block.count;
  switch (block.op) {
    case ScalarOp::kNot: TESSERA_LOOP out[i] = a[i] == 0; return true;
    case ScalarOp::kRelu: TESSERA_LOOP out[i] = a[i] != 0; return true;
    case ScalarOp::kOr:
    case ScalarOp::kAdd:
    case ScalarOp::kMaximum: TESSERA_LOOP out[i] = (a[i] | b[i]) != 0; return true;
    case ScalarOp::kAnd:
    case ScalarOp::kMul:
    case ScalarOp::kMinimum:
      TESSERA_LOOP out[i] = static_cast<uint8_t>(a[i] != 0) & static_cast<uint8_t>(b[i] != 0);
      return true;
    case ScalarOp::kEqual: TESSERA_LOOP out[i] = (a[i] != 0) == (b[i] != 0); return true;
    case ScalarOp::kNotEqual: TESSERA_LOOP out[i] = (a[i] != 0) != (b[i] != 0); return true;
    case ScalarOp::kLess: TESSERA_LOOP out[i] = (a[i] != 0) < (b[i] != 0); return true;
    case ScalarOp::kLessEqual: TESSERA_LOOP out[i] = (a[i] != 0) <= (b[i] != 0); return true;
    case ScalarOp::kGreater: TESSERA_LOOP out[i] = (a[i] != 0) > (b[i] != 0); return true;
    case ScalarOp::kGreaterEqual: TESSERA_LOOP out[i] = (a[i] != 0) >= (b[i] != 0); return true;
    case ScalarOp::kWhere: {
      const uint8_t* c = static_cast<const uint8_t*>(block.c);
      TESSERA_LOOP out[i] = (a[i] != 0 ? b[i] : c[i]) != 0;
      return true;
    }
    default: return false;
  }
}

// Computed as float, and rounded at once.
template <typename Half>
bool HalfNode(const NodeBlock& block) {
  if (block.op == ScalarOp::kWhere) return WhereLoop<uint16_t>(block);
  constexpr int64_t kTogether = 256;
  alignas(64) float a[kTogether], b[kTogether];
  const bool compares = block.dtype == DType::kBool;
  for (int64_t at = 0; at < block.count; at += kTogether) {
    const int64_t n = block.count - at < kTogether ? block.count - at : kTogether;
    const Half* const first = static_cast<const Half*>(block.a) + at;
    TESSERA_LOOP a[i] = static_cast<float>(first[i]);
    if (block.b != nullptr) {
      const Half* const second = static_cast<const Half*>(block.b) + at;
      TESSERA_LOOP b[i] = static_cast<float>(second[i]);
    }
    const NodeBlock part = {.op = block.op,
                            .dtype = compares ? DType::kBool : DType::kF32,
                            .operand = DType::kF32,
                            .a = a,
                            .b = b,
                            .c = nullptr,
                            .out = compares ? static_cast<void*>(static_cast<uint8_t*>(block.out) + at) : a,
                            .count = n};
    if (!NumberNode<float>(part)) return false;
    if (compares) continue;
    Half* const out = static_cast<Half*>(block.out) + at;
    TESSERA_LOOP out[i] = Half(a[i]);
  }
  return true;
}

bool Node(const NodeBlock& block) {
  if (block.op == ScalarOp::kCast) return Cast(block);
  return VisitElement(block.operand, [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_same_v<T, BoolElement>) {
      return BoolNode(block);
    } else if constexpr (kIsHalf<T>) {
      return HalfNode<T>(block);
    } else {
      return NumberNode<T>(block);
    }
  });
}

// ---- reductions

template <typename T>
void DivideLoop(T* values, T divisor, int64_t n) {
  TESSERA_LOOP values[i] = values[i] / divisor;
}

void DivideBy(DType dtype, void* values, int64_t divisor, int64_t count) {
  if (dtype == DType::kF32) DivideLoop(static_cast<float*>(values), static_cast<float>(divisor), count);
  if (dtype == DType::kF64) DivideLoop(static_cast<double*>(values), static_cast<double>(divisor), count);
}

ScalarOp PairwiseOp(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return ScalarOp::kAdd;
    case ReduceOp::kMin: return ScalarOp::kMinimum;
    case ReduceOp::kMax: return ScalarOp::kMaximum;
    case ReduceOp::kProduct: return ScalarOp::kMul;
  }
  return ScalarOp::kAdd;
}

void Combine(ReduceOp op, DType dtype, void* result, const void* a, const void* b, int64_t count) {
  Node({.op = PairwiseOp(op),
        .dtype = dtype,
        .operand = dtype,
        .a = a,
        .b = b,
        .c = nullptr,
        .out = result,
        .count = count});
}

template <typename T, typename Op>
void RowTree(const T* row, int64_t count, T* result, Op op) {
  T lanes[kReduceLanes] = {};
  const int64_t filled = count < kReduceLanes ? count : kReduceLanes;
  for (int64_t l = 0; l < filled; ++l) lanes[l] = row[l];
  int64_t i = kReduceLanes;
  for (; i + kReduceLanes <= count; i += kReduceLanes) {
    for (int64_t l = 0; l < kReduceLanes; ++l) lanes[l] = op(lanes[l], row[i + l]);
  }
  for (int64_t l = 0; i + l < count; ++l) lanes[l] = op(lanes[l], row[i + l]);
  for (int64_t width = kReduceLanes / 2; width > 0; width /= 2) {
    for (int64_t l = 0; l < width && l + width < filled; ++l) lanes[l] = op(lanes[l], lanes[l + width]);
  }
  *result = lanes[0];
}

template <typename T>
void TypedRow(ReduceOp op, const T* row, int64_t count, T* result) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return RowTree(row, count, result, [](T a, T b) { return Add(a, b); });
    case ReduceOp::kMin: return RowTree(row, count, result, [](T a, T b) { return Minimum(a, b); });
    case ReduceOp::kMax: return RowTree(row, count, result, [](T a, T b) { return Maximum(a, b); });
    case ReduceOp::kProduct: return RowTree(row, count, result, [](T a, T b) { return Multiply(a, b); });
  }
}

void BoolRow(ReduceOp op, const uint8_t* row, int64_t count, uint8_t* result) {
  const bool any = op != ReduceOp::kMin && op != ReduceOp::kProduct;
  uint8_t found = any ? 0 : 1;
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t v = row[i] != 0;
    found = any ? (found | v) : (found & v);
  }
  *result = found;
}

void ReduceRow(ReduceOp op, DType dtype, const void* row, int64_t count, void* result) {
  VisitElement(dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_arithmetic_v<T>) {
      TypedRow(op, static_cast<const T*>(row), count, static_cast<T*>(result));
    } else if constexpr (std::is_same_v<T, BoolElement>) {
      BoolRow(op, static_cast<const uint8_t*>(row), count, static_cast<uint8_t*>(result));
    }
    return true;
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(Node);
HWY_EXPORT(Combine);
HWY_EXPORT(DivideBy);
HWY_EXPORT(ReduceRow);

bool RunNodeBlock(const NodeBlock& block) { return HWY_DYNAMIC_DISPATCH(Node)(block); }
void CastBlock(DType from, DType to, const void* values, int64_t count, void* converted) {
  RunNodeBlock({.op = ScalarOp::kCast,
                .dtype = to,
                .operand = from,
                .a = values,
                .b = nullptr,
                .c = nullptr,
                .out = converted,
                .count = count});
}
void CombineBlock(ReduceOp op, DType dtype, void* result, const void* a, const void* b, int64_t count) {
  HWY_DYNAMIC_DISPATCH(Combine)(op, dtype, result, a, b, count);
}
void DivideBlock(DType dtype, void* values, int64_t divisor, int64_t count) {
  HWY_DYNAMIC_DISPATCH(DivideBy)(dtype, values, divisor, count);
}
void ReduceRowBlock(ReduceOp op, DType dtype, const void* row, int64_t count, void* result) {
  HWY_DYNAMIC_DISPATCH(ReduceRow)(op, dtype, row, count, result);
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
