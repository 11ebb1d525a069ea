#pragma once

// A call of an op on the client's side: its operands, and how the call follows from their specs.

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/handle_state.h"
#include "schemas/ops/op.h"

namespace tessera {

// A tensor, or a scalar when `tensor` is null.
struct CallOperand {
  const HandlePtr* tensor = nullptr;
  Scalar scalar;
  bool last_use = false;
};

// From the operands' specs (null: a number) to the call.
using CallCompletion = std::function<absl::StatusOr<OpCall>(absl::Span<const SpecPtr> operands)>;

// The same where the call follows from values, too: how many elements there are, of each shard or in all. Without
// counts it says what the greatest would give.
using CountedCompletion =
    std::function<absl::StatusOr<OpCall>(absl::Span<const SpecPtr> operands, absl::Span<const int64_t> counts)>;
struct CountedCall {
  CountedCompletion complete;
  std::vector<HandlePtr> operands;
  int dim = 0;  // of the first operand and of the result, whose extent the counts decide
};

}  // namespace tessera
