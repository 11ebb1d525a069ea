#include "server/planner/overlay.h"

#include <algorithm>
#include <utility>

#include "schemas/types/bounds.h"
#include "schemas/types/divide.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/movement/same_shards.h"

namespace tessera {
namespace {

// A shard of the source in the destination's indexes.
struct MappedShard {
  Interval interval;
  int32_t shard = 0;
  int64_t source_start = 0;
};

// In increasing order of destination indexes; empty ones left out.
std::vector<MappedShard> MapSourceShards(const TensorSpec& source, int dim, int64_t extent, int64_t start,
                                         int64_t step) {
  const std::vector<Interval> intervals = DimIntervals(source, dim);
  std::vector<MappedShard> mapped;
  mapped.reserve(intervals.size());
  for (size_t i = 0; i < intervals.size(); ++i) {
    const Interval& shard = intervals[i];
    if (shard.empty()) continue;
    Interval in;
    if (step > 0) {
      in = {CeilDivide(shard.start - start, step), CeilDivide(shard.stop - start, step)};
    } else {
      in = {CeilDivide(start - shard.stop + 1, -step), CeilDivide(start - shard.start + 1, -step)};
    }
    in = {std::clamp<int64_t>(in.start, 0, extent), std::clamp<int64_t>(in.stop, 0, extent)};
    if (!in.empty()) mapped.push_back({in, static_cast<int32_t>(i), shard.start});
  }
  if (step < 0) std::reverse(mapped.begin(), mapped.end());
  return mapped;
}

DimOverlay MakeOverlay(const TensorSpec& source, const TensorSpec& destination, int dim, int64_t start, int64_t step) {
  DimOverlay overlay;
  overlay.source_step = step;
  const int64_t extent = destination.shape[static_cast<size_t>(dim)];
  const std::vector<MappedShard> from = MapSourceShards(source, dim, extent, start, step);
  const std::vector<Interval> to = DimIntervals(destination, dim);
  overlay.entries.reserve(from.size() + to.size());
  size_t f = 0;
  for (size_t t = 0; t < to.size(); ++t) {
    while (f < from.size()) {
      const Interval both = Intersect(from[f].interval, to[t]);
      if (!both.empty()) {
        overlay.entries.push_back({both.start, both.size(), from[f].shard, static_cast<int32_t>(t),
                                   start + step * both.start - from[f].source_start, both.start - to[t].start});
      }
      if (from[f].interval.stop > to[t].stop) break;
      ++f;
    }
  }
  overlay.entries.shrink_to_fit();
  return overlay;
}

// Whether every entry is a whole shard of both sides.
bool MovesWholeShards(const Exchange& exchange) {
  for (size_t d = 0; d < exchange.dims.size(); ++d) {
    const std::vector<Interval> from = DimIntervals(exchange.source, static_cast<int>(d));
    const std::vector<Interval> to = DimIntervals(exchange.destination, static_cast<int>(d));
    for (const OverlayEntry& entry : exchange.dims[d].entries) {
      if (entry.size != from[static_cast<size_t>(entry.source_shard)].size() ||
          entry.size != to[static_cast<size_t>(entry.destination_shard)].size()) {
        return false;
      }
    }
  }
  return true;
}

Collective NameOfMove(const Exchange& exchange) {
  const TensorSpec& from = exchange.source;
  const TensorSpec& to = exchange.destination;
  if (!HaveSameArrangement(from.mesh, to.mesh)) {
    if (!MovesWholeShards(exchange)) return Collective::kExchange;
    return CountReplicas(to) > CountReplicas(from) ? Collective::kBroadcast : Collective::kPermute;
  }
  int gathered = 0;
  int sliced = 0;
  int swapped = 0;
  for (size_t j = 0; j < from.placements.size(); ++j) {
    const Placement& a = from.placements[j];
    const Placement& b = to.placements[j];
    if (a == b || from.mesh.shape()[j] == 1) continue;
    if (a.is_shard() && b.is_shard()) ++swapped;
    if (a.is_shard() && !b.is_shard()) ++gathered;
    if (!a.is_shard() && b.is_shard()) ++sliced;
  }
  if (gathered > 0 && sliced + swapped == 0) return Collective::kAllGather;
  if (sliced > 0 && gathered + swapped == 0) return Collective::kSlice;
  if (MovesWholeShards(exchange) && CountReplicas(from) == CountReplicas(to)) return Collective::kPermute;
  if (swapped > 0 && gathered + sliced == 0) return Collective::kAllToAll;
  return Collective::kExchange;
}

bool IsSliced(absl::Span<const int64_t> start, absl::Span<const int64_t> step, const TensorSpec& source,
              const TensorSpec& destination) {
  if (source.shape != destination.shape) return true;
  return std::any_of(start.begin(), start.end(), [](int64_t v) { return v != 0; }) ||
         std::any_of(step.begin(), step.end(), [](int64_t v) { return v != 1; });
}

absl::Status Validate(const TensorSpec& source, const TensorSpec& destination, absl::Span<const int64_t> start) {
  if (start.empty()) return ValidateRedistribute(WithDType(source, destination.dtype), destination);
  if (source.rank() != destination.rank() || start.size() != source.shape.size()) {
    return absl::InvalidArgumentError(
        StrCat("slice: ranks differ: from ", ToText(source), " to ", ToText(destination)));
  }
  TensorSpec sliced = WithDType(source, destination.dtype);
  sliced.shape = destination.shape;
  return ValidateRedistribute(sliced, destination);
}

}  // namespace

absl::StatusOr<std::vector<NamedExchange>> MakeExchanges(const TensorSpec& source, const TensorSpec& destination,
                                                         absl::Span<const int64_t> start,
                                                         absl::Span<const int64_t> step) {
  TESSERA_RETURN_IF_ERROR(Validate(source, destination, start));
  Exchange exchange;
  exchange.source = source;
  exchange.destination = destination;
  for (int d = 0; d < source.rank(); ++d) {
    const size_t i = static_cast<size_t>(d);
    exchange.dims.push_back(
        MakeOverlay(source, destination, d, start.empty() ? 0 : start[i], step.empty() ? 1 : step[i]));
  }
  std::vector<NamedExchange> exchanges;
  if (PendingTerms(source, destination) == 1) {
    const Collective name = IsSliced(start, step, source, destination) ? Collective::kExchange : NameOfMove(exchange);
    exchanges.push_back({std::move(exchange), name});
    return exchanges;
  }
  exchange.role = ExchangeRole::kReduce;
  exchange.reduce_op = source.partial_op();
  exchanges.push_back({exchange, Collective::kReduceScatter});
  if (CountReplicas(destination) > 1) {
    exchange.role = ExchangeRole::kGatherReduced;
    exchange.reduce_op = ReduceOp::kSum;
    exchanges.push_back({std::move(exchange), Collective::kAllGather});
  }
  return exchanges;
}

}  // namespace tessera
