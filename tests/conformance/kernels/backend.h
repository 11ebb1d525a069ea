#pragma once

// The ways in which the kernels under test may differ from those of the CPU: linked with //kernels:kernel
// (:cpu_backend), or with their stand-ins (image:on_image).

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "schemas/ops/local_op.h"

namespace tessera::testing {

// By how many units in the last place of f32 and f64 a value of the op, or a part of it, may differ from
// EvaluateScalarOp's, of operands of the dtype.
int BackendUlps(ScalarOp op, DType operand);
// As if so many threads filled the device: reductions are cut otherwise, and have the same bits.
void SetBackendItems(int64_t items);
// Whether scans of floats add one element after the other; else in the order of kernels/cuda/scan.cu.
bool BackendScansInOrder();
// Unimplemented where the backend has no kernel, and says so.
absl::Status BackendImplements(const LocalOp& op, absl::Span<const DType> inputs, DType output);

}  // namespace tessera::testing
