#pragma once

// The contraction planner: a product of two tensors on the best grid (grids.h).
//
// An operand that lies elsewhere is read there by the kernels, piece by piece: no copy, no temporary. One whose
// pieces are thin, whose layout no kernel reads well, or that is pending is gathered into a temporary first. The
// product lands in its place, or is reduced into it where the inner letters are cut over workers. Where the
// temporaries are more than the limits allow, the same grid works the output off in parts (split.h); and where an
// operand is gathered from other hosts in parts, or in panels of an inner letter (inner_panels.h), so that one comes
// while the one before is multiplied.

#include <cstdint>

#include "absl/status/statusor.h"
#include "schemas/ops/contraction.h"
#include "server/planner/builder.h"
#include "server/planner/grids.h"
#include "server/planner/plan_limits.h"
#include "server/planner/split.h"

namespace tessera {

struct ContractionLimits {
  PieceLimits pieces;
  PlanLimits plan;
  OverlapLimits overlap;
};

// Appends the steps to a builder whose values `left` and `right` are the operands; returns the value
// with spec `output`. Operands of another dtype are converted. ResourceExhausted when no split keeps to the limits.
absl::StatusOr<int> AddContraction(PlanBuilder& builder, const Contraction& notation, int left, int right,
                                   const TensorSpec& output, const Topology& topology,
                                   const ContractionLimits& limits = {});

}  // namespace tessera
