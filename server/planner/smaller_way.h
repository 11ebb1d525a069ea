#pragma once

// The way of a call that needs less memory, which a plan with limits takes (PlanLimits): the parts of a contraction,
// and the panels of a decomposition whose matrix would be gathered (schemas/ops/saving.h).
//
//   svd(f64[1024,1024] @ mesh(4) [S(0)]): a worker needs 30 MiB with the gathered matrix, 19.4 MiB by panels, however
//   much less the limits say

#include "absl/status/statusor.h"
#include "schemas/ops/saving.h"
#include "server/plan/plan.h"
#include "server/planner/plan_limits.h"
#include "server/planner/planner.h"

namespace tessera {

inline Saving SavingOf(const PlanLimits& limits) {
  return limits.temporary_bytes.has_value() ? Saving::kMemory : Saving::kTime;
}

// Whether limits may make this plan, made without any, another one.
bool HasSmallerWay(const Plan& plan);

// As that of planner.h, which has no limits.
absl::StatusOr<PlanScalars> ScalarsOf(const Segment& segment, const PlanLimits& limits);

}  // namespace tessera
