#include "kernels/cpu/reduce_loops.h"

#include <algorithm>

// Memory is slower than these loops with AVX2; each set of instructions takes its time to compile.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/combine_loops.cc"
// The order is Highway's.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/reduce_blocks.inl"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
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

HWY_EXPORT(CombineAny);
HWY_EXPORT(FirstMinimumAny);
HWY_EXPORT(FirstMaximumAny);

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
