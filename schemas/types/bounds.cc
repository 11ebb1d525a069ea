#include "schemas/types/bounds.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

using Wide = __int128;

int64_t Saturate(Wide value) {
  constexpr Wide kMax = std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(std::min(value, kMax));
}

// Which shard of the tensor the position holds: the row-major number of its coordinates on the
// sharded mesh dims. Positions with equal numbers hold equal boxes, with others disjoint ones.
int64_t ShardNumber(const TensorSpec& spec, absl::Span<const int64_t> position) {
  int64_t number = 0;
  for (size_t i = 0; i < spec.placements.size(); ++i) {
    if (spec.placements[i].is_shard()) number = number * spec.mesh.shape()[i] + position[i];
  }
  return number;
}

struct PartialCounts {
  int64_t terms = 1;    // that must be reduced into one value
  int64_t carried = 1;  // groups of positions whose terms stay apart
};

PartialCounts CountPartials(const TensorSpec& source, const TensorSpec& destination) {
  PartialCounts counts;
  const bool same_mesh = HaveSameArrangement(source.mesh, destination.mesh);
  for (size_t i = 0; i < source.placements.size(); ++i) {
    if (!source.placements[i].is_partial()) continue;
    const bool carried = same_mesh && destination.placements[i].is_partial();
    (carried ? counts.carried : counts.terms) *= source.mesh.shape()[i];
  }
  return counts;
}

// Elements of which some destination owns a term, in one group of carried coordinates.
Wide CountOwnedElements(const TensorSpec& source, const TensorSpec& destination) {
  absl::flat_hash_set<std::pair<int64_t, int64_t>> seen;
  Wide elements = 0;
  for (int64_t flat = 0; flat < destination.mesh.size(); ++flat) {
    const std::optional<int64_t> source_flat = source.mesh.FindWorker(destination.mesh.workers()[flat]);
    if (!source_flat.has_value()) continue;
    const Position to = destination.mesh.PositionAt(flat);
    const Position from = source.mesh.PositionAt(*source_flat);
    if (!seen.emplace(ShardNumber(source, from), ShardNumber(destination, to)).second) continue;
    elements += NumElements(Intersect(LocalBox(source, from), LocalBox(destination, to)));
  }
  return elements;
}

Wide ReducedTransfers(const TensorSpec& source, const TensorSpec& destination, const PartialCounts& counts) {
  Wide destinations = 1;
  for (size_t i = 0; i < destination.placements.size(); ++i) {
    if (destination.placements[i].is_replicate()) destinations *= destination.mesh.shape()[i];
  }
  const Wide elements = NumElements(source.shape);
  const Wide each = Wide{counts.terms} + destinations - 1;
  return Wide{counts.carried} * (elements * each - CountOwnedElements(source, destination));
}

absl::Status Refuse(std::string_view why, const TensorSpec& source, const TensorSpec& destination) {
  return absl::InvalidArgumentError(
      StrCat("redistribute: ", why, ": from ", ToText(source), " to ", ToText(destination)));
}

}  // namespace

absl::Status ValidateRedistribute(const TensorSpec& source, const TensorSpec& destination) {
  if (source.shape != destination.shape) return Refuse("shapes differ", source, destination);
  if (source.dtype != destination.dtype) return Refuse("dtypes differ", source, destination);
  const bool same_mesh = HaveSameArrangement(source.mesh, destination.mesh);
  for (size_t i = 0; i < destination.placements.size(); ++i) {
    const Placement& to = destination.placements[i];
    if (!to.is_partial()) continue;
    if (!same_mesh) return Refuse("nothing can be redistributed to Partial on another mesh", source, destination);
    const Placement& from = source.placements[i];
    if (from == to) continue;
    return Refuse(
        StrCat(ToText(from), " to ", ToText(to), " on mesh dim ", i,
               from.is_partial() ? ": Partials of different kinds" : ": nothing else can be redistributed to Partial"),
        source, destination);
  }
  return absl::OkStatus();
}

absl::StatusOr<RedistributeBound> BoundRedistribute(const TensorSpec& source, const TensorSpec& destination) {
  TESSERA_RETURN_IF_ERROR(ValidateRedistribute(source, destination));
  const Wide element_bytes = SizeBytes(source.dtype);
  RedistributeBound bound;
  const PartialCounts counts = CountPartials(source, destination);
  if (counts.terms > 1) {
    bound.total_bytes = Saturate(ReducedTransfers(source, destination, counts) * element_bytes);
    return bound;
  }
  Wide total_bytes = 0;
  bound.received_bytes.reserve(destination.mesh.size());
  for (int64_t flat = 0; flat < destination.mesh.size(); ++flat) {
    const Box needed = LocalBox(destination, destination.mesh.PositionAt(flat));
    int64_t elements = NumElements(needed);
    const std::optional<int64_t> held = source.mesh.FindWorker(destination.mesh.workers()[flat]);
    if (held.has_value()) {
      elements -= NumElements(Intersect(needed, LocalBox(source, source.mesh.PositionAt(*held))));
    }
    bound.received_bytes.push_back(Saturate(elements * element_bytes));
    total_bytes += elements * element_bytes;
  }
  bound.total_bytes = Saturate(total_bytes);
  return bound;
}

}  // namespace tessera
