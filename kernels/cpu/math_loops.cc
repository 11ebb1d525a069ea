#include "kernels/cpu/math_loops.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/random_loops.h"
#include "schemas/ops/philox.h"
#include "schemas/ops/scalar_meaning.h"
#include "schemas/ops/scalar_ops.h"

// libmvec has vectors of 128 bits, of 256 with AVX2 and of 512 with AVX-512 (Highway's AVX3).
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/math_loops.cc"
// The order is Highway's.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

// The functions of one number, by their names in ScalarOp and in libmvec.
#undef TESSERA_VECTOR_FUNCTIONS
#define TESSERA_VECTOR_FUNCTIONS(ROW) \
  ROW(Exp, exp)                       \
  ROW(Expm1, expm1)                   \
  ROW(Log, log)                       \
  ROW(Log1p, log1p)                   \
  ROW(Log2, log2)                     \
  ROW(Log10, log10)                   \
  ROW(Sin, sin)                       \
  ROW(Cos, cos)                       \
  ROW(Tan, tan)                       \
  ROW(Asin, asin)                     \
  ROW(Acos, acos)                     \
  ROW(Atan, atan)                     \
  ROW(Sinh, sinh)                     \
  ROW(Cosh, cosh)                     \
  ROW(Tanh, tanh)                     \
  ROW(Asinh, asinh)                   \
  ROW(Acosh, acosh)                   \
  ROW(Atanh, atanh)                   \
  ROW(Erf, erf)

// libmvec's name of a function, by the vector ABI: the instruction set and the number of lanes.
#undef TESSERA_MVEC
#undef TESSERA_MVEC_POW
#if defined(__x86_64__) && defined(__GLIBC__)
#if HWY_TARGET == HWY_SSE2
#define TESSERA_MVEC(name) _ZGVbN4v_##name##f, _ZGVbN2v_##name
#define TESSERA_MVEC_POW _ZGVbN2vv_pow
#elif HWY_TARGET == HWY_AVX2
#define TESSERA_MVEC(name) _ZGVdN8v_##name##f, _ZGVdN4v_##name
#define TESSERA_MVEC_POW _ZGVdN4vv_pow
#elif HWY_TARGET == HWY_AVX3
#define TESSERA_MVEC(name) _ZGVeN16v_##name##f, _ZGVeN8v_##name
#define TESSERA_MVEC_POW _ZGVeN8vv_pow
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {

#ifdef TESSERA_MVEC
namespace hn = hwy::HWY_NAMESPACE;

using F32Tag = hn::ScalableTag<float>;
using F64Tag = hn::ScalableTag<double>;
using F32s = hn::Vec<F32Tag>;
using F64s = hn::Vec<F64Tag>;
using RawF32s = decltype(F32s::raw);
using RawF64s = decltype(F64s::raw);

#undef TESSERA_DECLARE_BOTH
#undef TESSERA_DECLARE
#define TESSERA_DECLARE_BOTH(f32, f64) \
  RawF32s f32(RawF32s);                \
  RawF64s f64(RawF64s);
#define TESSERA_DECLARE_EXPANDED(...) TESSERA_DECLARE_BOTH(__VA_ARGS__)
#define TESSERA_DECLARE(Name, name) TESSERA_DECLARE_EXPANDED(TESSERA_MVEC(name))
extern "C" {
TESSERA_VECTOR_FUNCTIONS(TESSERA_DECLARE)
TESSERA_DECLARE(Cbrt, cbrt)
RawF64s TESSERA_MVEC_POW(RawF64s, RawF64s);
}

// Vectors to vectors, by overload.
#undef TESSERA_DEFINE_BOTH
#undef TESSERA_DEFINE
#define TESSERA_DEFINE_BOTH(Name, f32, f64)                               \
  struct Name {                                                           \
    HWY_INLINE F32s operator()(F32s a) const { return F32s{f32(a.raw)}; } \
    HWY_INLINE F64s operator()(F64s a) const { return F64s{f64(a.raw)}; } \
  };
#define TESSERA_DEFINE_EXPANDED(...) TESSERA_DEFINE_BOTH(__VA_ARGS__)
#define TESSERA_DEFINE(Name, name) TESSERA_DEFINE_EXPANDED(Name, TESSERA_MVEC(name))
TESSERA_VECTOR_FUNCTIONS(TESSERA_DEFINE)

TESSERA_DEFINE(Cbrt, cbrt)

// The product a * b in two numbers: T. J. Dekker, "A floating-point technique for extending the available precision",
// 1971.
struct Product {
  F64s high, low;
};
HWY_INLINE Product ProductOf(F64s a, F64s b) {
  const F64Tag d;
  const auto upper = [&](F64s x) {
    const F64s wide = hn::Mul(x, hn::Set(d, 0x1p27 + 1));
    return hn::Sub(wide, hn::Sub(wide, x));
  };
  const F64s a1 = upper(a), b1 = upper(b), a2 = hn::Sub(a, a1), b2 = hn::Sub(b, b1), high = hn::Mul(a, b);
  const F64s rest = hn::Sub(hn::Sub(hn::Sub(high, hn::Mul(a1, b1)), hn::Mul(a2, b1)), hn::Mul(a1, b2));
  return {high, hn::Sub(hn::Mul(a2, b2), rest)};
}

// As scalar::CubeRoot.
HWY_INLINE F64s CubeRoot(F64s a) {
  const F64Tag d;
  const F64s size = hn::Abs(a), one = hn::Set(d, 1);
  const auto is_small = hn::Lt(size, hn::Set(d, 0x1p-500)), is_large = hn::Gt(size, hn::Set(d, 0x1p500));
  const auto scale = [&](double small, double large) {
    return hn::IfThenElse(is_small, hn::Set(d, small), hn::IfThenElse(is_large, hn::Set(d, large), one));
  };
  const F64s x = hn::Mul(a, scale(0x1p300, 0x1p-300)), root = Cbrt()(x);
  const Product square = ProductOf(root, root), cube = ProductOf(square.high, root);
  const F64s rest = hn::Sub(hn::Sub(hn::Sub(x, cube.high), cube.low), hn::Mul(square.low, root));
  const F64s better = hn::Add(root, hn::Div(rest, hn::Mul(hn::Set(d, 3), square.high)));
  return hn::Mul(hn::IfThenElse(hn::Eq(better, better), better, root), scale(0x1p-100, 0x1p100));
}

// As scalar::Sigmoid.
struct SigmoidOf {
  template <typename V>
  HWY_INLINE V operator()(V a) const {
    const hn::DFromV<V> d;
    const auto one = hn::Set(d, 1);
    const auto e = Exp()(hn::Neg(hn::Abs(a)));
    return hn::Div(hn::IfThenElse(hn::Lt(a, hn::Zero(d)), e, one), hn::Add(one, e));
  }
};

template <typename T, typename F>
void VectorLoop(const NodeBlock& block, F f) {
  const hn::ScalableTag<T> d;
  const T* a = static_cast<const T*>(block.a);
  T* out = static_cast<T*>(block.out);
  const int64_t n = block.count, lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(f(hn::LoadU(d, a + i)), d, out + i);
  if (i == n) return;
  HWY_ALIGN T rest[hn::MaxLanes(d)] = {};
  std::copy_n(a + i, n - i, rest);
  hn::Store(f(hn::Load(d, rest)), d, rest);
  std::copy_n(rest, n - i, out + i);
}

// In f64, so that a root that f32 has comes out exactly.
void CubeRootLoop(const NodeBlock& block) {
  const F64Tag d;
  const hn::Rebind<float, F64Tag> narrow;
  const float* a = static_cast<const float*>(block.a);
  float* out = static_cast<float*>(block.out);
  const int64_t n = block.count, lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float rest[hn::MaxLanes(d)] = {};
  for (int64_t i = 0; i < n; i += lanes) {
    const bool is_whole = i + lanes <= n;
    if (!is_whole) std::copy_n(a + i, n - i, rest);
    const F64s root = Cbrt()(hn::PromoteTo(d, hn::LoadU(narrow, is_whole ? a + i : rest)));
    hn::StoreU(hn::DemoteTo(narrow, root), narrow, is_whole ? out + i : rest);
    if (!is_whole) std::copy_n(rest, n - i, out + i);
  }
}

// In f64, so that a power that f32 has comes out exactly.
void PowLoop(const NodeBlock& block) {
  const F64Tag d;
  const hn::Rebind<float, F64Tag> narrow;
  const float* a = static_cast<const float*>(block.a);
  const float* b = static_cast<const float*>(block.b);
  float* out = static_cast<float*>(block.out);
  const int64_t n = block.count, lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float bases[hn::MaxLanes(d)] = {}, exponents[hn::MaxLanes(d)] = {};
  for (int64_t i = 0; i < n; i += lanes) {
    const bool is_whole = i + lanes <= n;
    if (!is_whole) {
      std::copy_n(a + i, n - i, bases);
      std::copy_n(b + i, n - i, exponents);
    }
    const F64s base = hn::PromoteTo(d, hn::LoadU(narrow, is_whole ? a + i : bases));
    const F64s exponent = hn::PromoteTo(d, hn::LoadU(narrow, is_whole ? b + i : exponents));
    const auto power = hn::DemoteTo(narrow, F64s{TESSERA_MVEC_POW(base.raw, exponent.raw)});
    hn::StoreU(power, narrow, is_whole ? out + i : bases);
    if (!is_whole) std::copy_n(bases, n - i, out + i);
  }
}

template <typename T>
bool VectorMath(const NodeBlock& block) {
  switch (block.op) {
#undef TESSERA_CASE
#define TESSERA_CASE(Name, name) \
  case ScalarOp::k##Name: VectorLoop<T>(block, Name()); return true;
    TESSERA_VECTOR_FUNCTIONS(TESSERA_CASE)
    case ScalarOp::kSigmoid: VectorLoop<T>(block, SigmoidOf()); return true;
    case ScalarOp::kCbrt:
      if constexpr (sizeof(T) == 4) CubeRootLoop(block);
      if constexpr (sizeof(T) == 8) VectorLoop<T>(block, [](F64s a) { return CubeRoot(a); });
      return true;
    case ScalarOp::kPow:
      if constexpr (sizeof(T) == 4) PowLoop(block);
      return sizeof(T) == 4;
    default: return false;
  }
}

bool Vectors(const NodeBlock& block) {
  if (block.operand == DType::kF32) return VectorMath<float>(block);
  return block.operand == DType::kF64 && VectorMath<double>(block);
}
#else
bool Vectors(const NodeBlock&) { return false; }
#endif  // TESSERA_MVEC

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {
namespace {

HWY_EXPORT(Vectors);

template <typename T>
bool ElementByElement(const NodeBlock& block) {
  const T* a = static_cast<const T*>(block.a);
  const T* b = static_cast<const T*>(block.b);
  T* out = static_cast<T*>(block.out);
  [[maybe_unused]] const auto unary = [&](auto f) {
    for (int64_t i = 0; i < block.count; ++i) out[i] = f(a[i]);
    return true;
  };
  const auto binary = [&](auto f) {
    for (int64_t i = 0; i < block.count; ++i) out[i] = f(a[i], b[i]);
    return true;
  };
  if (Arity(block.op) == 2) return scalar::VisitLibraryBinary<T>(block.op, binary);
  if constexpr (std::is_floating_point_v<T>) return scalar::VisitLibrary<T>(block.op, unary);
  return false;
}

// Runs of numbers that follow each other, of one seed and stream, are drawn together: neighbours share their work.
template <typename T, typename Draw>
bool RandomNumbers(const NodeBlock& block, Draw draw) {
  const int64_t* number = static_cast<const int64_t*>(block.a);
  const int64_t* seed = static_cast<const int64_t*>(block.b);
  const int64_t* stream = static_cast<const int64_t*>(block.c);
  T* out = static_cast<T*>(block.out);
  for (int64_t i = 0; i < block.count;) {
    // -1 and 0 are the last number and the first.
    int64_t end = i + 1;
    while (end < block.count && number[end - 1] != -1 && number[end] == number[end - 1] + 1 && seed[end] == seed[i] &&
           stream[end] == stream[i]) {
      ++end;
    }
    const RandomRun run = {static_cast<uint64_t>(seed[i]), static_cast<uint64_t>(stream[i]),
                           static_cast<uint64_t>(number[i]), end - i};
    if (run.count >= kMinRunNumbers) {
      UniformNumbers(block.dtype, run, out + i);
    } else {
      for (int64_t k = 0; k < run.count; ++k) {
        out[i + k] = draw(run.seed, run.stream, run.first + static_cast<uint64_t>(k));
      }
    }
    i = end;
  }
  return true;
}

bool RandomBlock(const NodeBlock& block) {
  const auto of_32 = [](auto to_uniform) {
    return
        [=](uint64_t seed, uint64_t stream, uint64_t number) { return to_uniform(RandomBits32(seed, stream, number)); };
  };
  switch (block.dtype) {
    case DType::kU32: return RandomNumbers<uint32_t>(block, RandomBits32);
    case DType::kU64: return RandomNumbers<uint64_t>(block, RandomBits64);
    case DType::kF16: return RandomNumbers<F16>(block, of_32(ToUniformF16));
    case DType::kBF16: return RandomNumbers<BF16>(block, of_32(ToUniformBF16));
    case DType::kF32: return RandomNumbers<float>(block, of_32(ToUniformF32));
    case DType::kF64:
      return RandomNumbers<double>(block, [](uint64_t seed, uint64_t stream, uint64_t number) {
        return ToUniformF64(RandomBits64(seed, stream, number));
      });
    default: return false;
  }
}

}  // namespace

bool RunMathBlock(const NodeBlock& block) {
  if (block.op == ScalarOp::kRandom) return RandomBlock(block);
  if (HWY_DYNAMIC_DISPATCH(Vectors)(block)) return true;
  return VisitElement(block.operand, [&](auto element) {
    using T = decltype(element);
    if constexpr (std::is_arithmetic_v<T>) return ElementByElement<T>(block);
    return false;
  });
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
