#pragma once

// PlanOp: the plan of any op of the catalog; PlanSegment: of several on each other's results. Pure: no clock, no rank,
// no I/O; the same call gives the same plan everywhere.
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
#include "server/planner/scalar_recipes.h"
#include "server/planner/segment.h"

namespace tessera {

// A tensor operand with its layout in memory, or a scalar.
using PlanOperand = std::variant<OperandLayout, Scalar>;

// The values of a plan's scalar parameters: ResolveOp's scalars, then its epilogue's, op after op. The recipes give
// them to another call with the same key.
struct PlanScalars {
  std::vector<Scalar> values;
  ScalarRecipes recipes;
};

struct OpPlan {
  Plan plan;
  PlanScalars scalars;
  std::vector<TensorSpec> call_results;  // of a segment: what each call gives first, for messages
};

// Errors are ResolveOp's; ResourceExhausted when no plan keeps to the limits. The outputs have OutputSpec's specs.
absl::StatusOr<OpPlan> PlanOp(const OpCall& call, absl::Span<const PlanOperand> operands, const Topology& topology,
                              const PlanLimits& limits = {});
// The plan of several calls, whose outputs are what the segment keeps: with the same bits as if each call were planned
// by itself. Errors are those of the call that is refused.
absl::StatusOr<OpPlan> PlanSegment(const Segment& segment, const Topology& topology, const PlanLimits& limits = {});

// The call as a segment.
Segment SegmentOf(const OpCall& call, absl::Span<const PlanOperand> operands);
// The scalars of an instance, for a segment whose plan is already known (same ops, attributes, specs).
absl::StatusOr<PlanScalars> ScalarsOf(const Segment& segment);

}  // namespace tessera
