#pragma once

// Which workers hold the same elements: under two specs (HoldSameShards), or under one (CountReplicas); or none.
//
//   f32[8,8] @ mesh(4) [S(0)] and f32[8,8] @ mesh(4,1) [S(0), S(1)]: each worker has the same two rows.

#include <cstdint>

#include "schemas/types/tensor_spec.h"

namespace tessera {

// Whether every worker holds the same box of both, with the same pending terms: nothing has to move.
bool HoldSameShards(const TensorSpec& a, const TensorSpec& b);

// How many workers hold each shard (of pending terms: each term of it).
int64_t CountReplicas(const TensorSpec& spec);

// Whether some worker holds nothing.
bool HasEmptyShards(const TensorSpec& spec);

}  // namespace tessera
