#pragma once

// Checks of every plan of a redistribution, however it goes: directly, by relays, by rounds.

#include "absl/status/status.h"
#include "schemas/types/tensor_spec.h"
#include "server/plan/plan.h"

namespace tessera {

// It verifies, its text is its own, its result is the dense one (to `tolerance`), its programs do what it says, and it
// receives and sends the bound's bytes. Errors carry the plan's text.
absl::Status CheckPlan(const Plan& plan, const TensorSpec& source, const TensorSpec& destination, double tolerance = 0);

}  // namespace tessera
