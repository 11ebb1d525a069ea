#pragma once

// Relays: holders send a tensor that several hosts want from few out once, a part to each, and its takers pass the
// parts on among themselves, where that is faster than sending it to all. Bytes received are the same; the busiest
// link's are fewer.
//
//   f32[1024] from one worker to [R] on four workers of four other hosts: a link that gives 4 KiB four times, or
//   once, while the others give 3 KiB each.
//
// Decided by the predicted seconds of both ways, with reference constants: hosts and specs alone choose.

#include <cstdint>
#include <vector>

#include "server/plan/cost.h"
#include "server/plan/plan.h"

namespace tessera {

inline constexpr int64_t kMaxRelayedPositions = 1024;  // docs/limits.md: max_relayed_positions

// A move by way of relays, whatever it takes. One step for each phase.
std::vector<ExchangeStep> Relayed(const ExchangeStep& move);

// Where it is faster; all moves of a phase that can be relayed, or none. Before what a host's workers share is settled;
// the plan's hosts are known.
void AddRelays(Plan& plan, const Topology& topology);

}  // namespace tessera
