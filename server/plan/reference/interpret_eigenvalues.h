#pragma once

// The naive meaning of eig and eigvals, for Interpret: of real matrices, row by row, the complex numbers that the op
// gives, by polynomials. For matrices of a few rows; larger ones have other roots by rounding.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "schemas/ops/linalg_op.h"
#include "server/plan/reference/number.h"

namespace tessera {

// Eigenvalues by their real parts, of equal ones by the imaginary ones; then, for eig, the vectors as columns: of norm
// 1, their largest element real.
absl::StatusOr<std::vector<Number>> InterpretEigenvalues(LinalgKind kind, int64_t n,
                                                         const std::vector<double>& elements);

}  // namespace tessera
