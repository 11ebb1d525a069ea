#include "kernels/cpu/attention_loops.h"

#include <limits>
#include <type_traits>

#include "kernels/cpu/loops.h"
#include "schemas/ops/scalar_ops.h"

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_loops.cc"
// The order is Highway's.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// With 32 registers of vectors: 24 sums, 3 vectors of queries and one element. With 16: 12, 3 and 1.
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3
constexpr int64_t kTileRows = 4;
#else
constexpr int64_t kTileRows = 8;
#endif

int64_t VectorBytes() { return static_cast<int64_t>(hn::MaxLanes(hn::ScalableTag<uint8_t>())); }

// Multiplies a matrix and the queries' vectors: kRows sums over `steps` for each of kVectors. Row i's factor of step s
// is matrix[i * row_stride + s * step_stride]; a step's vectors lie side by side.
template <int64_t kRows, int64_t kVectors, class D, typename T>
HWY_INLINE void Tile(D d, const T* matrix, int64_t row_stride, int64_t step_stride, const T* vectors, int64_t steps,
                     hn::Vec<D> (&sums)[kRows][kVectors]) {
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));
  for (int64_t s = 0; s < steps; ++s, matrix += step_stride, vectors += kVectors * kLanes) {
    hn::Vec<D> of_step[kVectors];
#pragma GCC unroll 3
    for (int64_t v = 0; v < kVectors; ++v) of_step[v] = hn::Load(d, vectors + v * kLanes);
#pragma GCC unroll 8
    for (int64_t i = 0; i < kRows; ++i) {
      const auto element = hn::Set(d, matrix[i * row_stride]);
#pragma GCC unroll 3
      for (int64_t v = 0; v < kVectors; ++v) sums[i][v] = hn::MulAdd(element, of_step[v], sums[i][v]);
    }
  }
}

// Each function of a block, for a strip of kVectors.
template <typename T, int64_t kVectors>
struct Strip {
  static constexpr hn::ScalableTag<T> kTag{};
  using D = std::remove_cv_t<decltype(kTag)>;
  using V = hn::Vec<D>;
  static constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));
  static constexpr int64_t kWidth = kVectors * kLanes;

  template <int64_t kRows>
  static HWY_INLINE void ScoreRows(const AttentionBlock<T>& b, int64_t key) {
    V sums[kRows][kVectors];
#pragma GCC unroll 8
    for (int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 3
      for (int64_t v = 0; v < kVectors; ++v) sums[i][v] = hn::Zero(kTag);
    }
    Tile<kRows, kVectors>(kTag, b.key + key * b.key_stride, b.key_stride, 1, b.queries, b.features, sums);
    const V scale = hn::Set(kTag, b.scale);
#pragma GCC unroll 8
    for (int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 3
      for (int64_t v = 0; v < kVectors; ++v) {
        hn::Store(hn::Mul(sums[i][v], scale), kTag, b.scores + (key + i) * kWidth + v * kLanes);
      }
    }
  }
  static void Score(const AttentionBlock<T>& b) {
    int64_t key = 0;
    for (; key + kTileRows <= b.keys; key += kTileRows) ScoreRows<kTileRows>(b, key);
    for (; key < b.keys; ++key) ScoreRows<1>(b, key);
  }

  template <int64_t kRows>
  static HWY_INLINE void AddColumns(const AttentionBlock<T>& b, int64_t column) {
    V sums[kRows][kVectors];
    T* const to = b.sums + column * kWidth;
#pragma GCC unroll 8
    for (int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 3
      for (int64_t v = 0; v < kVectors; ++v) sums[i][v] = hn::Load(kTag, to + i * kWidth + v * kLanes);
    }
    Tile<kRows, kVectors>(kTag, b.value + column, 1, b.value_stride, b.scores, b.keys, sums);
#pragma GCC unroll 8
    for (int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 3
      for (int64_t v = 0; v < kVectors; ++v) hn::Store(sums[i][v], kTag, to + i * kWidth + v * kLanes);
    }
  }
  static void Add(const AttentionBlock<T>& b) {
    int64_t column = 0;
    for (; column + kTileRows <= b.columns; column += kTileRows) AddColumns<kTileRows>(b, column);
    for (; column < b.columns; ++column) AddColumns<1>(b, column);
  }

  // The exponential of anything less is 0, which libmvec says ten times as slowly as any other value. None of a block
  // is above 1; that of kStandIn is above 2.
  static constexpr T kLeast = sizeof(T) == 4 ? T{-104} : T{-746};
  static constexpr T kStandIn = 1;

  static void Take(const AttentionBlock<T>& b) {
    const V none = hn::Neg(hn::Inf(kTag));
    for (int64_t v = 0; v < kWidth; v += kLanes) {
      T* const scores = b.scores + v;
      const V before = hn::Load(kTag, b.largest + v);
      V largest = before;
      for (int64_t k = 0; k < b.keys; ++k) largest = hn::Max(hn::Load(kTag, scores + k * kWidth), largest);
      hn::Store(largest, kTag, b.largest + v);
      // Where all scores so far are -inf nothing is subtracted: inf - inf would be NaN.
      const auto has_none = hn::Eq(largest, none);
      const V shift = hn::IfThenZeroElse(has_none, largest);
      hn::Store(hn::IfThenZeroElse(has_none, hn::Sub(before, shift)), kTag, b.factors + v);
      for (int64_t k = 0; k < b.keys; ++k) {
        const V score = hn::Sub(hn::Load(kTag, scores + k * kWidth), shift);
        const auto has_weight = hn::Not(hn::Lt(score, hn::Set(kTag, kLeast)));
        hn::Store(hn::IfThenElse(has_weight, score, hn::Set(kTag, kStandIn)), kTag, scores + k * kWidth);
      }
    }
    Exponentiate(b.factors, kWidth);
    Exponentiate(b.scores, b.keys * kWidth);
    V factors[kVectors], totals[kVectors];
#pragma GCC unroll 3
    for (int64_t v = 0; v < kVectors; ++v) {
      factors[v] = hn::Load(kTag, b.factors + v * kLanes);
      totals[v] = hn::Zero(kTag);
    }
    for (int64_t k = 0; k < b.keys; ++k) {
#pragma GCC unroll 3
      for (int64_t v = 0; v < kVectors; ++v) {
        T* const score = b.scores + k * kWidth + v * kLanes;
        const V e = hn::Load(kTag, score);
        const V weight = hn::IfThenZeroElse(hn::Gt(e, hn::Set(kTag, T{2})), e);
        hn::Store(weight, kTag, score);
        totals[v] = hn::Add(totals[v], weight);
      }
    }
    bool changes = false;
#pragma GCC unroll 3
    for (int64_t v = 0; v < kVectors; ++v) {
      const V before = hn::Mul(hn::Load(kTag, b.total + v * kLanes), factors[v]);
      hn::Store(hn::Add(before, totals[v]), kTag, b.total + v * kLanes);
      changes = changes || !hn::AllTrue(kTag, hn::Eq(factors[v], hn::Set(kTag, T{1})));
    }
    if (!changes) return;  // times 1
    for (int64_t c = 0; c < b.columns; ++c) {
#pragma GCC unroll 3
      for (int64_t v = 0; v < kVectors; ++v) {
        T* const sum = b.sums + c * kWidth + v * kLanes;
        hn::Store(hn::Mul(hn::Load(kTag, sum), factors[v]), kTag, sum);
      }
    }
  }

  static void Divide(const AttentionBlock<T>& b) {
    for (int64_t c = 0; c < b.columns; ++c) {
      for (int64_t v = 0; v < kWidth; v += kLanes) {
        T* const sum = b.sums + c * kWidth + v;
        hn::Store(hn::Div(hn::Load(kTag, sum), hn::Load(kTag, b.total + v)), kTag, sum);
      }
    }
  }
};

// Rows of kLanes numbers side by side, in as many vectors as these take.
template <typename T>
struct Rows {
  static constexpr int64_t kSide = 16;
  static constexpr hn::CappedTag<T, kSide> kTag{};
  using D = std::remove_cv_t<decltype(kTag)>;
  using V = hn::Vec<D>;
  static constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D())), kVectors = kSide / kLanes;
  static constexpr T kLeast = Strip<T, 1>::kLeast, kStandIn = Strip<T, 1>::kStandIn;

  // each(vector of the side, place) over whole sides, then rest(lane, place).
  template <typename Each, typename Rest>
  static HWY_INLINE void ForSides(int64_t count, Each each, Rest rest) {
    int64_t i = 0;
    for (; i + kSide <= count; i += kSide) {
#pragma GCC unroll 8
      for (int64_t v = 0; v < kVectors; ++v) each(v, i + v * kLanes);
    }
    for (int64_t lane = 0; i < count; ++i, ++lane) rest(lane, i);
  }
  static HWY_INLINE void Keep(const V (&vectors)[kVectors], T (&lanes)[kSide]) {
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) hn::StoreU(vectors[v], kTag, lanes + v * kLanes);
  }
  static T Folded(T (&lanes)[kSide]) {
    for (int64_t width = kSide / 2; width > 0; width /= 2) {
      for (int64_t l = 0; l < width; ++l) lanes[l] += lanes[l + width];
    }
    return lanes[0];
  }

  static void Scale(T* scores, int64_t keys, T by) {
    const V scale = hn::Set(kTag, by);
    ForSides(
        keys,
        [&](int64_t, int64_t i) HWY_ATTR { hn::StoreU(hn::Mul(hn::LoadU(kTag, scores + i), scale), kTag, scores + i); },
        [&](int64_t, int64_t i) { scores[i] *= by; });
  }

  static void Shift(T* scores, int64_t keys) {
    const V none = hn::Neg(hn::Inf(kTag));
    V largest[kVectors];
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) largest[v] = none;
    T rest = -std::numeric_limits<T>::infinity();
    ForSides(
        keys,
        [&](int64_t v, int64_t i) HWY_ATTR {
          const V score = hn::LoadU(kTag, scores + i);
          largest[v] = hn::IfThenElse(hn::Gt(score, largest[v]), score, largest[v]);
        },
        [&](int64_t, int64_t i) { rest = scores[i] > rest ? scores[i] : rest; });
    T lanes[kSide];
    Keep(largest, lanes);
    for (const T lane : lanes) rest = lane > rest ? lane : rest;
    // Where all scores are -inf nothing is subtracted.
    const T most = rest == -std::numeric_limits<T>::infinity() ? T{0} : rest;
    const V shift = hn::Set(kTag, most), least = hn::Set(kTag, kLeast), stand_in = hn::Set(kTag, kStandIn);
    ForSides(
        keys,
        [&](int64_t, int64_t i) HWY_ATTR {
          const V score = hn::Sub(hn::LoadU(kTag, scores + i), shift);
          hn::StoreU(hn::IfThenElse(hn::Lt(score, least), stand_in, score), kTag, scores + i);
        },
        [&](int64_t, int64_t i) {
          const T score = scores[i] - most;
          scores[i] = score < kLeast ? kStandIn : score;
        });
  }

  static void Slope(T* weights, T* slopes, int64_t keys, T by) {
    T lanes[kSide];
    V sums[kVectors];
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) sums[v] = hn::Zero(kTag);
    const int64_t whole = keys / kSide * kSide;
    ForSides(
        whole,
        [&](int64_t v, int64_t i) HWY_ATTR {
          const V e = hn::LoadU(kTag, weights + i), weight = hn::IfThenZeroElse(hn::Gt(e, hn::Set(kTag, T{2})), e);
          hn::StoreU(weight, kTag, weights + i);
          sums[v] = hn::Add(sums[v], weight);
        },
        [](int64_t, int64_t) {});
    Keep(sums, lanes);
    for (int64_t i = whole; i < keys; ++i) {
      weights[i] = weights[i] > T{2} ? T{0} : weights[i];
      lanes[i - whole] += weights[i];
    }
    const T total = Folded(lanes);
    const V of_row = hn::Set(kTag, total), zero = hn::Zero(kTag);
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) sums[v] = zero;
    ForSides(
        whole,
        [&](int64_t v, int64_t i) HWY_ATTR {
          const V weight = hn::Div(hn::LoadU(kTag, weights + i), of_row);
          hn::StoreU(weight, kTag, weights + i);
          const V product = hn::Mul(weight, hn::LoadU(kTag, slopes + i));
          sums[v] = hn::Add(sums[v], hn::IfThenZeroElse(hn::Eq(weight, zero), product));
        },
        [](int64_t, int64_t) {});
    Keep(sums, lanes);
    for (int64_t i = whole; i < keys; ++i) {
      weights[i] /= total;
      lanes[i - whole] += weights[i] == T{0} ? T{0} : weights[i] * slopes[i];
    }
    const T sum = Folded(lanes);
    const V subtracted = hn::Set(kTag, sum), scale = hn::Set(kTag, by);
    ForSides(
        keys,
        [&](int64_t, int64_t i) HWY_ATTR {
          const V weight = hn::LoadU(kTag, weights + i);
          const V slope = hn::Mul(hn::Mul(weight, hn::Sub(hn::LoadU(kTag, slopes + i), subtracted)), scale);
          hn::StoreU(hn::IfThenZeroElse(hn::Eq(weight, zero), slope), kTag, slopes + i);
        },
        [&](int64_t, int64_t i) { slopes[i] = weights[i] == T{0} ? T{0} : weights[i] * (slopes[i] - sum) * by; });
  }

  static void Run(GradientStep step, const GradientRows<T>& r) {
    for (int64_t row = 0; row < r.rows; ++row) {
      T* const weights = r.weights + row * r.keys;
      if (step == GradientStep::kScale) Scale(weights, r.keys, r.scale);
      if (step == GradientStep::kShift) Shift(weights, r.keys);
      if (step == GradientStep::kSlope) Slope(weights, r.slopes + row * r.keys, r.keys, r.scale);
    }
  }
};

template <typename T, int64_t kVectors>
void RunStep(AttentionStep step, const AttentionBlock<T>& block) {
  switch (step) {
    case AttentionStep::kScore: return Strip<T, kVectors>::Score(block);
    case AttentionStep::kTake: return Strip<T, kVectors>::Take(block);
    case AttentionStep::kAdd: return Strip<T, kVectors>::Add(block);
    case AttentionStep::kDivide: return Strip<T, kVectors>::Divide(block);
  }
}
template <typename T>
void RunOnVectors(AttentionStep step, const AttentionBlock<T>& block) {
  static_assert(kMaxStripVectors == 3);
  if (block.vectors == 1) return RunStep<T, 1>(step, block);
  if (block.vectors == 2) return RunStep<T, 2>(step, block);
  RunStep<T, 3>(step, block);
}

void OfFloats(AttentionStep step, const AttentionBlock<float>& block) { RunOnVectors(step, block); }
void OfDoubles(AttentionStep step, const AttentionBlock<double>& block) { RunOnVectors(step, block); }
void RowsOfFloats(GradientStep step, const GradientRows<float>& rows) { Rows<float>::Run(step, rows); }
void RowsOfDoubles(GradientStep step, const GradientRows<double>& rows) { Rows<double>::Run(step, rows); }

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(VectorBytes);
HWY_EXPORT(OfFloats);
HWY_EXPORT(OfDoubles);
HWY_EXPORT(RowsOfFloats);
HWY_EXPORT(RowsOfDoubles);

int64_t QueriesPerVector(int64_t element_bytes) { return HWY_DYNAMIC_DISPATCH(VectorBytes)() / element_bytes; }

void RunAttentionStep(AttentionStep step, const AttentionBlock<float>& block) {
  HWY_DYNAMIC_DISPATCH(OfFloats)(step, block);
}
void RunAttentionStep(AttentionStep step, const AttentionBlock<double>& block) {
  HWY_DYNAMIC_DISPATCH(OfDoubles)(step, block);
}

void RunGradientStep(GradientStep step, const GradientRows<float>& rows) {
  HWY_DYNAMIC_DISPATCH(RowsOfFloats)(step, rows);
}
void RunGradientStep(GradientStep step, const GradientRows<double>& rows) {
  HWY_DYNAMIC_DISPATCH(RowsOfDoubles)(step, rows);
}

void Exponentiate(float* values, int64_t count) {
  constexpr DType kOwn = DType::kF32;
  RunNodeBlock({.op = ScalarOp::kExp, .dtype = kOwn, .operand = kOwn, .a = values, .out = values, .count = count});
}
void Exponentiate(double* values, int64_t count) {
  constexpr DType kOwn = DType::kF64;
  RunNodeBlock({.op = ScalarOp::kExp, .dtype = kOwn, .operand = kOwn, .a = values, .out = values, .count = count});
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
