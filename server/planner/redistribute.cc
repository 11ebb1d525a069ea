#include "server/planner/redistribute.h"

#include <utility>

#include "schemas/types/bounds.h"
#include "schemas/types/status_macros.h"

namespace tessera {

absl::StatusOr<Plan> PlanRedistribute(const OperandLayout& source, const TensorSpec& destination) {
  TESSERA_RETURN_IF_ERROR(ValidateRedistribute(source.spec, destination));
  PlanBuilder builder;
  const int input = builder.AddInput(source);
  TESSERA_ASSIGN_OR_RETURN(const int output, builder.AddRedistribute(input, destination));
  builder.AddOutput(output);
  return std::move(builder).Finish();
}

}  // namespace tessera
