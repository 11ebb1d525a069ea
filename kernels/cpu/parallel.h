#pragma once

// The worker's compute threads for one large piece of work (SetKernelThreads says how many; BLAS runs on the thread
// that calls it). One piece at a time has the helpers; a call that finds them busy runs on its own thread alone, so
// streams never wait for each other here.
//
//   RunParts(PartsFor(bytes), [&](int64_t part, int64_t parts) { ... });

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace tessera::cpu {

// Work on fewer bytes than this is not divided further; docs/limits.md: min_part_bytes.
inline constexpr int64_t kMinPartBytes = int64_t{1} << 20;

void SetThreads(int threads);
// Into how many parts work that touches so many bytes is cut: at most one per compute thread.
int64_t PartsFor(int64_t touched_bytes);
// Calls run(part, parts) for every part, on several threads, and returns when all have returned. An exception of one of
// them is thrown here, when none runs any more.
void RunParts(int64_t parts, absl::FunctionRef<void(int64_t, int64_t)> run);
// Calls run(block) for each of so many blocks, each thread the next one that nobody has taken, and returns as RunParts
// does. Blocks that are cut by extents alone give the same bits on any number of threads.
void RunBlocks(int64_t blocks, absl::FunctionRef<void(int64_t)> run);

}  // namespace tessera::cpu
