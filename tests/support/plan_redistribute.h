#pragma once

// PlanRedistribute: the plan of one tensor's redistribution as the planner of ops makes it, whatever its strides are
// and wherever its bytes would be fewer in another dtype.

#include "absl/status/statusor.h"
#include "schemas/types/bounds.h"
#include "schemas/types/status_macros.h"
#include "server/plan/plan.h"
#include "server/planner/builder.h"

namespace tessera {

// Meshes may differ (in shape or in workers), and dtypes. InvalidArgument as ValidateRedistribute says.
inline absl::StatusOr<Plan> PlanRedistribute(const OperandLayout& source, const TensorSpec& destination,
                                             const Topology& topology = {}) {
  TESSERA_RETURN_IF_ERROR(ValidateRedistribute(WithDType(source.spec, destination.dtype), destination));
  PlanBuilder builder;
  const ValueMove move = {builder.AddInput(source), destination};
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int> outputs, builder.AddRedistributes({move}));
  builder.AddOutput(outputs[0]);
  return std::move(builder).Finish(topology);
}

}  // namespace tessera
