#pragma once

// Which ops a worker with a GPU has a kernel for. The others are computed by the CPU's kernels on the worker's host,
// where their operands are copied to and their results from: right, and slow.
//
//   HasGpuKernel(*ParseLocalOp("linalg(inv)"), DType::kF32)
//     -> Unimplemented "linalg(inv): no CUDA kernel"
//   PlaceOnGpu(**FindOpByName("sin"))  -> "kernel, complex numbers on the host"
//
// The launches (kernels/cuda/launch.h) agree with it.

#include <string_view>

#include "absl/status/status.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/expression.h"
#include "schemas/ops/local_op.h"
#include "schemas/types/dtype.h"

namespace tessera {

// Unimplemented, by the op's name and the dtype, where the host computes it. `output` is the result's dtype.
absl::Status HasGpuKernel(const LocalOp& op, DType output);
absl::Status HasGpuKernel(const Expression& expression);

// "kernel", "host", "kernel, complex numbers on the host", "kernel, floats by cuBLASLt where it is"; a composite says
// "as its rows", which an explain of the call shows.
std::string_view PlaceOnGpu(const OpRow& row);

}  // namespace tessera
