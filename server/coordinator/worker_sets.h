#pragma once

// WorkerSets: the workers of a mesh as a WorkerGroup, made once for ops on the same mesh.
//
//   WorkerSets groups;
//   groups.Of(spec.mesh) == groups.Of(spec.mesh)   // the same pointer

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/coordinator/effects.h"

namespace tessera {

inline constexpr size_t kMaxKeptGroups = 4096;  // docs/limits.md: max_kept_groups

// In increasing order, each once.
WorkerGroup MakeGroup(std::vector<WorkerIndex> workers);

class WorkerSets {
 public:
  // Beyond max_kept_groups meshes all are forgotten; a holder of a group keeps it.
  WorkerGroup Of(const Mesh& mesh);
  size_t size() const { return groups_.size(); }

 private:
  absl::flat_hash_map<Mesh, WorkerGroup> groups_;
};

}  // namespace tessera
