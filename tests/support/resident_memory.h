#pragma once

// The host's memory that a test's process has, for tests of memory that is given back. A sanitizer keeps freed memory
// for a while: its size says nothing there.

#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace tessera {

#ifdef TESSERA_SANITIZED
inline constexpr bool kFreedMemoryIsGone = false;
#else
inline constexpr bool kFreedMemoryIsGone = true;
#endif

inline int64_t ResidentBytes() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace tessera
