#include "kernels/cpu/random_loops.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "schemas/ops/normal_law.h"
#include "schemas/ops/philox.h"

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/random_loops.cc"
// The order is Highway's.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {

// Counters of a block, whose words stay in the cache.
constexpr int64_t kBlockCounters = 256;
using BlockWords = std::array<uint32_t, 4 * kBlockCounters>;

// One by one, as philox.h says: the numbers behind the last whole vector, and all where there are no vectors.
HWY_INLINE void ToNumber(const uint32_t* words, uint32_t& out) { out = words[0]; }
HWY_INLINE void ToNumber(const uint32_t* words, uint64_t& out) { out = uint64_t{words[0]} << 32 | words[1]; }
HWY_INLINE void ToNumber(const uint32_t* words, F16& out) { out = ToUniformF16(words[0]); }
HWY_INLINE void ToNumber(const uint32_t* words, BF16& out) { out = ToUniformBF16(words[0]); }
HWY_INLINE void ToNumber(const uint32_t* words, float& out) { out = ToUniformF32(words[0]); }
HWY_INLINE void ToNumber(const uint32_t* words, double& out) {
  out = ToUniformF64(uint64_t{words[0]} << 32 | words[1]);
}

void OneByOne(uint64_t seed, uint64_t stream, uint64_t counter, int64_t count, BlockWords& words) {
  for (int64_t i = 0; i < count; ++i) {
    const auto four = CounterWords(seed, stream, counter + static_cast<uint64_t>(i));
    std::copy_n(four.begin(), 4, words.begin() + 4 * i);
  }
}

#if HWY_TARGET == HWY_SCALAR
void CounterBlock(uint64_t seed, uint64_t stream, uint64_t counter, int64_t count, BlockWords& words) {
  OneByOne(seed, stream, counter, count, words);
}

template <typename T>
int64_t ToWholeVectors(const uint32_t*, int64_t, T*) {
  return 0;
}
#else
namespace hn = hwy::HWY_NAMESPACE;

// The words of `count` counters, one behind the other, and maybe of some behind them. A lane of 64 bits has a counter:
// a multiplication reads its lower half, and what is in the upper one doesn't count until the end. Two vectors are
// under way at once, since a round waits for the one before.
void CounterBlock(uint64_t seed, uint64_t stream, uint64_t counter, int64_t count, BlockWords& words) {
  constexpr int64_t kAtOnce = 2, kFewCounters = 2;
  if (count <= kFewCounters) return OneByOne(seed, stream, counter, count, words);
  const hn::ScalableTag<uint64_t> d;
  const hn::Repartition<uint32_t, decltype(d)> narrow;
  using Lanes = hn::Vec<decltype(d)>;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto product = [&](Lanes a, uint32_t factor)
                           HWY_ATTR { return hn::MulEven(hn::BitCast(narrow, a), hn::Set(narrow, factor)); };
  for (int64_t i = 0; i < count; i += kAtOnce * lanes) {
    Lanes word[4][kAtOnce];
    for (int64_t v = 0; v < kAtOnce; ++v) {
      word[0][v] = hn::Iota(d, counter + static_cast<uint64_t>(i + v * lanes));
      word[1][v] = hn::ShiftRight<32>(word[0][v]);
      word[2][v] = hn::Set(d, stream);
      word[3][v] = hn::ShiftRight<32>(word[2][v]);
    }
    auto key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const Lanes k0 = hn::Set(d, uint64_t{key0}), k1 = hn::Set(d, uint64_t{key1});
      for (int64_t v = 0; v < kAtOnce; ++v) {
        const Lanes p0 = product(word[0][v], 0xD2511F53), p1 = product(word[2][v], 0xCD9E8D57);
        word[0][v] = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), word[1][v]), k0);
        word[2][v] = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), word[3][v]), k1);
        word[1][v] = p1;
        word[3][v] = p0;
      }
      key0 += 0x9E3779B9;
      key1 += 0xBB67AE85;
    }
    const Lanes lower = hn::Set(d, uint64_t{0xFFFFFFFF});
    for (int64_t v = 0; v < kAtOnce; ++v) {
      const auto two = [&](int at)
                           HWY_ATTR { return hn::Or(hn::And(word[at][v], lower), hn::ShiftLeft<32>(word[at + 1][v])); };
      hn::StoreInterleaved2(two(0), two(2), d, reinterpret_cast<uint64_t*>(words.data() + 4 * (i + v * lanes)));
    }
  }
}

// How many numbers are written: those of whole vectors, the same bits as one by one.
template <typename T>
int64_t ToWholeVectors(const uint32_t* words, int64_t count, T* out) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, F16>) {
    const hn::ScalableTag<float> d;
    const hn::RebindToUnsigned<decltype(d)> bits;
    const hn::RebindToSigned<decltype(d)> whole;
    const hn::Rebind<hwy::float16_t, decltype(d)> half;
    constexpr int kBits = sizeof(T) == 4 ? 24 : 11;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
      const auto upper = hn::BitCast(whole, hn::ShiftRight<32 - kBits>(hn::LoadU(bits, words + i)));
      const auto number = hn::Mul(hn::ConvertTo(d, upper), hn::Set(d, 1.0F / (1 << kBits)));
      if constexpr (sizeof(T) == 4) hn::StoreU(number, d, out + i);
      if constexpr (sizeof(T) == 2)
        hn::StoreU(hn::DemoteTo(half, number), half, reinterpret_cast<hwy::float16_t*>(out + i));
    }
    return i;
  } else if constexpr (std::is_same_v<T, BF16>) {
    // Exact: the lower half of such a float is 0. The compiler makes vectors of it.
    for (int64_t i = 0; i < count; ++i) {
      const float number = static_cast<float>(static_cast<int32_t>(words[i] >> 24)) * 0x1.0p-8f;
      uint32_t all;
      std::memcpy(&all, &number, sizeof(all));
      const auto half = static_cast<uint16_t>(all >> 16);
      std::memcpy(static_cast<void*>(out + i), &half, sizeof(half));
    }
    return count;
  } else if constexpr (std::is_same_v<T, double>) {
    const hn::ScalableTag<double> d;
    const hn::RebindToUnsigned<decltype(d)> bits;
    const hn::Repartition<uint32_t, decltype(d)> narrow;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
      const auto both = hn::BitCast(bits, hn::Shuffle2301(hn::LoadU(narrow, words + 2 * i)));
      hn::StoreU(hn::Mul(hn::ConvertTo(d, hn::ShiftRight<11>(both)), hn::Set(d, 0x1.0p-53)), d, out + i);
    }
    return i;
  } else {
    return 0;
  }
}
#endif

template <typename T>
bool Numbers(const RandomRun& run, T* out) {
  constexpr auto kShared = static_cast<int64_t>(NumbersPerCounter(sizeof(T)));
  alignas(64) BlockWords words;
  uint64_t counter = run.first / kShared;
  auto skipped = static_cast<int64_t>(run.first % kShared);  // of the counter's numbers
  for (int64_t done = 0; done < run.count;) {
    const int64_t n = std::min(run.count - done, kShared * kBlockCounters - skipped);
    CounterBlock(run.seed, run.stream, counter, (skipped + n + kShared - 1) / kShared, words);
    constexpr int64_t kWords = 4 / kShared;  // of a number
    const uint32_t* from = words.data() + skipped * kWords;
    for (int64_t i = ToWholeVectors(from, n, out + done); i < n; ++i) ToNumber(from + kWords * i, out[done + i]);
    counter += kBlockCounters;
    skipped = 0;
    done += n;
  }
  return true;
}

// Pairs of a block of words, whole: the compiler makes vectors of it.
template <typename T>
void ToPairs(const BlockWords& words, int64_t pairs, T* out) {
  for (int64_t i = 0; i < pairs; ++i) {
    NormalPair<T> pair;
    if constexpr (sizeof(T) == 4) {
      pair = NormalPairOf<T>(words[2 * i], words[2 * i + 1]);
    } else {
      const auto both = [&](int64_t at) { return uint64_t{words[at]} << 32 | words[at + 1]; };
      pair = NormalPairOf<T>(both(4 * i), both(4 * i + 2));
    }
    out[2 * i] = pair.first;
    out[2 * i + 1] = pair.second;
  }
}

// Numbers are made in Made, which is f32 for f16 and bf16, too.
template <typename T, typename Made>
bool NormalRun(const RandomRun& run, double mean, double deviation, T* out) {
  constexpr auto kShared = static_cast<int64_t>(NumbersPerCounter(sizeof(T)));
  alignas(64) BlockWords words;
  alignas(64) Made made[kShared * kBlockCounters];
  uint64_t counter = run.first / kShared;
  auto skipped = static_cast<int64_t>(run.first % kShared);
  for (int64_t done = 0; done < run.count;) {
    const int64_t n = std::min(run.count - done, kShared * kBlockCounters - skipped);
    const int64_t counters = (skipped + n + kShared - 1) / kShared;
    CounterBlock(run.seed, run.stream, counter, counters, words);
    ToPairs(words, counters * kShared / 2, made);
    const Made* from = made + skipped;
    for (int64_t i = 0; i < n; ++i) {
      out[done + i] = static_cast<T>(static_cast<Made>(mean) + static_cast<Made>(deviation) * from[i]);
    }
    counter += kBlockCounters;
    skipped = 0;
    done += n;
  }
  return true;
}

bool Normal(DType dtype, const RandomRun& run, double mean, double deviation, void* out) {
  switch (dtype) {
    case DType::kF16: return NormalRun<F16, float>(run, mean, deviation, static_cast<F16*>(out));
    case DType::kBF16: return NormalRun<BF16, float>(run, mean, deviation, static_cast<BF16*>(out));
    case DType::kF32: return NormalRun<float, float>(run, mean, deviation, static_cast<float*>(out));
    case DType::kF64: return NormalRun<double, double>(run, mean, deviation, static_cast<double*>(out));
    default: return false;
  }
}

bool Uniform(DType dtype, const RandomRun& run, void* out) {
  switch (dtype) {
    case DType::kU32: return Numbers(run, static_cast<uint32_t*>(out));
    case DType::kU64: return Numbers(run, static_cast<uint64_t*>(out));
    case DType::kF16: return Numbers(run, static_cast<F16*>(out));
    case DType::kBF16: return Numbers(run, static_cast<BF16*>(out));
    case DType::kF32: return Numbers(run, static_cast<float*>(out));
    case DType::kF64: return Numbers(run, static_cast<double*>(out));
    default: return false;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(Uniform);
HWY_EXPORT(Normal);

bool UniformNumbers(DType dtype, const RandomRun& run, void* out) {
  return HWY_DYNAMIC_DISPATCH(Uniform)(dtype, run, out);
}

bool NormalNumbers(DType dtype, const RandomRun& run, double mean, double deviation, void* out) {
  return HWY_DYNAMIC_DISPATCH(Normal)(dtype, run, mean, deviation, out);
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
