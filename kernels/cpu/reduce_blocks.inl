// Ops on two numbers and on two vectors, and the value of one block of the fixed tree (reduce_loops.h), for one
// instruction set. Highway includes this text once for each; the file that includes it has chosen which.

#if defined(TESSERA_REDUCE_BLOCKS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_REDUCE_BLOCKS_INL
#undef TESSERA_REDUCE_BLOCKS_INL
#else
#define TESSERA_REDUCE_BLOCKS_INL
#endif

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/reduce_loops.h"
#include "kernels/cpu/stores.h"
#include "schemas/ops/complex_functions.h"
#include "schemas/ops/scalar_functions.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Of two numbers, of two that are no NaN, and of two vectors.
struct SumOp {
  template <typename T>
  static HWY_INLINE T Two(T a, T b) {
    if constexpr (scalar::kIsComplex<T>) return scalar::ComplexAdd(a, b);
    if constexpr (!scalar::kIsComplex<T>) return scalar::Add(a, b);
  }
  template <typename T>
  static HWY_INLINE T TwoNumbers(T a, T b) {
    return Two(a, b);
  }
  template <class D, class V>
  static HWY_INLINE V Vectors(D, V a, V b) {
    return hn::Add(a, b);
  }
};
struct ProductOp {
  template <typename T>
  static HWY_INLINE T Two(T a, T b) {
    if constexpr (scalar::kIsComplex<T>) return scalar::ComplexMultiply(a, b);
    if constexpr (!scalar::kIsComplex<T>) return scalar::Multiply(a, b);
  }
  // Integers are multiplied one by one: few instruction sets have it for all widths.
  template <typename T>
  static HWY_INLINE T TwoNumbers(T a, T b) {
    return Two(a, b);
  }
  template <class D, class V>
  static HWY_INLINE V Vectors(D d, V a, V b) {
    using T = hn::TFromD<D>;
    if constexpr (std::is_floating_point_v<T>) {
      return hn::Mul(a, b);
    } else {
      HWY_ALIGN T left[hn::MaxLanes(d)], right[hn::MaxLanes(d)];
      hn::Store(a, d, left);
      hn::Store(b, d, right);
      for (size_t i = 0; i < hn::MaxLanes(d); ++i) left[i] = scalar::Multiply(left[i], right[i]);
      return hn::Load(d, left);
    }
  }
};
// Vectors of these take any of two where one is NaN: who calls them looks for NaNs beside (Nans).
struct MaximumOp {
  template <typename T>
  static HWY_INLINE T Two(T a, T b) {
    return scalar::Maximum(a, b);
  }
  template <typename T>
  static HWY_INLINE T TwoNumbers(T a, T b) {
    return a > b ? a : b;
  }
  template <class D, class V>
  static HWY_INLINE V Vectors(D, V a, V b) {
    return hn::Max(a, b);
  }
};
struct MinimumOp {
  template <typename T>
  static HWY_INLINE T Two(T a, T b) {
    return scalar::Minimum(a, b);
  }
  template <typename T>
  static HWY_INLINE T TwoNumbers(T a, T b) {
    return a < b ? a : b;
  }
  template <class D, class V>
  static HWY_INLINE V Vectors(D, V a, V b) {
    return hn::Min(a, b);
  }
};
// Bytes of bools: anything but 0 is true.
struct AnyOp {
  static HWY_INLINE uint8_t Two(uint8_t a, uint8_t b) { return (a | b) != 0; }
  static HWY_INLINE uint8_t TwoNumbers(uint8_t a, uint8_t b) { return Two(a, b); }
  template <class D, class V>
  static HWY_INLINE V Vectors(D, V a, V b) {
    return hn::Or(a, b);
  }
};
struct AllOp {
  static HWY_INLINE uint8_t Two(uint8_t a, uint8_t b) { return a != 0 && b != 0; }
  static HWY_INLINE uint8_t TwoNumbers(uint8_t a, uint8_t b) { return Two(a, b); }
  template <class D, class V>
  static HWY_INLINE V Vectors(D d, V a, V b) {
    return hn::IfThenZeroElse(hn::Or(hn::Eq(a, hn::Zero(d)), hn::Eq(b, hn::Zero(d))), hn::Set(d, 1));
  }
};

// Where an extreme of floats is NaN: in the lanes that have seen one. Nothing for other ops, whose vectors bring a NaN
// on.
template <class D, typename Op>
struct Nans {
  using T = hn::TFromD<D>;
  static constexpr bool kAreSought =
      std::is_floating_point_v<T> && (std::is_same_v<Op, MaximumOp> || std::is_same_v<Op, MinimumOp>);
  using Mask = decltype(hn::Eq(hn::Zero(D()), hn::Zero(D())));
  Mask seen;

  // Written out: an implicit constructor isn't compiled for the target.
  HWY_INLINE Nans() : seen(hn::Lt(hn::Zero(D()), hn::Zero(D()))) {}

  template <class V>
  HWY_INLINE V Look(V values) {
    if constexpr (kAreSought) seen = hn::Or(seen, hn::IsNaN(values));
    return values;
  }
  HWY_INLINE bool AreAny(D d) const {
    if constexpr (kAreSought) return !hn::AllFalse(d, seen);
    return false;
  }
  template <class V>
  HWY_INLINE V Brought(D d, V extreme) const {
    if constexpr (kAreSought) return hn::IfThenElse(seen, hn::NaN(d), extreme);
    return extreme;
  }
};

// The value of an element that is reduced: itself. PushSquaredDifferences has another such map.
struct Itself {
  template <typename T>
  HWY_INLINE T One(T a) const {
    return a;
  }
  template <class D, class V>
  HWY_INLINE V Vector(D, V a) const {
    return a;
  }
};
// A whole block, in vectors.
template <typename T, typename Op, typename Map>
HWY_INLINE T WholeBlock(const T* row, Map map) {
  const hn::CappedTag<T, static_cast<size_t>(kReduceLanes)> d;
  constexpr int64_t kN = static_cast<int64_t>(hn::MaxLanes(d)), kVectors = kReduceLanes / kN;
  hn::Vec<decltype(d)> lanes[kVectors];
  Nans<std::remove_cv_t<decltype(d)>, Op> nans;
  for (int64_t v = 0; v < kVectors; ++v) lanes[v] = nans.Look(map.Vector(d, hn::LoadU(d, row + v * kN)));
  for (int64_t i = kReduceLanes; i < kTreeBlock; i += kReduceLanes) {
    for (int64_t v = 0; v < kVectors; ++v) {
      lanes[v] = Op::Vectors(d, lanes[v], nans.Look(map.Vector(d, hn::LoadU(d, row + i + v * kN))));
    }
  }
  for (int64_t width = kVectors / 2; width > 0; width /= 2) {
    for (int64_t v = 0; v < width; ++v) lanes[v] = Op::Vectors(d, lanes[v], lanes[v + width]);
  }
  HWY_ALIGN T last[kN];
  if (nans.AreAny(d)) return std::numeric_limits<T>::quiet_NaN();
  hn::Store(lanes[0], d, last);
  for (int64_t width = kN / 2; width > 0; width /= 2) {
    for (int64_t l = 0; l < width; ++l) last[l] = Op::TwoNumbers(last[l], last[l + width]);
  }
  return last[0];
}

// Complex numbers have no vectors: the compiler makes some of the lanes' loop. The tree is the same.
template <typename T, typename Op, typename Map = Itself>
HWY_INLINE T Block(const T* row, int64_t count, Map map = {}) {
  if constexpr (!scalar::kIsComplex<T>) {
    if (count == kTreeBlock) return WholeBlock<T, Op>(row, map);
  }
  T lanes[kReduceLanes] = {};
  const int64_t filled = std::min(count, kReduceLanes);
  for (int64_t l = 0; l < filled; ++l) lanes[l] = map.One(row[l]);
  for (int64_t i = kReduceLanes; i < count; ++i) {
    lanes[i % kReduceLanes] = Op::Two(lanes[i % kReduceLanes], map.One(row[i]));
  }
  for (int64_t width = kReduceLanes / 2; width > 0; width /= 2) {
    for (int64_t l = 0; l < width && l + width < filled; ++l) lanes[l] = Op::Two(lanes[l], lanes[l + width]);
  }
  return lanes[0];
}

// Has a block that is wanted soon on its way. It may lie beyond the row.
template <typename T>
HWY_INLINE void FetchBlock(const T* block) {
  for (int64_t at = 0; at < kTreeBlock * static_cast<int64_t>(sizeof(T)); at += kLineBytes) {
    __builtin_prefetch(reinterpret_cast<const std::byte*>(block) + at);
  }
}

// Calls visit(T{}, Op{}).
template <typename Visit>
HWY_INLINE void VisitReduction(ReduceOp op, DType dtype, Visit&& visit) {
  VisitElement(dtype, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    if constexpr (std::is_same_v<T, BoolElement>) {
      const bool is_all = op == ReduceOp::kMin || op == ReduceOp::kProduct;
      is_all ? visit(uint8_t{}, AllOp{}) : visit(uint8_t{}, AnyOp{});
    } else if constexpr (scalar::kIsComplex<T>) {
      op == ReduceOp::kProduct ? visit(T{}, ProductOp{}) : visit(T{}, SumOp{});
    } else if constexpr (!kIsHalf<T>) {
      switch (op) {
        case ReduceOp::kSum:
        case ReduceOp::kAvg: visit(T{}, SumOp{}); break;
        case ReduceOp::kProduct: visit(T{}, ProductOp{}); break;
        case ReduceOp::kMin: visit(T{}, MinimumOp{}); break;
        case ReduceOp::kMax: visit(T{}, MaximumOp{}); break;
        case ReduceOp::kBand:
        case ReduceOp::kBor:
        case ReduceOp::kBxor: break;  // ValidateLocalOp refuses them
      }
    }
    return true;
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#endif  // once for each instruction set
