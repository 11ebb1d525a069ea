#pragma once

// Split: a contraction is worked off in parts of the output, one after another in the same memory: where its
// temporaries don't fit, and where it saves time that a part of an operand comes from other hosts while the part before
// is multiplied. A part is a range of one outer letter (left, right or batch) that lies in one shard of the product on
// the grid, and in one of the output: a letter that the mesh cuts is worked off shard by shard, on the workers that
// have it (part_range.h). Parts on different workers run side by side.
//
//   f64[1024,8192] @ mesh(2) [S(1)] times f64[8192,1024] @ mesh(2) [S(0)] to [S(0)], on grid (1,1,2): the product is
//   8 MiB of pending sums on each worker; in 4 parts over n it is 2 MiB.
//
//   product f64[8,6] @ mesh(2,2) [S(0), P(sum)] to output [S(0), S(1)]: 2 parts over n, columns 0 to 2 and 3 to 5, each
//   multiplied by all and reduced by the workers that get it; or 4 over m, two rows each, those of 0 to 3 on workers 0
//   and 1, those of 4 to 7 on workers 2 and 3.
//
// Law: a split changes no sum. The grid is chosen before, for the whole; each part adds up the same pieces of the
// inner letters in the same order, and its reducers the same terms. One difference is left for floats: how a kernel
// adds up within a piece, which may differ in the last places:
//
//   at the edges of BLAS's tiles: long parts are multiples of kPartGrain, which are whole tiles of its kernels along
//   the rows; along the columns some kernels still round a product of fewer columns differently. (Where the output cuts
//   a letter that the grid doesn't, parts start where its shards do.)
//
//   where a part is so much smaller than the whole that another kernel multiplies it. Rows and columns have a say in
//   that (IsThinProduct, kernels/cpu/thin_product.h, and BLAS's own kernels for up to 10^6 multiplications): f32 64x128
//   by 128x2048 is a thin product, a part of 48 columns is BLAS's.

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "schemas/ops/contraction.h"
#include "server/planner/grids.h"
#include "server/planner/operand_reading.h"
#include "server/planner/part_range.h"

namespace tessera {

inline constexpr int64_t kPartGrain = 48;
inline constexpr int64_t kMaxContractionParts = 256;            // docs/limits.md: max_contraction_parts
inline constexpr int64_t kMaxContractionWorkerParts = 1 << 16;  // docs/limits.md: max_contraction_worker_parts
inline constexpr int64_t kMaxOverlappedPositions = 256;         // docs/limits.md: max_overlapped_positions

// Parts, or panels of an inner letter (inner_panels.h), that come while others are multiplied.
struct OverlapLimits {
  // Least extent of the letter in one part: products of fewer rows or columns are slower.
  // docs/limits.md: min_overlapped_extent
  int64_t least_extent = 2 * kPartGrain;
  int64_t least_parts = 2;
  int64_t most_parts = 16;   // docs/limits.md: max_overlapped_parts
  int64_t most_panels = 8;   // docs/limits.md: max_overlapped_panels
  double worthwhile = 0.9;   // of the time of the whole, at most
  double worth_more = 0.95;  // of the time of fewer parts, at most
};

struct Split {
  char letter = 0;
  std::vector<PartRange> ranges;  // in increasing order; the first is the largest
  int64_t sub_meshes = 1;         // that the letter cuts the grid into
  int64_t temporary_bytes = 0;
  int64_t repeated_bytes = 0;  // received by all workers together, beyond what the whole receives
  bool is_overlapped = false;  // what is gathered for a part is under way while the part before is multiplied

  int64_t parts() const { return static_cast<int64_t>(ranges.size()); }
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
// When it is worked off by these ranges, of any letter, one after the other; overlapped: operands that are gathered for
// the next one come meanwhile.
int64_t TemporaryBytesOf(const SplitProblem& problem, const std::vector<PartRange>& ranges, bool is_overlapped);

// The split whose temporaries fit into `limit_bytes`: one that receives nothing twice if there is one, then the one
// with the fewest parts (2, 4, 8, ... of a letter that nothing cuts), then one over a letter that nothing cuts.
// ResourceExhausted when none fits or all would change a sum, with what would fit.
absl::StatusOr<Split> ChooseSplit(const SplitProblem& problem, int64_t limit_bytes);

// Splits that overlap: parts of a letter that nothing cuts, their number doubled from one to the next, which receive
// nothing twice. None where nothing that has the letter is gathered from other hosts.
std::vector<Split> OverlappedSplits(const SplitProblem& problem, const OverlapLimits& limits);

}  // namespace tessera
