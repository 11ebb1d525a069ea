#include "server/planner/redistribute.h"

#include <algorithm>
#include <utility>

#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"

namespace tessera {

absl::StatusOr<Plan> PlanRedistribute(const OperandLayout& source, const TensorSpec& destination,
                                      const Topology& topology) {
  TESSERA_RETURN_IF_ERROR(ValidateRedistribute(source.spec, destination));
  PlanBuilder builder;
  const int input = builder.AddInput(source);
  TESSERA_ASSIGN_OR_RETURN(const int output, builder.AddRedistribute(input, destination));
  builder.AddOutput(output);
  return std::move(builder).Finish(topology);
}

std::optional<TensorSpec> PlaceToConvert(const TensorSpec& source, const TensorSpec& destination) {
  TensorSpec wide = destination;
  wide.dtype = source.dtype;
  const absl::StatusOr<RedistributeBound> direct = BoundRedistribute(source, wide);
  if (!direct.ok()) return std::nullopt;
  TensorSpec one_term = source;
  bool pending = false;
  for (size_t j = 0; j < source.placements.size(); ++j) {
    if (!source.placements[j].is_partial()) continue;
    pending = pending || source.mesh.shape()[j] > 1;
    one_term.placements[j] = Placement::Replicate();
  }
  if (!pending) return one_term;
  if (source.rank() == 0) return std::nullopt;
  std::optional<TensorSpec> best;
  int64_t best_bytes = direct->total_bytes;
  for (const bool towards_destination : {true, false}) {
    if (towards_destination && !SamePositions(source.mesh, destination.mesh)) continue;
    TensorSpec place = source;
    for (size_t j = 0; j < place.placements.size(); ++j) {
      if (!place.placements[j].is_shard()) place.placements[j] = Placement::Replicate();
    }
    for (size_t j = 0; j < place.placements.size(); ++j) {
      if (place.placements[j].is_shard()) continue;
      const Shape left = MaxShardShape(place);
      const int largest = static_cast<int>(std::max_element(left.begin(), left.end()) - left.begin());
      const bool as_destination = towards_destination && destination.placements[j].is_shard();
      place.placements[j] = as_destination ? destination.placements[j] : Placement::Shard(largest);
    }
    TensorSpec narrow = place;
    narrow.dtype = destination.dtype;
    const absl::StatusOr<RedistributeBound> reduced = BoundRedistribute(source, place);
    const absl::StatusOr<RedistributeBound> moved = BoundRedistribute(narrow, destination);
    if (!reduced.ok() || !moved.ok() || reduced->total_bytes + moved->total_bytes >= best_bytes) continue;
    best_bytes = reduced->total_bytes + moved->total_bytes;
    best = std::move(place);
  }
  return best;
}

}  // namespace tessera
