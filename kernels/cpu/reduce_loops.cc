#include "kernels/cpu/reduce_loops.h"

#include <algorithm>
#include <cstring>

// Memory is slower than these loops with AVX2; each set of instructions takes its time to compile.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/reduce_loops.cc"
// The order is Highway's.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/reduce_blocks.inl"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
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
void Push(const T* row, int64_t count, RowTree* tree, Map map = {}) {
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

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(PushAny);
HWY_EXPORT(PushSquares);
HWY_EXPORT(FinishAny);
HWY_EXPORT(RowsAny);

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

}  // namespace tessera::cpu
#endif  // HWY_ONCE
