#pragma once

// Relabel: which worker of a mesh should stand where, so that a redistribution moves least. Pure; client and
// coordinator find the same.
//
//   f32[8] @ mesh(4; workers=3,2,1,0) [S(0)] to mesh(4) [S(0)]: mesh(4; workers=3,2,1,0), and nothing moves.
//
// An exact assignment (assignment.h) of workers to positions, by the elements that a worker holds of the box that the
// position wants. Among equals the one that leaves most workers where they are.

#include <cstdint>

#include "absl/status/statusor.h"
#include "schemas/types/tensor_spec.h"

namespace tessera {

inline constexpr int64_t kMaxRelabelledMeshSize = 256;  // docs/limits.md: max_relabelled_mesh_size

// `mesh` with its workers in another order, for a tensor that gets these placements there. Elements with pending
// terms that several destinations want are counted for each destination that holds a term; where that does not
// lead to fewer bytes, and where the destination keeps pending terms, the mesh stays. InvalidArgument: more than
// kMaxRelabelledMeshSize workers, or what ValidateRedistribute says.
absl::StatusOr<Mesh> RelabelledMesh(const TensorSpec& source, const Mesh& mesh, const Placements& placements);

}  // namespace tessera
