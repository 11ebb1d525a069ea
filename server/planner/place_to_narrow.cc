#include "server/planner/place_to_narrow.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "server/plan/exchange.h"
#include "server/plan/same_shards.h"
#include "server/plan/sub_mesh.h"

namespace tessera {
namespace {

__extension__ using Wide = __int128;  // bytes of all workers together, of a tensor that need not fit anywhere

struct Narrowing {
  Wide bytes = 0;
  std::optional<TensorSpec> place;  // none: each element is converted as it is reduced
};

// Each element at one of the workers that have terms of it: cut along the largest dim, or along this one alone.
TensorSpec PlaceBy(TensorSpec place, std::optional<int> dim) {
  for (Placement& placement : place.placements) {
    if (!placement.is_shard()) placement = Placement::Replicate();
  }
  for (Placement& placement : place.placements) {
    if (placement.is_shard()) continue;
    const Shape left = MaxShardShape(place);
    const auto largest = static_cast<int>(std::max_element(left.begin(), left.end()) - left.begin());
    placement = Placement::Shard(dim.value_or(largest));
  }
  return place;
}

// What is no array, or has one element: at the first worker.
TensorSpec PlaceAtFirst(const TensorSpec& source) {
  std::vector<MeshCoordinate> first;
  for (int d = 0; d < source.mesh.ndim(); ++d) first.push_back({d, 0});
  TensorSpec place = source;
  place.mesh = SubMesh(source.mesh, first);
  place.placements.assign(place.placements.size(), Placement::Replicate());
  return place;
}

std::vector<TensorSpec> PlacesFor(const TensorSpec& source) {
  if (NumElements(source.shape) <= 1) return {PlaceAtFirst(source)};
  std::vector<TensorSpec> places = {PlaceBy(source, std::nullopt)};
  for (int dim = 0; dim < source.rank(); ++dim) places.push_back(PlaceBy(source, dim));
  return places;
}

// The best way; none where it isn't a sum that is reduced, or can't be brought there.
std::optional<Narrowing> BestNarrowing(const TensorSpec& source, const TensorSpec& destination) {
  const absl::StatusOr<RedistributeBound> wide = BoundRedistribute(source, WithDType(destination, source.dtype));
  const bool is_reduced = PendingTerms(source, destination) > 1 && !destination.has_partial();
  if (!wide.ok() || !is_reduced) return std::nullopt;
  // Of what is reduced where it goes to, all but one replica takes it converted.
  const Wide spread_elements = Wide{NumElements(source.shape)} * (CountReplicas(destination) - 1);
  Narrowing best;
  best.bytes = wide->total_bytes - spread_elements * (SizeBytes(source.dtype) - SizeBytes(destination.dtype));
  for (const TensorSpec& place : PlacesFor(source)) {
    const TensorSpec narrow = WithDType(place, destination.dtype);
    const absl::StatusOr<RedistributeBound> reduced = BoundRedistribute(source, place);
    const absl::StatusOr<RedistributeBound> moved = BoundRedistribute(narrow, destination);
    if (!reduced.ok() || !moved.ok()) continue;
    const Wide bytes = Wide{reduced->total_bytes} + moved->total_bytes;
    if (bytes < best.bytes) best = {bytes, narrow};
  }
  return best;
}

}  // namespace

std::optional<TensorSpec> PlaceToNarrow(const TensorSpec& source, const TensorSpec& destination) {
  std::optional<Narrowing> best = BestNarrowing(source, destination);
  return best.has_value() ? std::move(best->place) : std::nullopt;
}

std::optional<int> DimToNarrowBy(const TensorSpec& source, const TensorSpec& destination) {
  std::optional<int> best_dim;
  const std::optional<Narrowing> whole = BestNarrowing(source, destination);
  if (!whole.has_value()) return best_dim;
  Wide best_bytes = whole->bytes;
  for (int dim = 0; dim < source.rank(); ++dim) {
    const std::vector<Interval> shards = DimIntervals(destination, dim);
    const int64_t count = static_cast<int64_t>(shards.size());
    if (count < 2 || count > kMaxNarrowedParts || DimIntervals(source, dim).size() > 1) continue;
    Wide bytes = 0;
    for (int64_t shard = 0; shard < count; ++shard) {
      const int64_t size = shards[static_cast<size_t>(shard)].size();
      if (size == 0) continue;
      TensorSpec part = source;
      part.shape[static_cast<size_t>(dim)] = size;
      const std::optional<Narrowing> of_part = BestNarrowing(part, RangeOfShard(destination, dim, shard, size));
      bytes += of_part.has_value() ? of_part->bytes : best_bytes;
    }
    if (bytes >= best_bytes) continue;
    best_bytes = bytes;
    best_dim = dim;
  }
  return best_dim;
}

}  // namespace tessera
