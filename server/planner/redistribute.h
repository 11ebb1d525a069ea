#pragma once

// PlanRedistribute: the fewest bytes from any placements to any placements. Pure.
//
//   f32[8192,8192] @ mesh(x:4) [S(0)] -> [S(1)]: one all_to_all; each position receives 3/16 of the bytes.
//
// Without pending terms: one exchange, each destination takes exactly what it lacks. With pending
// terms: an exchange that reduces each cell at one of its destinations (one that holds a term, if
// there is one), then one that spreads it to the others; c + r - 2 transfers an element, or c + r - 1
// where no destination holds a term. Small sums of two terms take one exchange (small_sums.h). No temporary memory:
// the reduction lands in its final place. A destination of another dtype is converted as each worker takes, or reduces,
// its elements, or before its holders store them, if they become narrower (pushed_moves.h); what is spread after that,
// is spread in the new dtype.

#include <optional>

#include "absl/status/statusor.h"
#include "server/plan/plan.h"
#include "server/planner/builder.h"

namespace tessera {

// Meshes may differ (in shape or in workers), and dtypes. Shapes agree; InvalidArgument otherwise, as
// ValidateRedistribute says.
absl::StatusOr<Plan> PlanRedistribute(const OperandLayout& source, const TensorSpec& destination,
                                      const Topology& topology = {});

// Where a tensor with pending terms goes first that becomes narrower on its way to `destination`: where the terms are,
// each element at one worker, in the narrow dtype. Absent where no fewer bytes move so than by converting each element
// as it is reduced.
std::optional<TensorSpec> PlaceToNarrow(const TensorSpec& source, const TensorSpec& destination);

}  // namespace tessera
