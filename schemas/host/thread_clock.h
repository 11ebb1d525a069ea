#pragma once

// The time that the calling thread had a core: only differences of one thread's mean anything.

#include <ctime>

#include <cstdint>

namespace tessera {

inline int64_t ThreadCpuNs() {
  timespec used = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return used.tv_sec * int64_t{1'000'000'000} + used.tv_nsec;
}

}  // namespace tessera
