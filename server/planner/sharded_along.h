#pragma once

// Ops along a dim that is cut into shards, without bringing the dim together: each shard's own result is small, is
// gathered, and tells each shard the rest.
//
//   cumulative_sum of f32[8] @ mesh(2) [S(0)]:  the sum of each shard, f32[2] [S(0)], is gathered; each worker adds up
//   those before its own, and its scan begins there. Two reads and a write of the shard, and 4 bytes from each worker.
//   sort of it:  each worker sorts its shard, and merges of all the sorted shards the part that its shard of the result
//   is, reading just that where it lies (server/plan/merged_runs.h). Where workers have GPUs, or are on several
//   hosts and the vector is small, the sorted shards are gathered first. argmax of it:  each shard's largest and where
//   it is, gathered and compared.

#include <vector>

#include "absl/status/statusor.h"
#include "server/planner/builder.h"

namespace tessera {

//   shard_counts of bool[8] @ mesh(2) [S(0)]:  how many are true in each shard, i64[2] [S(0)], gathered.
//   a gather of rows that lie apart:  each worker reads those that its indices want where they are; where workers don't
//   map each other, or have GPUs, each gives what it has for all indices, and the sum is brought to who wants it.

// Whether a mesh dim shards one of the dims.
bool IsCutAlong(const TensorSpec& spec, absl::Span<const int64_t> dims);

// The value with `output`, whose placements are the input's.
absl::StatusOr<int> AddShardedScan(PlanBuilder& builder, const ScanOp& op, int input, const TensorSpec& output);
// Sorts a vector; the value with `output`, whose placements are the input's.
absl::StatusOr<int> AddShardedSort(PlanBuilder& builder, const SortOp& op, int input, const TensorSpec& output,
                                   const Topology& topology);
// Counts a mask; the value with `output`, whole on each worker.
absl::StatusOr<int> AddShardCounts(PlanBuilder& builder, int mask, const TensorSpec& output);
// `indices` as the caller has them, `wanted` as those of the output lie.
absl::StatusOr<int> AddGatherApart(PlanBuilder& builder, const GatherOp& op, int array, int indices,
                                   const TensorSpec& wanted, const TensorSpec& output, const Topology& topology);
// Filters each shard by a mask, with kernels that GPUs have: true places first in the order of a sort.
absl::StatusOr<int> AddFilterByOrder(PlanBuilder& builder, const FilterOp& op, absl::Span<const int> inputs,
                                     const TensorSpec& output);
// `reduced`: the result with the reduced dims kept, of extent 1, and Replicate where a mesh dim cut one of them. `op`
// has the whole's extents.
absl::StatusOr<int> AddShardedArgReduce(PlanBuilder& builder, const ArgReduceOp& op, int input,
                                        const TensorSpec& reduced);

}  // namespace tessera
