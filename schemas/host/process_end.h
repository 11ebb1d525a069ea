#pragma once

// The end of another process, as /proc tells it.

#include <sys/types.h>

namespace tessera {

// Whether the process has nothing left to run: it has given up its memory map on its way out, or is gone. The kernel
// takes its memory back, which is seconds for arenas of gigabytes.
bool RunsNoMore(pid_t pid);

}  // namespace tessera
