#pragma once

// Relabel: which worker of a mesh should stand where, so that a redistribution moves least. Pure; client and
// coordinator find the same.
//
//   f32[8] @ mesh(4; workers=3,2,1,0) [S(0)] to mesh(4) [S(0)]: mesh(4; workers=3,2,1,0), and nothing moves.
//   f32[8] @ mesh(2) [P(sum)] to mesh(2,2) [S(0), R]: mesh(2,2; workers=0,3,2,1), and 16 elements move instead of 20.
//
// Exact: no order of the workers moves less, as BoundRedistribute counts, and of those that move as little it is one
// with the most workers at their own position. Where nothing is pending, each position saves the elements that its
// worker holds. An element with pending terms saves one transfer if any of its destinations holds a term, so workers
// with the same box count once among positions that want the same box (assignment.h).

#include <cstdint>

#include "absl/status/statusor.h"
#include "schemas/types/tensor_spec.h"

namespace tessera {

inline constexpr int64_t kMaxRelabelledMeshSize = 256;  // docs/limits.md: max_relabelled_mesh_size

// `mesh` with its workers in another order, for a tensor that gets these placements there. The mesh stays where none
// moves less, and where the destination keeps pending terms. InvalidArgument: more than kMaxRelabelledMeshSize workers,
// or what ValidateRedistribute says.
absl::StatusOr<Mesh> RelabelledMesh(const TensorSpec& source, const Mesh& mesh, const Placements& placements);

}  // namespace tessera
