#pragma once

// SameSums: whether the parts of a split add up what the whole does, in the same order.
//
// An operand that is read piece by piece is cut by its own shards; where it is replicated its holders also share what
// they give, and may cut a part elsewhere than the whole. On one host terms are reduced in the order of their
// coordinates; with several the order follows from the reducer's host and from which workers the exchange is between:
// both may be others for a part.

#include <vector>

#include "server/planner/part_range.h"
#include "server/planner/split.h"

namespace tessera {

bool HaveSameSums(const SplitProblem& problem, const std::vector<PartRange>& parts);

}  // namespace tessera
