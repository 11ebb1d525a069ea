#pragma once

// The naive meaning of functions of matrices, for Interpret: textbook algorithms in doubles, of real numbers.

#include <vector>

#include "absl/status/status.h"
#include "server/plan/reference/interpret_local.h"

namespace tessera {

absl::Status InterpretLinalg(const LinalgOp& op, const std::vector<StridedNumbers>& inputs,
                             const StridedNumbers& output);

}  // namespace tessera
