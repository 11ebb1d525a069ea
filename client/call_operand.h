#pragma once

// A call of an op on the client's side: its operands, and how the call follows from their specs.

#include <functional>

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

}  // namespace tessera
