#pragma once

// The steps of a contraction whose grid is chosen: its operands come, are multiplied, and the product goes where it
// shall be.

#include <optional>

#include "absl/status/statusor.h"
#include "server/planner/builder.h"
#include "server/planner/inner_panels.h"
#include "server/planner/split.h"

namespace tessera {

// How it is worked off; neither: at once. A split is of the problem as it was; with panels, each part adds them up.
struct WorkingOff {
  std::optional<Split> split;
  std::optional<Panels> panels;
};

// Appends the steps to a builder that has the operands' values, and returns the value with the output's spec.
absl::StatusOr<int> AddContractionSteps(PlanBuilder& builder, const SplitProblem& problem, const WorkingOff& way);

}  // namespace tessera
