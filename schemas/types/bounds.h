#pragma once

// Closed-form lower bounds of a redistribution, independent of any planner.
//
// Worker d must receive at least the elements of its new box that it does not hold; an element with c
// pending terms that r destinations need takes c + r - 2 transfers where a destination owns a term,
// else c + r - 1 (one reduction to a destination, then copies).
//
//   RedistributeBound(f32[4,4] @ mesh(2) [S(0)], [S(1)]).received_bytes == {16, 16}

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "schemas/types/tensor_spec.h"

namespace tessera {

struct RedistributeBound {
  // By worker of the destination mesh in row-major order of positions. Set only where the source has
  // no Partial that must be reduced: then each entry is what that worker lacks.
  std::vector<int64_t> received_bytes;
  // Over all workers; with pending terms this is the whole bound.
  int64_t total_bytes = 0;
};

// Same dtype and shape; meshes may differ. InvalidArgument: anything else to Partial, P(a) to P(b),
// other shapes, named with both specs. A Partial that stays on the same mesh dim of the same mesh
// (names may differ) is carried, not reduced.
absl::StatusOr<RedistributeBound> BoundRedistribute(const TensorSpec& source, const TensorSpec& destination);

// Checks what `redistribute` accepts, with the message a user sees. The same errors as BoundRedistribute.
absl::Status ValidateRedistribute(const TensorSpec& source, const TensorSpec& destination);

}  // namespace tessera
