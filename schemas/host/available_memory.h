#pragma once

// Memory that this host can still give to a process. Asked before anything large is reserved, because the kernel would
// rather end a process than refuse.

#include <cstdint>
#include <string>

namespace tessera {

// Bytes: the kernel's MemAvailable, and no more than the control group leaves of its limit; its files in the page cache
// that it hasn't used lately can be had. The largest number where the kernel says neither. `root`: where /proc and /sys
// are, for tests.
int64_t HostAvailableBytes(const std::string& root = "");

}  // namespace tessera
