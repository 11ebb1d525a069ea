#pragma once

// The worlds in which laws are checked exhaustively: meshes up to 2x3 and 2x2x2, extents 0, 1, 2, 3,
// 5, 7.

#include <vector>

#include "absl/types/span.h"
#include "schemas/types/tensor_spec.h"

namespace tessera {

// mesh(1), (2), (3), (4), (2,2), (2,3), (2,2,2).
std::vector<Mesh> SmallMeshes();
// All shapes of rank 1 and 2 with the extents above, and a few of rank 0 and 3.
std::vector<Shape> SmallShapes();
// Every list of placements of Replicate, Shard of each dim and the Partials of the given kinds; only
// one kind of Partial in a list.
std::vector<Placements> AllPlacements(int mesh_dims, int rank, absl::Span<const ReduceOp> partials);

}  // namespace tessera
