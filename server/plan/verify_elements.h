#pragma once

// Checks of what exchanges that together write one value do to each of its elements, in small worlds. A part of
// VerifyPlan.

#include <vector>

#include "absl/status/status.h"
#include "server/plan/movement/exchange.h"

namespace tessera {

// Counts, element by element, how often each position's shard is written by these exchanges, and that
// each reduction has every term once.
absl::Status CheckElements(const std::vector<const Exchange*>& exchanges);

// The same of exchanges by rounds, in their order: follows which terms each position's shard has after each of them.
// None twice, none that its giver has not, none where its giver changes it in the same round; all of them in the end.
absl::Status CheckRoundElements(const std::vector<const Exchange*>& exchanges);

}  // namespace tessera
