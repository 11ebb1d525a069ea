#pragma once

// Pushed moves: within a host, what several want of a tensor that they hold a part of each (an all-gather) is read once
// by who holds it, and stored to all of them, in place of being read by each: r + 1 passes over memory in place of 2 r.
// That costs a wait more, and is only done with what doesn't fit the caches.
//
//   f32[16777216] [S(0)] -> [R] on 4 workers: each reads 16 MiB and stores them to 4 places, in place of reading 64 MiB
//   and storing 64 MiB. Bytes received and sent are the same.

#include <cstdint>

#include "server/plan/cost.h"
#include "server/plan/plan.h"

namespace tessera {

inline constexpr int64_t kMaxPushedPositions = 256;  // docs/limits.md: max_pushed_positions

// Where the topology's `min_pushed_bytes` are moved to a worker. The plan's hosts are known.
void PushMoves(Plan& plan, const Topology& topology);

}  // namespace tessera
