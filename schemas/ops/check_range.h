#pragma once

// check_range: numbers that an op takes are in a range, as labels are from 0 to the number of classes. Values are on
// the workers and nobody waits for them, so who has an element finds it, as gather finds an index outside: the op
// fails, and what is computed of it.
//
//   check_range(labels, 0, 7, mode="label")      // "label 8 is not from 0 to 7"

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "schemas/ops/local_op.h"
#include "schemas/ops/scalar.h"

namespace tessera {

// InvalidArgument with this payload: Python raises NumberOutOfRangeError by it.
inline constexpr char kNumberErrorPayload[] = "tessera/number";

// The dtypes of which there is a kernel.
inline bool IsChecked(DType dtype) { return dtype == DType::kI64 || dtype == DType::kF32 || dtype == DType::kF64; }
// Whether the number, of a dtype that is checked, may stand there.
bool IsInRange(const Scalar& number, absl::Span<const Scalar> scalars);
// The error of one that may not.
absl::Status NumberOutOfRange(const CheckRangeOp& op, const Scalar& number, absl::Span<const Scalar> scalars);

}  // namespace tessera
