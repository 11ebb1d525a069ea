#pragma once

// An op on every placement against the same op on one worker, where nothing is sharded.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "server/planner/planner.h"

namespace tessera {

OpCall Call(OpId op);

// A tensor by shape and dtype, or a number; its placements vary.
struct Argument {
  std::vector<int64_t> shape;
  DType dtype = DType::kF64;
  std::optional<Scalar> number = std::nullopt;
};

// The result of its plan, which Interpret runs on small numbers.
absl::StatusOr<std::vector<double>> RunOp(const OpCall& call, const std::vector<PlanOperand>& operands, Plan* plan);
// The plan is as OutputSpec says, proven, its text gives it back, and Interpret gives the expected values.
absl::Status CheckCall(const OpCall& call, const std::vector<PlanOperand>& operands,
                       const std::vector<double>& expected);

// Every combination of placements of the arguments (each `stride`-th), in both orders of dims.
void CheckOp(const OpCall& call, const std::vector<Argument>& arguments, const std::vector<int64_t>& mesh_shape,
             size_t stride, size_t min_checked = 1);

}  // namespace tessera
