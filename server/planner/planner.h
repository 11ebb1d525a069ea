#pragma once

// PlanOp: the plan of any op of the catalog. Pure: no clock, no rank, no I/O; the same call gives the
// same plan everywhere.
//
//   PlanOp(matmul, {x [S(0)], x.T [S(1)]}, topology): all_gather of the second operand, a local matmul;
//   grid (4,1,1), its received words against the lower bound, and the grids that lost.

#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schemas/ops/op.h"
#include "schemas/ops/resolve.h"
#include "server/plan/cost.h"
#include "server/plan/plan.h"
#include "server/planner/builder.h"
#include "server/planner/plan_limits.h"

namespace tessera {

// A tensor operand with its layout in memory, or a scalar.
using PlanOperand = std::variant<OperandLayout, Scalar>;

struct OpPlan {
  Plan plan;
  // Where the values of the plan's scalar parameters come from: ResolveOp's scalars then its
  // epilogue's. ScalarsOf recomputes them for another call with the same key.
  std::vector<Scalar> scalars;
};

// Errors are ResolveOp's; ResourceExhausted when no plan keeps to the limits. The outputs have OutputSpec's specs.
absl::StatusOr<OpPlan> PlanOp(const OpCall& call, absl::Span<const PlanOperand> operands, const Topology& topology,
                              const PlanLimits& limits = {});

// The scalars of an instance, for a call whose plan is already known (same op, attributes, specs).
absl::StatusOr<std::vector<Scalar>> ScalarsOf(const OpCall& call, absl::Span<const PlanOperand> operands);

}  // namespace tessera
