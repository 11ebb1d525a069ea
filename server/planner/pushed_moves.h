#pragma once

// Pushed moves: the holders of a tensor store it to the workers that want it, in place of being read by each.
//
// A holder converts what becomes narrower, so that the narrow bytes move and no temporary has them.
//
//   f32[4096] [S(0)] -> bf16 [R] on 4 workers: each receives 6 KiB.
//
// A giver of an all-gather, where several want a tensor that they hold an equal part of each, reads its part once and
// stores it to all of them within a host: r + 1 passes over memory in place of 2 r. That costs a wait more, and is only
// done with what doesn't fit the caches. Bytes received and sent are the same.
//
//   f32[16777216] [S(0)] -> [R] on 4 workers: each reads 16 MiB and stores them to 4 places, in place of reading 64 MiB
//   and storing 64 MiB.

#include <cstdint>

#include "server/plan/cost.h"
#include "server/plan/plan.h"

namespace tessera {

inline constexpr int64_t kMaxPushedPositions = 256;  // docs/limits.md: max_pushed_positions

// Pushes moves that gather, where the topology's `min_pushed_bytes` go to a worker. After all else of the exchanges is
// settled.
void PushMoves(Plan& plan, const Topology& topology);

}  // namespace tessera
