#pragma once

// The naive meaning of functions of matrices, for Interpret: textbook algorithms in doubles.

#include <vector>

#include "absl/status/status.h"
#include "server/plan/interpret_local.h"

namespace tessera {

absl::Status InterpretLinalg(const LinalgOp& op, const std::vector<StridedDoubles>& inputs,
                             const StridedDoubles& output);

}  // namespace tessera
