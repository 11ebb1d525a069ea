#pragma once

// The text of a failed tensor: the first cause, word for word, and the ops on the way from it. A long way is told by
// its first two ops and its last two:
//
//   full: does not fit in memory: ...; on the way here: add f64[8], multiply f64[8], ..., exp f64[8], matmul f64[]

#include <string_view>

#include "absl/status/status.h"
#include "schemas/types/tensor_spec.h"

namespace tessera {

// `cause`, which an operand of `op` has, as the op's result has it. `result`: null where it is not known.
absl::Status OnTheWay(const absl::Status& cause, std::string_view op, const TensorSpec* result);

// A status whose message opens with the name of an op, `einsum: WHY`, as `called_as` says it: `bmm: WHY`. Others are as
// they were.
absl::Status SaidBy(std::string_view called_as, std::string_view op, const absl::Status& status);

}  // namespace tessera
