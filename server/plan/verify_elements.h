#pragma once

// What exchanges by rounds do to each element of the value that they write together, in small worlds. A part of
// VerifyPlan. (Other exchanges: movement/piece_check.h.)

#include <vector>

#include "absl/status/status.h"
#include "server/plan/movement/exchange.h"

namespace tessera {

// Of exchanges by rounds, in their order: follows which terms each position's shard has after each of them.
// None twice, none that its giver has not, none where its giver changes it in the same round; all of them in the end.
absl::Status CheckRoundElements(const std::vector<const Exchange*>& exchanges);

}  // namespace tessera
