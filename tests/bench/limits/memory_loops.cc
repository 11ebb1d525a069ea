#include "tests/bench/limits/memory_loops.h"

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace tessera::bench {
namespace {

constexpr size_t kLine = 64;

bool HasAvx512() {
  static const bool has = __builtin_cpu_supports("avx512f");
  return has;
}

// Whole cache lines; `to` is aligned to one.
__attribute__((target("avx512f"))) void StreamLinesAvx512(std::byte* to, const std::byte* from, size_t lines) {
  for (size_t i = 0; i < lines; ++i) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i * kLine), _mm512_loadu_si512(from + i * kLine));
  }
}

void StreamLinesSse2(std::byte* to, const std::byte* from, size_t lines) {
  for (size_t i = 0; i < lines * kLine; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
}

__attribute__((target("avx512f"))) void SumAvx512(std::span<const float* const> terms, std::span<float* const> outputs,
                                                  size_t count, Stores stores) {
  for (size_t i = 0; i < count; i += 16) {
    __m512 sum = _mm512_load_ps(terms[0] + i);
    for (size_t t = 1; t < terms.size(); ++t) sum = _mm512_add_ps(sum, _mm512_load_ps(terms[t] + i));
    for (float* output : outputs) {
      if (stores == Stores::kStreaming) {
        _mm512_stream_ps(output + i, sum);
      } else {
        _mm512_store_ps(output + i, sum);
      }
    }
  }
}

void SumSse2(std::span<const float* const> terms, std::span<float* const> outputs, size_t count, Stores stores) {
  for (size_t i = 0; i < count; i += 4) {
    __m128 sum = _mm_load_ps(terms[0] + i);
    for (size_t t = 1; t < terms.size(); ++t) sum = _mm_add_ps(sum, _mm_load_ps(terms[t] + i));
    for (float* output : outputs) {
      if (stores == Stores::kStreaming) {
        _mm_stream_ps(output + i, sum);
      } else {
        _mm_store_ps(output + i, sum);
      }
    }
  }
}

}  // namespace

const char* ToText(Stores stores) { return stores == Stores::kStreaming ? "streaming" : "ordinary"; }

void CopyBytes(std::byte* to, const std::byte* from, size_t bytes, Stores stores) {
  if (stores == Stores::kOrdinary || bytes < 2 * kLine) {
    std::memcpy(to, from, bytes);
    return;
  }
  const size_t head = -reinterpret_cast<uintptr_t>(to) & (kLine - 1);
  const size_t lines = (bytes - head) / kLine;
  std::memcpy(to, from, head);
  (HasAvx512() ? StreamLinesAvx512 : StreamLinesSse2)(to + head, from + head, lines);
  const size_t done = head + lines * kLine;
  std::memcpy(to + done, from + done, bytes - done);
}

void SumTerms(std::span<const float* const> terms, std::span<float* const> outputs, size_t count, Stores stores) {
  (HasAvx512() ? SumAvx512 : SumSse2)(terms, outputs, count, stores);
}

void FinishStores() { _mm_sfence(); }

}  // namespace tessera::bench
