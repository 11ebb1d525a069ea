#include "kernels/cpu/stream_reduction.h"

#include <algorithm>
#include <array>
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

// The same values as the loops of loops.cc. `End` makes the result of what was put together.
struct AsItIs {
  template <typename D, typename V>
  HWY_INLINE V End(D, V v) const {
    return v;
  }
};
struct SumOf : AsItIs {
  template <typename D, typename V>
  HWY_INLINE V operator()(D, V a, V b) const {
    return hn::Add(a, b);
  }
};
template <typename T>
struct AverageOf : SumOf {
  T count;
  template <typename D, typename V>
  HWY_INLINE V End(D d, V v) const {
    return hn::Div(v, hn::Set(d, count));
  }
};
struct MaximumOf : AsItIs {
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
struct MinimumOf : AsItIs {
  template <typename D, typename V>
  HWY_INLINE V operator()(D, V a, V b) const {
    if constexpr (std::is_floating_point_v<hn::TFromD<D>>) {
      return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::Not(hn::Eq(a, a))), a, b);
    } else {
      return hn::Min(a, b);
    }
  }
};

// kTerms, kDestinations: how many there are, so that their addresses stay in registers; 0: any number.
template <typename T, typename Op, size_t kTerms, size_t kDestinations>
class Streamer {
 public:
  Streamer(const StreamedReduction& work, Op op) : work_(work), op_(op) {
    for (size_t t = 0; t < kTerms; ++t) terms_[t] = work.terms[t];
    for (size_t d = 0; d < kDestinations; ++d) destinations_[d] = work.destinations[d];
  }

  HWY_INLINE void Run() const {
    int64_t at = 0;
    for (; at + kPagesTogether * kPageBytes <= work_.bytes; at += kPagesTogether * kPageBytes) {
      for (int64_t line = 0; line < kPageBytes; line += 2 * kLineBytes) {
        for (int64_t page = 0; page < kPagesTogether * kPageBytes; page += kPageBytes) {
          Line(at + page + line);
          Line(at + page + line + kLineBytes);
        }
      }
    }
    for (; at < work_.bytes; at += kLineBytes) Line(at);
  }

 private:
  static constexpr hn::CappedTag<T, kLineBytes / sizeof(T)> kTag{};
  static constexpr int64_t kStep = static_cast<int64_t>(hn::MaxLanes(kTag) * sizeof(T));

  HWY_INLINE auto Load(size_t t, int64_t at) const {
    const std::byte* const term = kTerms > 0 ? terms_[t] : work_.terms[t];
    return hn::LoadU(kTag, reinterpret_cast<const T*>(term + at));
  }

  HWY_INLINE void Line(int64_t first) const {
    const size_t terms = kTerms > 0 ? kTerms : work_.terms.size();
    const size_t destinations = kDestinations > 0 ? kDestinations : work_.destinations.size();
    for (int64_t at = first; at < first + kLineBytes; at += kStep) {
      auto reduced = Load(0, at);
      for (size_t t = 1; t < terms; ++t) reduced = op_(kTag, reduced, Load(t, at));
      reduced = op_.End(kTag, reduced);
      for (size_t d = 0; d < destinations; ++d) {
        std::byte* const to = kDestinations > 0 ? destinations_[d] : work_.destinations[d];
        hn::Stream(reduced, kTag, reinterpret_cast<T*>(to + at));
      }
    }
  }

  const StreamedReduction& work_;
  const Op op_;
  std::array<const std::byte*, std::max<size_t>(kTerms, 1)> terms_{};
  std::array<std::byte*, std::max<size_t>(kDestinations, 1)> destinations_{};
};

template <typename T, typename Op>
void StreamOp(const StreamedReduction& work, Op op) {
  if (work.terms.size() == 2 && work.destinations.size() == 1) return Streamer<T, Op, 2, 1>(work, op).Run();
  if (work.terms.size() == 2 && work.destinations.size() == 2) return Streamer<T, Op, 2, 2>(work, op).Run();
  Streamer<T, Op, 0, 0>(work, op).Run();
}

template <typename T>
void StreamTyped(const StreamedReduction& work) {
  switch (work.op) {
    case ReduceOp::kMin: return StreamOp<T>(work, MinimumOf{});
    case ReduceOp::kMax: return StreamOp<T>(work, MaximumOf{});
    case ReduceOp::kAvg:
      if constexpr (std::is_floating_point_v<T>) StreamOp<T>(work, AverageOf<T>{{}, static_cast<T>(work.term_count)});
      return;
    default: return StreamOp<T>(work, SumOf{});
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
