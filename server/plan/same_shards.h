#pragma once

// HoldSameShards: two specs under which the same elements lie at the same workers.
//
//   f32[8,8] @ mesh(4) [S(0)] and f32[8,8] @ mesh(4,1) [S(0), S(1)]: each worker has the same two rows.

#include "schemas/types/tensor_spec.h"

namespace tessera {

// Whether every worker holds the same box of both, with the same pending terms: nothing has to move.
bool HoldSameShards(const TensorSpec& a, const TensorSpec& b);

}  // namespace tessera
