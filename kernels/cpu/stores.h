#pragma once

// How bytes are written: through the cache, or by streaming (non-temporal) stores that leave it alone.
// Streaming wins where what is touched does not fit the cache, and loses where it does.
//
//   const Stores stores = StoresFor(bytes_read + bytes_written);
//   for (row of rows) WriteRow(to, from, bytes, stores);
//   EndStores(stores);   // before anybody is told that the bytes are there

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tessera::cpu {

inline constexpr int64_t kLineBytes = 64;

enum class Stores : uint8_t { kCached, kStreaming };

// The size from which on streaming stores are used, docs/limits.md: streaming_threshold_bytes. The size of
// half the last-level cache, between 4 and 16 MiB: workers share it, and a virtual machine reports the cache
// of the whole host.
int64_t StreamingThresholdBytes();

inline Stores StoresFor(int64_t touched_bytes) {
  return touched_bytes > StreamingThresholdBytes() ? Stores::kStreaming : Stores::kCached;
}

// Bytes from `address` to the next start of a cache line.
inline int64_t BytesToLine(const void* address) {
  return static_cast<int64_t>(-reinterpret_cast<uintptr_t>(address) & (kLineBytes - 1));
}

// Copies a few cache lines to the start of a line, in line: a call and a choice of instructions, as WriteRow has them,
// cost more than wider stores gain.
inline void StreamLines(std::byte* to, const std::byte* from, int64_t lines) {
#if defined(__SSE2__)
  for (int64_t i = 0; i < lines * kLineBytes; i += kLineBytes) {
    for (int64_t part = 0; part < kLineBytes; part += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i + part),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i + part)));
    }
  }
#else
  std::memcpy(to, from, static_cast<size_t>(lines * kLineBytes));
#endif
}

// A row of up to some cache lines, without a call of memcpy.
void CopyShortRow(std::byte* to, const std::byte* from, int64_t bytes);

// A row of any length. Lines that the row fills in part are written through the cache.
void WriteRow(std::byte* to, const std::byte* from, int64_t bytes, Stores stores);

// Orders streaming stores before what follows.
inline void EndStores(Stores stores) {
#if defined(__SSE2__)
  if (stores == Stores::kStreaming) _mm_sfence();
#endif
}

}  // namespace tessera::cpu
