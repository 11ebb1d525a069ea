#pragma once

// PartsToNarrow: where a sum that becomes narrower is reduced and converted, so that the fewest bytes move. Pure. (A
// value without pending terms is converted by its holders: pushed_moves.h.)
//
//   f64[8,8] @ mesh(2) [P(sum)] -> f32[8,8] @ mesh(2; workers=2,3) [R]: where its terms are, by rows, which go on as
//   f32. To mesh(2; workers=1,3) [S(0)], in two parts: rows 0 to 3 at worker 1, which has a term of them; the others
//   where the terms are, for worker 3.
//
// An element takes c - 1 wide transfers and r - 1 narrow ones where one of the r workers that want it has one of its c
// terms, else r narrow ones: that is reached where a part's elements are alike in this. They are in a box that lies in
// one shard of the source and in one of the destination.

#include <cstdint>
#include <optional>
#include <vector>

#include "schemas/types/tensor_spec.h"

namespace tessera {

inline constexpr int64_t kMaxNarrowedParts = 64;  // docs/limits.md: max_narrowed_parts

struct NarrowedPart {
  TensorSpec source;  // on the workers that have it
  TensorSpec destination;
  // The place of its first element in their shards, by dim.
  Shape source_start;
  Shape destination_start;
  // Where it goes first: where the terms are, each element at one worker, in the narrow dtype. None where no fewer
  // bytes move so than by converting each element as it is reduced.
  std::optional<TensorSpec> place;
};

// The parts, at least one, that are brought each by itself: all of it where no fewer bytes move in parts. Fewer dims
// are cut where all would make more than kMaxNarrowedParts parts.
std::vector<NarrowedPart> PartsToNarrow(const TensorSpec& source, const TensorSpec& destination);

}  // namespace tessera
