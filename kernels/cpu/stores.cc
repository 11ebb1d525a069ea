#include "kernels/cpu/stores.h"

#include <unistd.h>

#include <algorithm>

namespace tessera::cpu {
namespace {

constexpr int64_t kMinStreamingThresholdBytes = int64_t{4} << 20;
constexpr int64_t kMaxStreamingThresholdBytes = int64_t{16} << 20;
constexpr int64_t kPageBytes = 4096;
// Pages that are read and written side by side: memory serves several open pages faster than one.
constexpr int64_t kPagesTogether = 4;

// Streams `kPagesTogether` pages, a pair of lines of each in turn.
void StreamPages(std::byte* to, const std::byte* from) {
  constexpr int64_t kStep = 2 * kLineBytes;
  for (int64_t i = 0; i < kPageBytes; i += kStep) {
    for (int64_t page = 0; page < kPagesTogether * kPageBytes; page += kPageBytes) {
      StreamLines(to + page + i, from + page + i, 2);
    }
  }
}

}  // namespace

int64_t StreamingThresholdBytes() {
  static const int64_t threshold = [] {
    const int64_t cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    // Half of it: other workers share it.
    return cache > 0 ? std::clamp(cache / 2, kMinStreamingThresholdBytes, kMaxStreamingThresholdBytes)
                     : kMaxStreamingThresholdBytes;
  }();
  return threshold;
}

void CopyShortRow(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes >= 16) {
    for (int64_t i = 0; i + 16 <= bytes; i += 16) std::memcpy(to + i, from + i, 16);
    std::memcpy(to + bytes - 16, from + bytes - 16, 16);
  } else if (bytes >= 8) {
    std::memcpy(to, from, 8);
    std::memcpy(to + bytes - 8, from + bytes - 8, 8);
  } else if (bytes >= 4) {
    std::memcpy(to, from, 4);
    std::memcpy(to + bytes - 4, from + bytes - 4, 4);
  } else {
    for (int64_t i = 0; i < bytes; ++i) to[i] = from[i];
  }
}

void WriteRow(std::byte* to, const std::byte* from, int64_t bytes, Stores stores) {
  if (stores == Stores::kCached) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  const int64_t head = std::min(bytes, BytesToLine(to));
  CopyShortRow(to, from, head);
  int64_t i = head;
  for (; i + kPagesTogether * kPageBytes <= bytes; i += kPagesTogether * kPageBytes) StreamPages(to + i, from + i);
  const int64_t lines = (bytes - i) / kLineBytes;
  StreamLines(to + i, from + i, lines);
  i += lines * kLineBytes;
  CopyShortRow(to + i, from + i, bytes - i);
}

}  // namespace tessera::cpu
