#include "server/plan/movement/same_shards.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "schemas/types/layout.h"
#include "server/plan/movement/exchange.h"

namespace tessera {

bool HoldSameShards(const TensorSpec& a, const TensorSpec& b) {
  if (a.shape != b.shape) return false;
  if (HaveSameArrangement(a.mesh, b.mesh)) {
    bool same = true;
    for (size_t j = 0; j < a.placements.size(); ++j) {
      same = same && (a.placements[j] == b.placements[j] || a.mesh.shape()[j] == 1);
    }
    if (same || a.has_partial() || b.has_partial()) return same;
  }
  if (a.has_partial() || b.has_partial() || a.mesh.size() != b.mesh.size()) return false;
  for (int64_t flat = 0; flat < a.mesh.size(); ++flat) {
    const std::optional<int64_t> other = b.mesh.FindWorker(a.mesh.workers()[static_cast<size_t>(flat)]);
    if (!other.has_value()) return false;
    const Box box = LocalBox(a, a.mesh.PositionAt(flat));
    const Box other_box = LocalBox(b, b.mesh.PositionAt(*other));
    if (box != other_box && !(IsEmpty(box) && IsEmpty(other_box))) return false;
  }
  return true;
}

int64_t CountReplicas(const TensorSpec& spec) {
  int64_t replicas = 1;
  for (size_t j = 0; j < spec.placements.size(); ++j) {
    if (spec.placements[j].is_replicate()) replicas *= spec.mesh.shape()[j];
  }
  return replicas;
}

bool HasEmptyShards(const TensorSpec& spec) {
  for (int d = 0; d < spec.rank(); ++d) {
    const std::vector<Interval> shards = DimIntervals(spec, d);
    if (std::any_of(shards.begin(), shards.end(), [](const Interval& shard) { return shard.empty(); })) return true;
  }
  return false;
}

}  // namespace tessera
