#pragma once

// Split: a contraction whose temporaries don't fit is worked off in parts of the output, one after another in the
// same memory. A part is a range of one outer letter (left, right or batch).
//
//   f64[1024,8192] @ mesh(2) [S(1)] times f64[8192,1024] @ mesh(2) [S(0)] to [S(0)], on grid (1,1,2): the product is
//   8 MiB of pending sums on each worker; in 4 parts over n it is 2 MiB.
//
// Law: a split changes no sum. The grid is chosen before, for the whole; each part adds up the same pieces of the
// inner letters in the same order, and its reducers the same terms. What is left is how BLAS rounds at the edges of its
// tiles: long parts are multiples of kPartGrain, which are whole tiles of its kernels along the rows; along the columns
// some kernels still round a product of fewer columns differently in the last place.

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "schemas/ops/contraction.h"
#include "server/planner/grids.h"
#include "server/planner/operand_reading.h"

namespace tessera {

inline constexpr int64_t kPartGrain = 48;
inline constexpr int64_t kMaxContractionParts = 256;            // docs/limits.md: max_contraction_parts
inline constexpr int64_t kMaxContractionWorkerParts = 1 << 16;  // docs/limits.md: max_contraction_worker_parts

struct Split {
  char letter = 0;
  int64_t extent = 0;       // of the letter
  int64_t part_extent = 0;  // of every part but the last, which may be shorter
  int64_t temporary_bytes = 0;
  int64_t repeated_bytes = 0;  // received by all workers together, beyond what the whole receives

  int64_t parts() const { return (extent + part_extent - 1) / part_extent; }
};

struct SplitProblem {
  const Contraction& notation;
  std::array<const OperandReading*, 2> operands;
  const TensorSpec& product;  // as the grid computes it
  const TensorSpec& output;
  const Topology& topology;
};

// Bytes of the temporaries on each worker when nothing is split.
int64_t TemporaryBytes(const SplitProblem& problem);

// The split whose temporaries fit into `limit_bytes`: one that receives nothing twice if there is one, then the one
// with the fewest parts (2, 4, 8, ...). A letter that a mesh dim cuts can't be split. ResourceExhausted when none
// fits, with what would.
absl::StatusOr<Split> ChooseSplit(const SplitProblem& problem, int64_t limit_bytes);

}  // namespace tessera
