#include "server/plan/movement/sub_mesh.h"

#include <algorithm>
#include <utility>

#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"

namespace tessera {

Mesh SubMesh(const Mesh& mesh, absl::Span<const MeshCoordinate> coordinates) {
  std::vector<int64_t> shape = mesh.shape();
  for (const MeshCoordinate& fixed : coordinates) shape[static_cast<size_t>(fixed.mesh_dim)] = 1;
  if (shape == mesh.shape()) return mesh;
  int64_t size = 1;
  for (const int64_t extent : shape) size *= extent;
  std::vector<WorkerIndex> workers;
  workers.reserve(static_cast<size_t>(size));
  Position position(shape.size(), 0);
  for (const MeshCoordinate& fixed : coordinates) position[static_cast<size_t>(fixed.mesh_dim)] = fixed.coordinate;
  for (int64_t i = 0; i < size; ++i) {
    int64_t rest = i;
    for (size_t j = shape.size(); j-- > 0; rest /= shape[j]) {
      if (shape[j] > 1) position[j] = rest % shape[j];
    }
    workers.push_back(mesh.WorkerAt(position));
  }
  absl::StatusOr<Mesh> made = Mesh::Make(shape, mesh.names(), workers);
  TESSERA_CHECK(made.ok());
  return *std::move(made);
}

std::vector<MeshCoordinate> CoordinatesOfShard(const TensorSpec& spec, int tensor_dim, int64_t shard) {
  const std::vector<int> mesh_dims = ShardingMeshDims(spec, tensor_dim);
  std::vector<MeshCoordinate> coordinates(mesh_dims.size());
  for (size_t i = mesh_dims.size(); i-- > 0;) {
    const int64_t count = spec.mesh.shape()[static_cast<size_t>(mesh_dims[i])];
    coordinates[i] = {mesh_dims[i], shard % count};
    shard /= count;
  }
  return coordinates;
}

TensorSpec OnSubMesh(TensorSpec spec, absl::Span<const MeshCoordinate> coordinates, const Mesh& sub_mesh) {
  spec.mesh = sub_mesh;
  for (const MeshCoordinate& fixed : coordinates) {
    spec.placements[static_cast<size_t>(fixed.mesh_dim)] = Placement::Replicate();
  }
  return spec;
}

bool HasWorkersOf(const Mesh& whole, const Mesh& part) {
  if (whole == part) return true;
  return part.size() <= whole.size() &&
         std::all_of(part.workers().begin(), part.workers().end(),
                     [&](WorkerIndex worker) { return whole.FindWorker(worker).has_value(); });
}

bool HaveWorkersInCommon(const Mesh& a, const Mesh& b) {
  return std::any_of(b.workers().begin(), b.workers().end(),
                     [&](WorkerIndex worker) { return a.FindWorker(worker).has_value(); });
}

}  // namespace tessera
