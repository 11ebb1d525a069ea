#include "schemas/types/relabel.h"

#include <optional>
#include <vector>

#include "schemas/types/assignment.h"
#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {

absl::StatusOr<Mesh> RelabelledMesh(const TensorSpec& source, const Mesh& mesh, const Placements& placements) {
  if (mesh.size() > kMaxRelabelledMeshSize) {
    return absl::InvalidArgumentError(StrCat("redistribute: relabel is for meshes of up to ", kMaxRelabelledMeshSize,
                                             " workers, this one has ", mesh.size(), ": ", ToText(mesh)));
  }
  TensorSpec destination = source;
  destination.mesh = mesh;
  destination.placements = placements;
  TESSERA_ASSIGN_OR_RETURN(const RedistributeBound kept, BoundRedistribute(source, destination));
  if (destination.has_partial() || kept.total_bytes == 0) return mesh;
  const size_t size = static_cast<size_t>(mesh.size());
  std::vector<Box> held(size);
  std::vector<bool> holds(size, false);
  for (size_t worker = 0; worker < size; ++worker) {
    const std::optional<int64_t> flat = source.mesh.FindWorker(mesh.workers()[worker]);
    holds[worker] = flat.has_value();
    if (flat.has_value()) held[worker] = LocalBox(source, source.mesh.PositionAt(*flat));
  }
  std::vector<std::vector<int64_t>> weights(size, std::vector<int64_t>(size, 0));
  for (size_t position = 0; position < size; ++position) {
    const Box wanted = LocalBox(destination, mesh.PositionAt(static_cast<int64_t>(position)));
    for (size_t worker = 0; worker < size; ++worker) {
      if (holds[worker]) weights[position][worker] = NumElements(Intersect(wanted, held[worker]));
    }
  }
  const std::vector<int> chosen = AssignRows(weights);
  std::vector<WorkerIndex> workers;
  for (size_t position = 0; position < size; ++position) {
    workers.push_back(mesh.workers()[static_cast<size_t>(chosen[position])]);
  }
  TESSERA_ASSIGN_OR_RETURN(destination.mesh, Mesh::Make(mesh.shape(), mesh.names(), workers));
  TESSERA_ASSIGN_OR_RETURN(const RedistributeBound moved, BoundRedistribute(source, destination));
  return moved.total_bytes < kept.total_bytes ? destination.mesh : mesh;
}

}  // namespace tessera
