#include "kernels/cpu/reduce_loops.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/cpu/stores.h"
#include "schemas/ops/complex_functions.h"
#include "schemas/ops/scalar_functions.h"

// Memory is slower than these loops with AVX2; each set of instructions takes its time to compile.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reduce_loops.cc"
// The order is Highway's.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

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

// What is reduced of an element: itself, or the square of its difference.
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
template <typename T>
struct SquaredDifference {
  T from;
  HWY_INLINE T One(T a) const {
    const T difference = scalar::Subtract(a, from);
    return scalar::Multiply(difference, difference);
  }
  template <class D, class V>
  HWY_INLINE V Vector(D d, V a) const {
    const V difference = hn::Sub(a, hn::Set(d, from));
    return hn::Mul(difference, difference);
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

// The value of the next 2^level blocks, of which there is a multiple in the tree.
template <typename T, typename Op>
HWY_INLINE void Carry(T value, size_t level, RowTree* tree) {
  const uint64_t added = uint64_t{1} << level;
  for (uint64_t carried = tree->blocks >> level; (carried & 1) != 0; carried >>= 1, ++level) {
    T earlier;
    std::memcpy(static_cast<void*>(&earlier), &tree->levels[level], sizeof(T));
    value = Op::Two(earlier, value);
  }
  std::memcpy(&tree->levels[level], &value, sizeof(T));
  tree->blocks += added;
}

// Eight blocks at a time are a tree of their own: a carry for each would wait for the one before through memory, and
// the core would read ahead too little.
template <typename T, typename Op, typename Map = Itself>
HWY_INLINE void Push(const T* row, int64_t count, RowTree* tree, Map map = {}) {
  constexpr size_t kLevels = 3;
  constexpr int64_t kBlocks = int64_t{1} << kLevels;
  for (int64_t at = 0; at < count;) {
    if (tree->blocks % kBlocks != 0 || count - at < kBlocks * kTreeBlock) {
      Carry<T, Op>(Block<T, Op>(row + at, std::min(kTreeBlock, count - at), map), 0, tree);
      at += kTreeBlock;
      continue;
    }
    T values[kBlocks];
    for (T& value : values) {
      FetchBlock(row + at + kBlocks * kTreeBlock);
      value = Block<T, Op>(row + at, kTreeBlock, map);
      at += kTreeBlock;
    }
    for (int64_t width = kBlocks / 2; width > 0; width /= 2) {
      for (int64_t b = 0; b < width; ++b) values[b] = Op::Two(values[2 * b], values[2 * b + 1]);
    }
    Carry<T, Op>(values[0], kLevels, tree);
  }
}

// The lower levels are of later blocks. They are combined from the last one on.
template <typename T, typename Op>
HWY_INLINE T Finish(const RowTree& tree) {
  T result{};
  bool is_first = true;
  for (size_t level = 0; (tree.blocks >> level) != 0; ++level) {
    if (((tree.blocks >> level) & 1) == 0) continue;
    T earlier;
    std::memcpy(static_cast<void*>(&earlier), &tree.levels[level], sizeof(T));
    result = is_first ? earlier : Op::Two(earlier, result);
    is_first = false;
  }
  return result;
}

// As many whole pairs of vectors as there are; returns where they end.
template <typename T, typename Op>
int64_t CombineVectors(absl::Span<const void* const> rows, int64_t count, T* result) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto row = [&](size_t r) HWY_ATTR { return static_cast<const T*>(rows[r]); };
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    Nans<std::remove_cv_t<decltype(d)>, Op> of_a, of_b;
    auto a = of_a.Look(hn::LoadU(d, row(0) + i)), b = of_b.Look(hn::LoadU(d, row(0) + i + lanes));
    for (size_t r = 1; r < rows.size(); ++r) {
      a = Op::Vectors(d, a, of_a.Look(hn::LoadU(d, row(r) + i)));
      b = Op::Vectors(d, b, of_b.Look(hn::LoadU(d, row(r) + i + lanes)));
    }
    hn::StoreU(of_a.Brought(d, a), d, result + i);
    hn::StoreU(of_b.Brought(d, b), d, result + i + lanes);
  }
  return i;
}

template <typename T, typename Op>
void Combine(absl::Span<const void* const> rows, int64_t count, T* result) {
  const auto row = [&](size_t r) HWY_ATTR { return static_cast<const T*>(rows[r]); };
  int64_t i = 0;
  if constexpr (!scalar::kIsComplex<T>) i = CombineVectors<T, Op>(rows, count, result);
  for (; i < count; ++i) {
    T value = row(0)[i];
    for (size_t r = 1; r < rows.size(); ++r) value = Op::Two(value, row(r)[i]);
    result[i] = value;
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
      }
    }
    return true;
  });
}

struct PushTyped {
  const void* row;
  int64_t count;
  RowTree* tree;
  template <typename T, typename Op>
  void operator()(T, Op) const {
    Push<T, Op>(static_cast<const T*>(row), count, tree);
  }
};
void PushAny(ReduceOp op, DType dtype, const void* row, int64_t count, RowTree* tree) {
  VisitReduction(op, dtype, PushTyped{row, count, tree});
}

void PushSquares(DType dtype, const void* row, int64_t count, const void* from, RowTree* tree) {
  const auto push = [&](auto element) HWY_ATTR {
    using T = decltype(element);
    std::memcpy(&element, from, sizeof(T));
    Push<T, SumOp>(static_cast<const T*>(row), count, tree, SquaredDifference<T>{element});
  };
  dtype == DType::kF32 ? push(float{}) : push(double{});
}

// A bool that no other was combined with may have any byte.
template <typename T, typename Op>
HWY_INLINE T Whole(T value) {
  if constexpr (std::is_same_v<Op, AnyOp> || std::is_same_v<Op, AllOp>) return value != 0;
  return value;
}

struct FinishTyped {
  const RowTree& tree;
  void* result;
  template <typename T, typename Op>
  void operator()(T, Op) const {
    *static_cast<T*>(result) = Whole<T, Op>(Finish<T, Op>(tree));
  }
};
void FinishAny(ReduceOp op, DType dtype, const RowTree& tree, void* result) {
  VisitReduction(op, dtype, FinishTyped{tree, result});
}

struct RowsTyped {
  const void* first;
  int64_t rows;
  int64_t row_stride;
  int64_t count;
  void* results;
  template <typename T, typename Op>
  void operator()(T, Op) const {
    for (int64_t r = 0; r < rows; ++r) {
      const T* row = static_cast<const T*>(first) + r * row_stride;
      if (count <= kTreeBlock) {
        static_cast<T*>(results)[r] = Whole<T, Op>(Block<T, Op>(row, count));
        continue;
      }
      RowTree tree;
      Push<T, Op>(row, count, &tree);
      static_cast<T*>(results)[r] = Whole<T, Op>(Finish<T, Op>(tree));
    }
  }
};
void RowsAny(ReduceOp op, DType dtype, const void* first, int64_t rows, int64_t row_stride, int64_t count,
             void* results) {
  VisitReduction(op, dtype, RowsTyped{first, rows, row_stride, count, results});
}

struct CombineTyped {
  absl::Span<const void* const> rows;
  int64_t count;
  void* result;
  template <typename T, typename Op>
  void operator()(T, Op) const {
    Combine<T, Op>(rows, count, static_cast<T*>(result));
  }
};
void CombineAny(ReduceOp op, DType dtype, absl::Span<const void* const> rows, int64_t count, void* result) {
  VisitReduction(op, dtype, CombineTyped{rows, count, result});
}

// ---- the first extreme

// The extreme of a few blocks is found with vectors; only where it beats what came before are they searched for it.
template <typename T, typename Op>
int64_t FirstOf(const T* row, int64_t count) {
  constexpr int64_t kTogether = 8 * kTreeBlock;
  T best = row[0];
  int64_t index = 0;
  for (int64_t at = 0; at < count; at += kTogether) {
    if (best != best) return index;
    const int64_t n = std::min(kTogether, count - at);
    FetchBlock(row + at + kTogether);
    T extreme = Block<T, Op>(row + at, std::min(kTreeBlock, n));
    for (int64_t i = kTreeBlock; i < n; i += kTreeBlock) {
      FetchBlock(row + at + i + kTogether);
      extreme = Op::Two(extreme, Block<T, Op>(row + at + i, std::min(kTreeBlock, n - i)));
    }
    // Op takes a NaN before a number, and the better of two numbers.
    if (extreme == best || (extreme == extreme && Op::Two(best, extreme) == best)) continue;
    int64_t i = 0;
    while (extreme == extreme ? row[at + i] != extreme : row[at + i] == row[at + i]) ++i;
    index = at + i;
    best = extreme;
  }
  return index;
}

template <typename T, typename Op>
int64_t FirstOfFew(const T* row, int64_t count) {
  int64_t index = 0;
  const auto number = [&](int64_t i) {
    if constexpr (std::is_same_v<T, BoolElement>) return static_cast<uint8_t>(row[i].byte != 0);
    if constexpr (!std::is_same_v<T, BoolElement>) return static_cast<float>(row[i]);
  };
  auto best = number(0);
  for (int64_t i = 1; i < count && best == best; ++i) {
    const auto next = number(i);
    if (next == best || (next == next && Op::Two(best, next) == best)) continue;
    best = next;
    index = i;
  }
  return index;
}

template <typename Op>
int64_t FirstAny(DType dtype, const void* row, int64_t count) {
  int64_t index = 0;
  VisitElement(dtype, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    if constexpr (std::is_arithmetic_v<T>) {
      index = FirstOf<T, Op>(static_cast<const T*>(row), count);
    } else if constexpr (!scalar::kIsComplex<T>) {
      index = FirstOfFew<T, Op>(static_cast<const T*>(row), count);
    }
    return true;
  });
  return index;
}
int64_t FirstMinimumAny(DType dtype, const void* row, int64_t count) { return FirstAny<MinimumOp>(dtype, row, count); }
int64_t FirstMaximumAny(DType dtype, const void* row, int64_t count) { return FirstAny<MaximumOp>(dtype, row, count); }

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(PushAny);
HWY_EXPORT(PushSquares);
HWY_EXPORT(FinishAny);
HWY_EXPORT(RowsAny);
HWY_EXPORT(CombineAny);
HWY_EXPORT(FirstMinimumAny);
HWY_EXPORT(FirstMaximumAny);

void PushRow(ReduceOp op, DType dtype, const void* row, int64_t count, RowTree* tree) {
  HWY_DYNAMIC_DISPATCH(PushAny)(op, dtype, row, count, tree);
}
void PushSquaredDifferences(DType dtype, const void* row, int64_t count, const void* from, RowTree* tree) {
  HWY_DYNAMIC_DISPATCH(PushSquares)(dtype, row, count, from, tree);
}
void FinishRow(ReduceOp op, DType dtype, const RowTree& tree, void* result) {
  HWY_DYNAMIC_DISPATCH(FinishAny)(op, dtype, tree, result);
}
void ReduceRows(ReduceOp op, DType dtype, const void* first, int64_t rows, int64_t row_stride, int64_t count,
                void* results) {
  HWY_DYNAMIC_DISPATCH(RowsAny)(op, dtype, first, rows, row_stride, count, results);
}
void CombineRows(ReduceOp op, DType dtype, absl::Span<const void* const> rows, int64_t count, void* result) {
  HWY_DYNAMIC_DISPATCH(CombineAny)(op, dtype, rows, count, result);
}
int64_t FirstMinimum(DType dtype, const void* row, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(FirstMinimumAny)(dtype, row, count);
}
int64_t FirstMaximum(DType dtype, const void* row, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(FirstMaximumAny)(dtype, row, count);
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
