#include "kernels/cpu/stream_reduction.h"

#include <type_traits>

#include "kernels/cpu/stores.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/stream_reduction.cc"
// The order is Highway's.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The same values as the loops of loops.cc.
struct SumOf {
  template <typename D, typename V>
  HWY_INLINE V operator()(D, V a, V b) const {
    return hn::Add(a, b);
  }
};
struct MaximumOf {
  template <typename D, typename V>
  HWY_INLINE V operator()(D, V a, V b) const {
    if constexpr (std::is_floating_point_v<hn::TFromD<D>>) {
      return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::Not(hn::Eq(a, a))), a,
                            b);  // a NaN propagates; Ne(NaN, NaN) is false
    } else {
      return hn::Max(a, b);
    }
  }
};
struct MinimumOf {
  template <typename D, typename V>
  HWY_INLINE V operator()(D, V a, V b) const {
    if constexpr (std::is_floating_point_v<hn::TFromD<D>>) {
      return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::Not(hn::Eq(a, a))), a, b);
    } else {
      return hn::Min(a, b);
    }
  }
};

template <typename T, typename Op>
class Streamer {
 public:
  Streamer(const StreamedReduction& work, Op op) : work_(work), op_(op), divides_(work.op == ReduceOp::kAvg) {}

  void Run() const {
    int64_t at = 0;
    for (; at + kPagesTogether * kPageBytes <= work_.bytes; at += kPagesTogether * kPageBytes) {
      for (int64_t line = 0; line < kPageBytes; line += 2 * kLineBytes) {
        for (int64_t page = 0; page < kPagesTogether * kPageBytes; page += kPageBytes) Lines(at + page + line, 2);
      }
    }
    Lines(at, (work_.bytes - at) / kLineBytes);
  }

 private:
  static constexpr hn::CappedTag<T, kLineBytes / sizeof(T)> kTag{};
  static constexpr int64_t kStep = static_cast<int64_t>(hn::MaxLanes(kTag) * sizeof(T));

  const T* Term(size_t t, int64_t at) const { return reinterpret_cast<const T*>(work_.terms[t] + at); }

  HWY_INLINE void Lines(int64_t first, int64_t lines) const {
    for (int64_t at = first; at < first + lines * kLineBytes; at += kStep) {
      auto reduced = hn::LoadU(kTag, Term(0, at));
      for (size_t t = 1; t < work_.terms.size(); ++t) reduced = op_(kTag, reduced, hn::LoadU(kTag, Term(t, at)));
      if constexpr (std::is_floating_point_v<T>) {
        if (divides_) reduced = hn::Div(reduced, hn::Set(kTag, static_cast<T>(work_.term_count)));
      }
      for (std::byte* to : work_.destinations) hn::Stream(reduced, kTag, reinterpret_cast<T*>(to + at));
    }
  }

  const StreamedReduction work_;
  const Op op_;
  const bool divides_;
};

template <typename T>
void StreamTyped(const StreamedReduction& work) {
  switch (work.op) {
    case ReduceOp::kMin: return Streamer<T, MinimumOf>(work, {}).Run();
    case ReduceOp::kMax: return Streamer<T, MaximumOf>(work, {}).Run();
    default: return Streamer<T, SumOf>(work, {}).Run();
  }
}

void Stream(const StreamedReduction& work) {
  switch (work.dtype) {
    case DType::kI32: return StreamTyped<int32_t>(work);
    case DType::kI64: return StreamTyped<int64_t>(work);
    case DType::kF32: return StreamTyped<float>(work);
    case DType::kF64: return StreamTyped<double>(work);
    default: return;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(Stream);

bool CanStreamReduction(ReduceOp op, DType dtype) {
  if (op == ReduceOp::kProduct) return false;
  if (op == ReduceOp::kAvg && Kind(dtype) != DTypeKind::kFloat) return false;
  return dtype == DType::kI32 || dtype == DType::kI64 || dtype == DType::kF32 || dtype == DType::kF64;
}

void StreamReduction(const StreamedReduction& work) { HWY_DYNAMIC_DISPATCH(Stream)(work); }

}  // namespace tessera::cpu
#endif  // HWY_ONCE
