#include "server/coordinator/worker_sets.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace tessera {

WorkerGroup MakeGroup(std::vector<WorkerIndex> workers) {
  std::sort(workers.begin(), workers.end());
  workers.erase(std::unique(workers.begin(), workers.end()), workers.end());
  return std::make_shared<const std::vector<WorkerIndex>>(std::move(workers));
}

WorkerGroup WorkerSets::Of(const Mesh& mesh) {
  if (const auto known = groups_.find(mesh); known != groups_.end()) return known->second;
  if (groups_.size() >= kMaxKeptGroups) groups_.clear();
  return groups_.emplace(mesh, MakeGroup({mesh.workers().begin(), mesh.workers().end()})).first->second;
}

}  // namespace tessera
