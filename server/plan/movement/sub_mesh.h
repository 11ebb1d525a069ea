#pragma once

// Sub-meshes: the positions of a mesh at given coordinates of some of its dims. The chosen dims stay, with size 1, so
// that the others keep their numbers.
//
//   x = f64[8,6] @ mesh(2,2) [S(0), S(1)]
//   CoordinatesOfShard(x, 0, 1) is coordinate 1 of mesh dim 0: workers 2 and 3 have rows 4 to 7
//   OnSubMesh of x there, with 3 rows, is f64[3,6] @ mesh(1,2; workers=2,3) [R, S(1)]: three of those
//
// Law: a range of one shard lies at the same places of the storage on all positions that have the shard, so it is a
// tensor on their sub-mesh, with the strides of the whole.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "schemas/types/tensor_spec.h"

namespace tessera {

struct MeshCoordinate {
  int mesh_dim = 0;
  int64_t coordinate = 0;
  bool operator==(const MeshCoordinate&) const = default;
};

// The coordinates that all positions with this shard along the dim (an index into DimIntervals) have in common.
std::vector<MeshCoordinate> CoordinatesOfShard(const TensorSpec& spec, int tensor_dim, int64_t shard);

// The positions at these coordinates; the mesh itself where that is all.
Mesh SubMesh(const Mesh& mesh, absl::Span<const MeshCoordinate> coordinates);

// The tensor on its sub-mesh at these coordinates. A shard along their mesh dims is taken for the whole: the caller
// says its extent.
TensorSpec OnSubMesh(TensorSpec spec, absl::Span<const MeshCoordinate> coordinates, const Mesh& sub_mesh);

// Whether every worker of `part` is one of `whole`.
bool HasWorkersOf(const Mesh& whole, const Mesh& part);
bool HaveWorkersInCommon(const Mesh& a, const Mesh& b);

}  // namespace tessera
