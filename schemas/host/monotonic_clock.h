#pragma once

// The host's monotonic clock: the same for all its processes, and for no other host's.

#include <chrono>
#include <cstdint>

namespace tessera {

inline int64_t MonotonicNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace tessera
