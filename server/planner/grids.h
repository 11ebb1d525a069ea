#pragma once

// Grids: the ways in which a mesh can share out a contraction, with their prices.
//
// A grid (pb, pm, pn, pk) uses p' = pb*pm*pn*pk <= p workers for the batch, left, right and inner letters. Grids
// that follow the mesh's own dims (each dim plays a letter, is idle, or carries a pending operand) and all
// factorisations over the first p' workers (p' = p alone on meshes of more than 128 workers, of several hosts 16), with
// the workers in every order of the grid's dims (on more than 32 in row-major order alone), are priced on the operands'
// resident placements, with the conversion of operands and of the result: received words per worker
// mk/(pm pk)(1 - 1/pn) + kn/(pk pn)(1 - 1/pm) + mn/(pm pn)(1 - 1/pk) when operands are spread evenly over
// their grid faces. Operands that fit as they lie, with the output, are not converted; else the
// cheapest grid that reaches the output spec wins, and ties go to the earlier in enumeration order. Bytes that the
// busiest of several hosts receives are priced as well: those that its workers want of others cross once
// (operand_reading.h). The choice follows from specs, hosts and reference constants, never from what was measured.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "schemas/ops/contraction.h"
#include "schemas/types/tensor_spec.h"
#include "server/plan/cost.h"

namespace tessera {

// An operand that the grid wants elsewhere is read where it lies, piece by piece, unless its pieces are thin:
// then it is gathered into a temporary first. Mean extent of a cut dim's pieces, by the role of its letter, from
// which on a piece is not thin; a kernel does well above these.
struct PieceLimits {
  int64_t inner_extent = 128;
  int64_t outer_extent = 32;  // left and right letters
  int64_t pieces = 256;       // of one operand at one position
};

struct GridCandidate {
  TensorSpec left;  // the operands and the product as this grid computes them
  TensorSpec right;
  TensorSpec product;  // Partial(sum) over the inner dims
  int64_t pb = 1;
  int64_t pm = 1;
  int64_t pn = 1;
  int64_t pk = 1;
  bool is_resident = true;  // nothing is converted
  // Busiest worker, conversions of operands and result included.
  int64_t received_bytes = 0;
  // With several hosts: bytes that the busiest one receives from others, once for all its workers. Else 0.
  int64_t host_received_bytes = 0;
  double flops = 0;  // of the busiest worker
  int64_t peak_bytes = 0;
  double seconds = 0;  // by reference constants: what is compared
};

// The `count` best grids for the contraction of `left` and `right` to `output`, or all, in the order of choice.
absl::StatusOr<std::vector<GridCandidate>> EnumerateGrids(const Contraction& notation, const TensorSpec& left,
                                                          const TensorSpec& right, const TensorSpec& output,
                                                          const Topology& topology, const PieceLimits& limits = {},
                                                          size_t count = std::numeric_limits<size_t>::max());

// Whether an operand with these letters is read where it lies when a grid wants it as `on_grid`: nothing is
// pending, and its pieces are not thin.
bool IsReadInPlace(const Contraction& notation, std::string_view letters, const TensorSpec& own,
                   const TensorSpec& on_grid, const PieceLimits& limits);

}  // namespace tessera
