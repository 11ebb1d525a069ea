#pragma once

// OperandAt: a place in a value's shard as an operand, for the lowering of all kinds of steps.

#include "absl/types/span.h"
#include "server/plan/lower/program.h"
#include "server/plan/plan.h"

namespace tessera {

// The elements from `start` (per dim; empty: the shard's first) on, in `worker`'s arena.
inline Operand OperandAt(const PlanValue& value, WorkerIndex worker, absl::Span<const int64_t> start = {}) {
  Operand operand = {worker, value.buffer, value.offset, value.strides};
  for (size_t d = 0; d < start.size(); ++d) operand.offset_bytes += start[d] * value.strides[d];
  operand.offset_bytes *= SizeBytes(value.spec.dtype);
  return operand;
}

}  // namespace tessera
