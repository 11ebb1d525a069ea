#include "schemas/types/layout.h"

#include <algorithm>
#include <numeric>

#include "schemas/types/divide.h"
#include "schemas/types/status_macros.h"

namespace tessera {
namespace {

// The piece of that number, of explicit sizes.
Interval SizedInterval(const std::vector<int64_t>& sizes, int64_t index) {
  const int64_t start = std::accumulate(sizes.begin(), sizes.begin() + index, int64_t{0});
  return {start, start + sizes[index]};
}

// The part of `tensor_dim` at the position, in order along the dim even where it is empty.
Interval OrderedInterval(const TensorSpec& spec, int tensor_dim, absl::Span<const int64_t> position) {
  Interval interval{0, spec.shape[tensor_dim]};
  int64_t index = 0;  // of the piece, up to the mesh dim
  for (size_t i = 0; i < spec.placements.size(); ++i) {
    const Placement& placement = spec.placements[i];
    if (!placement.is_shard(tensor_dim)) continue;
    index = index * spec.mesh.shape()[i] + position[i];
    interval = HasFittingSizes(spec, i) ? SizedInterval(placement.sizes(), index)
                                        : ChunkInterval(interval, spec.mesh.shape()[i], position[i]);
  }
  return interval;
}

}  // namespace

bool HasFittingSizes(const TensorSpec& spec, size_t mesh_dim) {
  const Placement& placement = spec.placements[mesh_dim];
  if (!placement.has_sizes()) return false;
  size_t pieces = 1;
  for (size_t i = 0; i <= mesh_dim; ++i) {
    if (spec.placements[i].is_shard(placement.dim())) pieces *= static_cast<size_t>(spec.mesh.shape()[i]);
  }
  if (placement.sizes().size() != pieces) return false;
  int64_t left = spec.shape[placement.dim()];
  for (const int64_t size : placement.sizes()) {
    if (size < 0 || size > left) return false;
    left -= size;
  }
  return left == 0;
}

Interval ChunkInterval(Interval whole, int64_t count, int64_t coordinate) {
  const int64_t size = whole.size();
  const int64_t chunk = CeilDivide(size, count);
  if (chunk == 0 || coordinate > size / chunk) return {whole.stop, whole.stop};
  const int64_t start = std::min(coordinate * chunk, size);
  const int64_t length = std::min(chunk, size - start);
  return {whole.start + start, whole.start + start + length};
}

std::vector<int> ShardingMeshDims(const TensorSpec& spec, int tensor_dim) {
  std::vector<int> dims;
  for (size_t i = 0; i < spec.placements.size(); ++i) {
    if (spec.placements[i].is_shard(tensor_dim)) dims.push_back(static_cast<int>(i));
  }
  return dims;
}

std::vector<Interval> DimIntervals(const TensorSpec& spec, int tensor_dim) {
  std::vector<Interval> intervals = {{0, spec.shape[tensor_dim]}};
  for (const int mesh_dim : ShardingMeshDims(spec, tensor_dim)) {
    const int64_t count = spec.mesh.shape()[mesh_dim];
    std::vector<Interval> parts;
    parts.reserve(intervals.size() * count);
    if (HasFittingSizes(spec, mesh_dim)) {
      int64_t start = 0;
      for (const int64_t size : spec.placements[mesh_dim].sizes()) {
        parts.push_back({start, start + size});
        start += size;
      }
      intervals = std::move(parts);
      continue;
    }
    for (const Interval& interval : intervals) {
      for (int64_t c = 0; c < count; ++c) parts.push_back(ChunkInterval(interval, count, c));
    }
    intervals = std::move(parts);
  }
  return intervals;
}

int64_t ShardIndex(const TensorSpec& spec, int tensor_dim, absl::Span<const int64_t> position) {
  int64_t index = 0;
  for (size_t i = 0; i < spec.placements.size(); ++i) {
    if (spec.placements[i].is_shard(tensor_dim)) index = index * spec.mesh.shape()[i] + position[i];
  }
  return index;
}

Box LocalBox(const TensorSpec& spec, absl::Span<const int64_t> position) {
  TESSERA_CHECK(position.size() == spec.placements.size());
  Box box(spec.shape.size());
  for (int d = 0; d < spec.rank(); ++d) {
    box[d] = OrderedInterval(spec, d, position);
    if (box[d].empty()) box[d] = {spec.shape[d], spec.shape[d]};
  }
  return box;
}

int64_t MaxShardElements(const TensorSpec& spec) { return NumElements(MaxShardShape(spec)); }

Shape MaxShardShape(const TensorSpec& spec) {
  Shape shape = spec.shape;
  for (size_t i = 0; i < spec.placements.size(); ++i) {
    const Placement& placement = spec.placements[i];
    if (!placement.is_shard()) continue;
    int64_t& extent = shape[placement.dim()];
    // Later mesh dims cut this further: their shards are at most a part of the largest of these.
    extent = HasFittingSizes(spec, i) ? *std::max_element(placement.sizes().begin(), placement.sizes().end())
                                      : CeilDivide(extent, spec.mesh.shape()[i]);
  }
  return shape;
}

Placements AutoPlacements(DType dtype, absl::Span<const int64_t> shape, const Mesh& mesh) {
  constexpr int64_t kReplicatedBelowBytes = int64_t{1} << 20;
  Placements placements(mesh.ndim());
  if (NumElements(shape) * SizeBytes(dtype) < kReplicatedBelowBytes) return placements;
  Shape remaining(shape.begin(), shape.end());
  for (int i = 0; i < mesh.ndim(); ++i) {
    const auto largest = std::max_element(remaining.begin(), remaining.end());
    if (largest == remaining.end() || *largest < mesh.shape()[i]) continue;
    placements[i] = Placement::Shard(static_cast<int>(largest - remaining.begin()));
    *largest = CeilDivide(*largest, mesh.shape()[i]);
  }
  return placements;
}

}  // namespace tessera
