#pragma once

// Saving: by what a composite that has two ways to its results chooses one. Both ways give the same specs, so a client
// knows them whichever the coordinator takes.
//
//   svd(f64[4096,4096] @ mesh(4) [S(0)]): kTime gathers the matrix on each worker and calls LAPACK; kMemory goes by
//   panels of columns, of which each worker has its own (orthogonal_turns.cc). U is @ mesh(4) [S(0)] in both.

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schemas/ops/resolve.h"

namespace tessera {

enum class Saving : uint8_t { kTime = 0, kMemory = 1 };

// As ResolveOp of resolve.h, which saves time.
absl::StatusOr<OpResolution> ResolveOp(const OpCall& call, absl::Span<const OperandSpec> operands, Saving saving);

}  // namespace tessera
