#include "server/planner/parts_to_narrow.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "server/plan/movement/exchange.h"
#include "server/plan/movement/same_shards.h"
#include "server/plan/movement/sub_mesh.h"
#include "server/planner/part_range.h"

namespace tessera {
namespace {

__extension__ using Wide = __int128;  // bytes of all workers together, of a tensor that need not fit anywhere

constexpr int kMostDimsTried = 2;  // of those that could be cut, together; then all of them

struct Narrowing {
  Wide bytes = 0;
  Wide least_bytes = 0;             // the bound of each element (parts_to_narrow.h)
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

// The place of a value that is no array, or has one element: at the first worker.
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
  // If it is reduced where it goes to, all replicas but one take it converted.
  const int64_t wide_bytes = SizeBytes(source.dtype), narrow_bytes = SizeBytes(destination.dtype);
  const Wide elements = NumElements(source.shape), terms = PendingTerms(source, destination);
  const Wide replicas = CountReplicas(destination);
  Narrowing best;
  best.bytes = wide->total_bytes - elements * (replicas - 1) * (wide_bytes - narrow_bytes);
  // One transfer less is made of those that a worker wants who has a term.
  const Wide nearer = elements * (terms + replicas - 1) - wide->total_bytes / wide_bytes;
  best.least_bytes = elements * (terms - 1) * wide_bytes + (elements * replicas - nearer) * narrow_bytes;
  if (best.bytes == best.least_bytes) return best;
  const bool is_sharded = std::any_of(source.placements.begin(), source.placements.end(),
                                      [](const Placement& placement) { return placement.is_shard(); });
  if (nearer == 0 && !is_sharded) {  // each worker has a term of all, and nobody who reduces some of it wants it
    best.bytes = best.least_bytes;
    best.place = WithDType(PlacesFor(source)[0], destination.dtype);
    return best;
  }
  for (const TensorSpec& place : PlacesFor(source)) {
    const TensorSpec narrow = WithDType(place, destination.dtype);
    const absl::StatusOr<RedistributeBound> reduced = BoundRedistribute(source, place);
    const absl::StatusOr<RedistributeBound> moved = BoundRedistribute(narrow, destination);
    if (!reduced.ok() || !moved.ok()) continue;
    const Wide bytes = Wide{reduced->total_bytes} + moved->total_bytes;
    if (bytes >= best.bytes) continue;
    best.bytes = bytes;
    best.place = narrow;
    if (bytes == best.least_bytes) break;
  }
  return best;
}

// Names of tensor dims, as contractions have letters.
std::string NamesOfDims(int rank) {
  std::string names(static_cast<size_t>(rank), 'a');
  std::iota(names.begin(), names.end(), 'a');
  return names;
}

// Cuts parts along a dim wherever a shard of the source or of the destination ends; false above the limit.
bool CutAlong(int dim, std::vector<NarrowedPart>& parts) {
  std::vector<NarrowedPart> cut;
  const size_t d = static_cast<size_t>(dim);
  const std::string names = NamesOfDims(parts[0].source.rank());
  for (const NarrowedPart& part : parts) {
    const std::vector<PartRange> ranges =
        CommonRanges(part.source, part.destination, names, names[d], kMaxNarrowedParts);
    if (ranges.empty() || static_cast<int64_t>(cut.size() + ranges.size()) > kMaxNarrowedParts) return false;
    for (const PartRange& range : ranges) {
      NarrowedPart& in_range = cut.emplace_back(part);
      in_range.source = OnGridIn(range, part.source, names);
      in_range.destination = OutputIn(range, part.destination, names);
      in_range.source_start[d] += range.start_on_grid;
      in_range.destination_start[d] += range.start_in_output;
    }
  }
  parts = std::move(cut);
  return true;
}

struct Cut {
  std::vector<NarrowedPart> parts;
  Wide bytes = 0;
  Wide least_bytes = 0;
};

// Along these dims, bit by bit.
std::optional<Cut> CutAlongDims(const NarrowedPart& whole, uint32_t dims) {
  Cut cut;
  cut.parts = {whole};
  for (int dim = 0; dim < whole.source.rank(); ++dim) {
    if ((dims >> dim & 1) != 0 && !CutAlong(dim, cut.parts)) return std::nullopt;
  }
  for (NarrowedPart& part : cut.parts) {
    std::optional<Narrowing> best = BestNarrowing(part.source, part.destination);
    if (!best.has_value()) return std::nullopt;
    cut.bytes += best->bytes;
    cut.least_bytes += best->least_bytes;
    part.place = std::move(best->place);
  }
  return cut;
}

// The dims that some shard ends within, bit by bit.
uint32_t DimsThatAreCut(const TensorSpec& source, const TensorSpec& destination) {
  uint32_t dims = 0;
  for (int dim = 0; dim < source.rank(); ++dim) {
    const bool is_cut = DimIntervals(source, dim).size() > 1 || DimIntervals(destination, dim).size() > 1;
    if (is_cut) dims |= uint32_t{1} << dim;
  }
  return dims;
}

}  // namespace

std::vector<NarrowedPart> PartsToNarrow(const TensorSpec& source, const TensorSpec& destination) {
  const Shape start(source.shape.size(), 0);
  const NarrowedPart whole = {source, destination, start, start, std::nullopt};
  std::optional<Cut> best = CutAlongDims(whole, 0);
  if (!best.has_value()) return {whole};
  // Cut along all dims the bound is reached. It may be with fewer parts.
  const uint32_t all = DimsThatAreCut(source, destination);
  const auto try_dims = [&](uint32_t dims) {
    if (best->bytes == best->least_bytes) return;
    std::optional<Cut> cut = CutAlongDims(whole, dims);
    if (cut.has_value() && cut->bytes < best->bytes) best = std::move(cut);
  };
  for (int count = 1; count <= kMostDimsTried; ++count) {
    for (uint32_t dims = all; dims > 0; dims = (dims - 1) & all) {
      if (std::popcount(dims) == count) try_dims(dims);
    }
  }
  if (std::popcount(all) > kMostDimsTried) try_dims(all);
  return std::move(best->parts);
}

}  // namespace tessera
