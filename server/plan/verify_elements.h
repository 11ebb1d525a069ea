#pragma once

// CheckRoundElements follows each element of a value through the exchanges by rounds that write it together, in small
// worlds. A part of VerifyPlan. (Other exchanges: movement/piece_check.h.)

#include <vector>

#include "absl/status/status.h"
#include "server/plan/movement/exchange.h"

namespace tessera {

// Follows, through exchanges by rounds in their order, which terms each position's shard has after each of them: none
// twice, none that its giver has not, none where its giver changes it in the same round; all of them in the end.
absl::Status CheckRoundElements(const std::vector<const Exchange*>& exchanges);

}  // namespace tessera
