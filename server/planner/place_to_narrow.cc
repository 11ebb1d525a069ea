#include "server/planner/place_to_narrow.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "server/plan/exchange.h"
#include "server/plan/same_shards.h"

namespace tessera {

__extension__ using Wide = __int128;  // bytes of all workers together, of a tensor that need not fit anywhere

std::optional<TensorSpec> PlaceToNarrow(const TensorSpec& source, const TensorSpec& destination) {
  const absl::StatusOr<RedistributeBound> wide = BoundRedistribute(source, WithDType(destination, source.dtype));
  const bool is_reduced = PendingTerms(source, destination) > 1 && !destination.has_partial();
  if (!wide.ok() || !is_reduced || source.rank() == 0) return std::nullopt;
  TensorSpec place = source;
  for (Placement& placement : place.placements) {
    if (!placement.is_shard()) placement = Placement::Replicate();
  }
  for (Placement& placement : place.placements) {
    if (placement.is_shard()) continue;
    const Shape left = MaxShardShape(place);
    placement = Placement::Shard(static_cast<int>(std::max_element(left.begin(), left.end()) - left.begin()));
  }
  const TensorSpec narrow = WithDType(place, destination.dtype);
  const absl::StatusOr<RedistributeBound> reduced = BoundRedistribute(source, place);
  const absl::StatusOr<RedistributeBound> moved = BoundRedistribute(narrow, destination);
  if (!reduced.ok() || !moved.ok()) return std::nullopt;
  // Of what is reduced where it goes to, all but one replica takes it converted.
  const Wide spread_elements = Wide{NumElements(source.shape)} * (CountReplicas(destination) - 1);
  const Wide direct_bytes =
      wide->total_bytes - spread_elements * (SizeBytes(source.dtype) - SizeBytes(destination.dtype));
  const Wide bytes = Wide{reduced->total_bytes} + moved->total_bytes;
  return bytes < direct_bytes ? std::optional(narrow) : std::nullopt;
}

}  // namespace tessera
