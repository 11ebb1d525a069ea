#include "schemas/types/living_mesh.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "schemas/types/layout.h"

namespace tessera {
namespace {

using Coordinates = std::vector<int64_t>;

// Coordinates of the dim at which no worker is lost.
Coordinates WholeCoordinates(const Mesh& mesh, size_t dim, const std::vector<bool>& is_lost) {
  std::vector<bool> is_whole(static_cast<size_t>(mesh.shape()[dim]), true);
  for (int64_t flat = 0; flat < mesh.size(); ++flat) {
    if (is_lost[static_cast<size_t>(flat)]) is_whole[static_cast<size_t>(mesh.PositionAt(flat)[dim])] = false;
  }
  Coordinates whole;
  for (size_t c = 0; c < is_whole.size(); ++c) {
    if (is_whole[c]) whole.push_back(static_cast<int64_t>(c));
  }
  return whole;
}

Mesh MeshOf(const Mesh& like, const std::vector<int64_t>& shape, const std::vector<WorkerIndex>& workers) {
  return *Mesh::Make(shape, like.names(), workers);
}

// The mesh without the other coordinates of the dim.
Mesh Keep(const Mesh& mesh, size_t dim, const Coordinates& coordinates) {
  std::vector<int64_t> shape = mesh.shape();
  shape[dim] = static_cast<int64_t>(coordinates.size());
  std::vector<WorkerIndex> workers;
  for (int64_t flat = 0; flat < mesh.size(); ++flat) {
    const int64_t at = mesh.PositionAt(flat)[dim];
    if (std::binary_search(coordinates.begin(), coordinates.end(), at)) {
      workers.push_back(mesh.workers()[static_cast<size_t>(flat)]);
    }
  }
  return MeshOf(mesh, shape, workers);
}

// One living holder of each shard; nullopt where one has none.
std::optional<Mesh> OneHolderEach(const Mesh& mesh, absl::Span<const Placement> placements,
                                  const std::vector<bool>& is_lost) {
  std::vector<int64_t> shape = mesh.shape();
  int64_t shards = 1;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (placements[d].is_replicate()) shape[d] = 1;
    shards *= shape[d];
  }
  std::vector<std::optional<WorkerIndex>> holders(static_cast<size_t>(shards));
  for (int64_t flat = 0; flat < mesh.size(); ++flat) {
    if (is_lost[static_cast<size_t>(flat)]) continue;
    const Position position = mesh.PositionAt(flat);
    int64_t shard = 0;
    for (size_t d = 0; d < shape.size(); ++d) shard = shard * shape[d] + (shape[d] == 1 ? 0 : position[d]);
    auto& holder = holders[static_cast<size_t>(shard)];
    if (!holder.has_value()) holder = mesh.workers()[static_cast<size_t>(flat)];
  }
  std::vector<WorkerIndex> workers;
  for (const auto& holder : holders) {
    if (!holder.has_value()) return std::nullopt;
    workers.push_back(*holder);
  }
  return MeshOf(mesh, shape, workers);
}

}  // namespace

std::optional<Mesh> LivingMesh(const Mesh& mesh, absl::Span<const Placement> placements,
                               const std::function<bool(WorkerIndex)>& is_lost) {
  std::vector<bool> lost;
  for (const WorkerIndex worker : mesh.workers()) lost.push_back(is_lost(worker));
  if (std::none_of(lost.begin(), lost.end(), [](bool is) { return is; })) return mesh;
  std::optional<size_t> best;
  Coordinates kept;
  int64_t most = 0;
  for (size_t d = 0; d < placements.size(); ++d) {
    if (!placements[d].is_replicate()) continue;
    Coordinates whole = WholeCoordinates(mesh, d, lost);
    const int64_t workers = mesh.size() / mesh.shape()[d] * static_cast<int64_t>(whole.size());
    if (workers <= most) continue;
    best = d;
    most = workers;
    kept = std::move(whole);
  }
  if (best.has_value()) return Keep(mesh, *best, kept);
  return OneHolderEach(mesh, placements, lost);
}

std::optional<Mesh> LivingMesh(const TensorSpec& spec, const std::function<bool(WorkerIndex)>& is_lost) {
  if (std::optional<Mesh> living = LivingMesh(spec.mesh, spec.placements, is_lost); living.has_value()) return living;
  return LivingMesh(spec.mesh, spec.placements, [&](WorkerIndex worker) {
    return is_lost(worker) && !IsEmpty(LocalBox(spec, spec.mesh.PositionAt(*spec.mesh.FindWorker(worker))));
  });
}

}  // namespace tessera
