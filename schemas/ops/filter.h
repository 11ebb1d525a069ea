#pragma once

// Where a filter by a mask works: rows stay in the shards in which they are, and the mask comes to them.
//
//   x f64[9,4] @ mesh(2) [S(0)], mask bool[9] @ mesh(2) [R]:  the mask is wanted as [S(0)]
//   x f64[9,4] @ mesh(2) [R],    mask bool[9] @ mesh(2) [S(0)]:  each worker keeps of its own rows, [S(0)] of x
//   x f64[9,4] @ mesh(2) [S(1)]:  the whole mask is wanted on each worker
//
// How many rows each shard keeps depends on values. A caller that wants a filter counts them first (shard_counts), and
// says so in the op's `lengths`: the result has explicit sizes (schemas/types/placement.h).

#include <vector>

#include "schemas/types/tensor_spec.h"

namespace tessera {

struct FilterOperands {
  TensorSpec x;
  TensorSpec mask;
};
// `mask`: a vector with the extent of x's dim. Applied to its own result it changes nothing.
FilterOperands PlaceFilter(const TensorSpec& x, const TensorSpec& mask, int dim);

// How many elements of a dim each shard has, in the order of shards: the greatest `lengths`.
std::vector<int64_t> ShardLengths(const TensorSpec& spec, int dim);

}  // namespace tessera
