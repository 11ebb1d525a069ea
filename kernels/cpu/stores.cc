#include "kernels/cpu/stores.h"

#include <unistd.h>

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/stores.cc"
// The order is Highway's.
// clang-format off
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// From the start of a line on, as far as lines go; returns the bytes that it has written. In the order of memory: pages
// side by side gain a fifth where other machines keep the memory busy, and lose half where they don't. A whole line
// with one store where there is one so wide: two streams that take turns then fill no line in parts.
int64_t StreamWholeLines(std::byte* to, const std::byte* from, int64_t bytes) {
  const hn::CappedTag<uint8_t, kLineBytes> d;
  constexpr int64_t kStep = static_cast<int64_t>(hn::MaxLanes(d));
  const int64_t whole = bytes / kLineBytes * kLineBytes;
  for (int64_t i = 0; i < whole; i += kStep) {
    hn::Stream(hn::LoadU(d, reinterpret_cast<const uint8_t*>(from + i)), d, reinterpret_cast<uint8_t*>(to + i));
  }
  return whole;
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::cpu {

HWY_EXPORT(StreamWholeLines);

namespace {

constexpr int64_t kMinStreamingThresholdBytes = int64_t{4} << 20;
constexpr int64_t kMaxStreamingThresholdBytes = int64_t{16} << 20;

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
  const int64_t done = head + HWY_DYNAMIC_DISPATCH(StreamWholeLines)(to + head, from + head, bytes - head);
  CopyShortRow(to + done, from + done, bytes - done);
}

}  // namespace tessera::cpu
#endif  // HWY_ONCE
