#pragma once

// VerifyPlan's checks of a local step: operands on the output's mesh, numbers of operands and scalars
// that the op takes, dtypes, and on every position extents that fit each other.

#include "absl/status/status.h"
#include "server/plan/plan.h"

namespace tessera {

// The step's values exist. Internal with the numbers otherwise.
absl::Status VerifyLocalStep(const Plan& plan, const LocalStep& step);

}  // namespace tessera
