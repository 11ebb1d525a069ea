#pragma once

// Rounds: sums and gathers between several hosts by recursive halving and doubling, where that is faster than a message
// from each host to each other one (server/plan/movement/exchange_rounds.h says who takes what).
//
//   f32[64] [P(sum)] -> [R] on 64 hosts: 63 + 63 messages to each worker, or three rounds of 3 messages and three of 3,
//   of which each waits for the one before. Bytes received are the same; partial sums lie in the result, where they are
//   reduced further.
//
// The number of hosts is cut into the factors that are fastest; no number takes more bytes than the direct way, and a
// prime number goes directly. Decided by the predicted seconds of both ways, with reference constants: hosts and specs
// alone choose. Not in plans that multiply: the parts of a contraction add up what the whole does (same_sums.h).

#include <cstdint>
#include <vector>

#include "server/plan/cost.h"
#include "server/plan/plan.h"

namespace tessera {

inline constexpr int64_t kMaxPositionsByRounds = 1024;  // docs/limits.md: max_positions_by_rounds

// A move, or a reduction that is spread later, by rounds of these factors; none where it can't. One step for each
// phase.
std::vector<ExchangeStep> ByRounds(const ExchangeStep& step, const std::vector<int>& factors);

// Where it is faster. Before relays, and what a host's workers share, are settled; the plan's hosts are known.
void AddRounds(Plan& plan, const Topology& topology);

}  // namespace tessera
