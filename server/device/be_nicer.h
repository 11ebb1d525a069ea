#pragma once

// BeNicer: the calling thread lets others have the processor first. It needs no right.

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace tessera {

// Adds to the thread's niceness, which the kernel bounds at 19. 0 or less does nothing.
inline void BeNicer(int by) {
  if (by <= 0) return;
  const auto self = static_cast<id_t>(syscall(SYS_gettid));
  setpriority(PRIO_PROCESS, self, std::min(19, getpriority(PRIO_PROCESS, self) + by));
}

}  // namespace tessera
