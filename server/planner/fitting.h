#pragma once

// Suggests what of a tensor would fit where the tensor itself does not: for the message that refuses it. Pure.
//
//   WhatWouldFit(f32[1024,64] @ mesh(4) [R], 100000):
//   "f32[1024,64] @ mesh(4) [R] would fit with placements [S(0)], or shortened to f32[390,64]"

#include <cstdint>
#include <string>

#include "schemas/types/tensor_spec.h"

namespace tessera {

// `free_bytes` is the largest piece that is free on every worker of the mesh. Names the placements that differ on the
// fewest mesh dims, Shard in place of Replicate, and the largest extent of the first dim, under which the largest shard
// fits (of the next dim, where one index of that is too much);
// "nothing of f32[1024,64] @ mesh(4) [R] would fit" when neither is there.
std::string WhatWouldFit(const TensorSpec& spec, int64_t free_bytes);

}  // namespace tessera
