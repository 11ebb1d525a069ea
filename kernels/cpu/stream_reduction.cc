#include "kernels/cpu/stream_reduction.h"

#include <type_traits>

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/stores.h"
#include "schemas/ops/complex_functions.h"

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
// A NaN propagates. (Highway's Ne(NaN, NaN) is false.)
struct MaximumOf : AsItIs {
  template <typename D, typename V>
  HWY_INLINE V operator()(D, V a, V b) const {
    if constexpr (std::is_floating_point_v<hn::TFromD<D>>) {
      return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::Not(hn::Eq(a, a))), a, b);
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

template <typename T, typename Op, Stores kStores>
class Streamer {
 public:
  Streamer(const StreamedReduction& work, Op op) : work_(work), op_(op) {}

  void Run() const {
    int64_t at = 0;
    for (; at + kBlockBytes <= work_.bytes; at += kBlockBytes) Block(at);
    for (; at < work_.bytes; at += kStep) {
      auto reduced = Load(work_.terms[0] + at);
      for (const std::byte* term : work_.terms.subspan(1)) reduced = op_(kTag, reduced, Load(term + at));
      reduced = op_.End(kTag, reduced);
      for (std::byte* to : work_.destinations) Stream(reduced, to + at);
    }
  }

 private:
  static constexpr hn::CappedTag<T, kLineBytes / sizeof(T)> kTag{};
  static constexpr int64_t kStep = static_cast<int64_t>(hn::MaxLanes(kTag) * sizeof(T));
  static constexpr int64_t kBlockBytes = 2 * kStep;

  static HWY_INLINE auto Load(const std::byte* from) { return hn::LoadU(kTag, reinterpret_cast<const T*>(from)); }
  template <typename V>
  static HWY_INLINE void Stream(V reduced, std::byte* to) {
    if constexpr (kStores == Stores::kStreaming) {
      hn::Stream(reduced, kTag, reinterpret_cast<T*>(to));
    } else {
      hn::StoreU(reduced, kTag, reinterpret_cast<T*>(to));
    }
  }

  // Two vectors at once: a term's address is looked up once for both.
  HWY_INLINE void Block(int64_t at) const {
    const std::byte* from = work_.terms[0] + at;
    auto a = Load(from), b = Load(from + kStep);
    for (size_t t = 1; t < work_.terms.size(); ++t) {
      from = work_.terms[t] + at;
      a = op_(kTag, a, Load(from));
      b = op_(kTag, b, Load(from + kStep));
    }
    a = op_.End(kTag, a);
    b = op_.End(kTag, b);
    for (std::byte* destination : work_.destinations) {
      std::byte* const to = destination + at;
      Stream(a, to);
      Stream(b, to + kStep);
    }
  }

  const StreamedReduction& work_;
  const Op op_;
};

template <typename T, typename Op>
void StreamWith(const StreamedReduction& work, Op op) {
  if (work.stores == Stores::kStreaming) return Streamer<T, Op, Stores::kStreaming>(work, op).Run();
  Streamer<T, Op, Stores::kCached>(work, op).Run();
}

template <typename T>
void StreamTyped(const StreamedReduction& work) {
  switch (work.op) {
    case ReduceOp::kMin: return StreamWith<T>(work, MinimumOf{});
    case ReduceOp::kMax: return StreamWith<T>(work, MaximumOf{});
    case ReduceOp::kAvg:
      if constexpr (std::is_floating_point_v<T>) StreamWith<T>(work, AverageOf<T>{{}, static_cast<T>(work.term_count)});
      return;
    default: return StreamWith<T>(work, SumOf{});
  }
}

void Stream(const StreamedReduction& work) {
  VisitElement(work.dtype, [&](auto element) {
    using T = decltype(element);
    // Sums and averages of complex numbers are those of their parts.
    if constexpr (scalar::kIsComplex<T>) {
      StreamTyped<typename T::value_type>(work);
    } else if constexpr (std::is_arithmetic_v<T>) {
      StreamTyped<T>(work);
    }
    return true;
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(Stream);

bool CanStreamReduction(ReduceOp op, DType dtype) {
  const bool is_complex = Kind(dtype) == DTypeKind::kComplex;
  if (op == ReduceOp::kProduct || IsBitwise(op) || (is_complex && op != ReduceOp::kSum && op != ReduceOp::kAvg))
    return false;
  if (op == ReduceOp::kAvg && Kind(dtype) != DTypeKind::kFloat && !is_complex) return false;
  return !IsFloat8(dtype) && dtype != DType::kBool && AccumulatedIn(dtype) == dtype;
}

void StreamReduction(const StreamedReduction& work) { HWY_DYNAMIC_DISPATCH(Stream)(work); }

}  // namespace tessera::cpu
#endif  // HWY_ONCE
