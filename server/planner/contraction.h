#pragma once

// The contraction planner: a matmul on the best grid.
//
// A grid (pm, pn, pk) uses p' = pm*pn*pk <= p workers. Grids that follow the mesh's own dims (each dim
// plays m, n, k, is idle, or carries a pending operand) and all factorisations over the first p'
// workers (p' = p alone on meshes of more than 16) are priced on the operands' resident placements,
// with the conversion of operands and of the result: received words per worker
// mk/(pm pk)(1 - 1/pn) + kn/(pk pn)(1 - 1/pm) + mn/(pm pn)(1 - 1/pk) when operands are spread evenly over
// their grid faces. Operands that fit as they lie, with the output, are not converted; else the
// cheapest grid that reaches the output spec wins, and ties go to the earlier in enumeration order.
// The choice follows from specs, hosts and reference constants, never from what
// was measured.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/plan/cost.h"
#include "server/planner/builder.h"

namespace tessera {

struct GridCandidate {
  TensorSpec left;  // the operands and the product as this grid computes them
  TensorSpec right;
  TensorSpec product;  // Partial(sum) over the k dims
  int64_t pm = 1;
  int64_t pn = 1;
  int64_t pk = 1;
  bool is_resident = true;  // nothing is converted
  // Busiest worker, conversions of operands and result included.
  int64_t received_bytes = 0;
  double flops = 0;  // of the busiest worker
  int64_t peak_bytes = 0;
  double seconds = 0;  // by reference constants: what is compared
};

// All grids for f[m,k] x f[k,n] -> output, in the order of choice.
absl::StatusOr<std::vector<GridCandidate>> EnumerateGrids(const TensorSpec& left, const TensorSpec& right,
                                                          const TensorSpec& output, const Topology& topology);

// Appends the steps to a builder whose values `left` and `right` are the operands; returns the value
// with spec `output`.
absl::StatusOr<int> AddContraction(PlanBuilder& builder, int left, int right, const TensorSpec& output,
                                   const Topology& topology);

}  // namespace tessera
