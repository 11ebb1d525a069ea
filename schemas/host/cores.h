#pragma once

// UsableCores: the processors that this process may run on (sched_setaffinity, cpusets, taskset), 1 at least.
//
// std::thread::hardware_concurrency() takes all of the host's where glibc is 2.35 or newer, and opens a file for it:
// a client that is out of descriptors would lose the last one for that moment.

#include <sched.h>

#include <algorithm>

namespace tessera {

inline int UsableCores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? std::max(1, CPU_COUNT(&cores)) : 1;
}

}  // namespace tessera
