#pragma once

// Children that run no code any more, and whose memory the kernel is taking back: seconds, for arenas of gigabytes.
// Nobody waits for that but who needs the memory.

#include <chrono>

#include <sys/types.h>

namespace tessera {

// Takes the status of this child when the kernel is done with it, on a thread that lasts as long as any such child.
void ReapInBackground(pid_t pid);

// Whether all of them are gone before the deadline.
bool AwaitReaped(std::chrono::steady_clock::time_point deadline);

}  // namespace tessera
