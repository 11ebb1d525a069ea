#include "kernels/cpu/loops.h"

#include <cstdint>
#include <type_traits>

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/math_loops.h"
#include "schemas/ops/complex_meaning.h"
#include "schemas/ops/scalar_meaning.h"
#include "schemas/ops/scalar_ops.h"

// Memory is slower than plain loops with AVX2; each set of instructions takes its time to compile.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/loops.cc"
// The order is Highway's.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

// Plain loops: the compiler vectorises them for each instruction set. The pragma says what donation
// guarantees: an output lies on an operand only element by element. Four vectors a turn: of one, a turn of the loop
// would take as long as its store.
#define TESSERA_LOOP _Pragma("GCC ivdep") _Pragma("GCC unroll 4") for (int64_t i = 0; i < n; ++i)

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {

using scalar::kIsComplex;

// ---- numbers

// Loops over a function of scalar_meaning.h, called with it.
template <typename T, typename Out>
struct UnaryLoop {
  const NodeBlock& block;
  template <typename F>
  bool operator()(F f) const {
    const T* a = static_cast<const T*>(block.a);
    Out* out = static_cast<Out*>(block.out);
    const int64_t n = block.count;
    TESSERA_LOOP out[i] = static_cast<Out>(f(a[i]));
    return true;
  }
};
template <typename T, typename Out>
struct BinaryLoop {
  const NodeBlock& block;
  template <typename F>
  bool operator()(F f) const {
    const T* a = static_cast<const T*>(block.a);
    const T* b = static_cast<const T*>(block.b);
    Out* out = static_cast<Out*>(block.out);
    const int64_t n = block.count;
    TESSERA_LOOP out[i] = static_cast<Out>(f(a[i], b[i]));
    return true;
  }
};

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

template <typename C>
bool ComplexNode(const NodeBlock& block) {
  using P = typename C::value_type;
  const bool is_unary = Arity(block.op) == 1;
  if (block.op == ScalarOp::kWhere) return WhereLoop<C>(block);
  if (block.dtype == DType::kBool) {
    return is_unary ? scalar::VisitComplexPredicate<C>(block.op, UnaryLoop<C, uint8_t>{block})
                    : scalar::VisitComplexComparison<C>(block.op, BinaryLoop<C, uint8_t>{block});
  }
  if (!is_unary) return scalar::VisitComplexBinary<C>(block.op, BinaryLoop<C, C>{block});
  if (block.dtype != block.operand) return scalar::VisitComplexPart<C>(block.op, UnaryLoop<C, P>{block});
  return scalar::VisitComplexUnary<C>(block.op, UnaryLoop<C, C>{block});
}

template <typename P>
bool PartsLoop(const NodeBlock& block) {
  const P* a = static_cast<const P*>(block.a);
  const P* b = static_cast<const P*>(block.b);
  std::complex<P>* out = static_cast<std::complex<P>*>(block.out);
  const int64_t n = block.count;
  TESSERA_LOOP out[i] = std::complex<P>(a[i], b[i]);
  return true;
}

// Only comparisons and predicates make a bool of numbers.
template <typename T>
bool NumberNode(const NodeBlock& block) {
  const bool is_unary = Arity(block.op) == 1;
  if (block.op == ScalarOp::kWhere) return WhereLoop<T>(block);
  if (block.dtype == DType::kBool) {
    return is_unary ? scalar::VisitPredicate<T>(block.op, UnaryLoop<T, uint8_t>{block})
                    : scalar::VisitComparison<T>(block.op, BinaryLoop<T, uint8_t>{block});
  }
  if (is_unary ? scalar::VisitUnary<T>(block.op, UnaryLoop<T, T>{block})
               : scalar::VisitBinary<T>(block.op, BinaryLoop<T, T>{block})) {
    return true;
  }
  return RunMathBlock(block);
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
    case ScalarOp::kXor:
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
  if (block.op == ScalarOp::kNextAfter) {
    return scalar::VisitLibraryBinary<Half>(block.op, BinaryLoop<Half, Half>{block});
  }
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
  if (block.op == ScalarOp::kCast) return RunCastBlock(block);
  if (block.op == ScalarOp::kComplex) {
    return block.operand == DType::kF64 ? PartsLoop<double>(block) : PartsLoop<float>(block);
  }
  return VisitElement(block.operand, [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_same_v<T, BoolElement>) {
      return BoolNode(block);
    } else if constexpr (kIsHalf<T>) {
      return HalfNode<T>(block);
    } else if constexpr (kIsComplex<T>) {
      return ComplexNode<T>(block);
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
  if (dtype != RealOf(dtype)) return DivideBy(RealOf(dtype), values, divisor, 2 * count);
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
    case ReduceOp::kBand: return ScalarOp::kAnd;
    case ReduceOp::kBor: return ScalarOp::kOr;
    case ReduceOp::kBxor: return ScalarOp::kXor;
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

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(Node);
HWY_EXPORT(Combine);
HWY_EXPORT(DivideBy);

bool RunNodeBlock(const NodeBlock& block) { return HWY_DYNAMIC_DISPATCH(Node)(block); }
void CombineBlock(ReduceOp op, DType dtype, void* result, const void* a, const void* b, int64_t count) {
  HWY_DYNAMIC_DISPATCH(Combine)(op, dtype, result, a, b, count);
}
void DivideBlock(DType dtype, void* values, int64_t divisor, int64_t count) {
  HWY_DYNAMIC_DISPATCH(DivideBy)(dtype, values, divisor, count);
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
