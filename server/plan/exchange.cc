#include "server/plan/exchange.h"

#include <algorithm>
#include <optional>

#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"

namespace tessera {
namespace {

// Writes the row-major digits of `index` to the coordinates `dims`.
void Decode(int64_t index, absl::Span<const int> dims, absl::Span<const int64_t> mesh_shape, Position& position) {
  for (size_t i = dims.size(); i-- > 0;) {
    const int64_t size = mesh_shape[static_cast<size_t>(dims[i])];
    position[static_cast<size_t>(dims[i])] = index % size;
    index /= size;
  }
}

// Visits every position that differs from `position` on `dims` only, in row-major order.
template <typename Visitor>
void VisitFree(const Mesh& mesh, absl::Span<const int> dims, Position& position, const Visitor& visitor) {
  int64_t count = 1;
  for (const int dim : dims) count *= mesh.shape()[static_cast<size_t>(dim)];
  for (int64_t i = 0; i < count; ++i) {
    Decode(i, dims, mesh.shape(), position);
    visitor(position);
  }
}

}  // namespace

bool SamePositions(const Mesh& a, const Mesh& b) {
  return a == b || (a.shape() == b.shape() && a.workers() == b.workers());
}

ExchangeWalk::ExchangeWalk(const Exchange& exchange) : exchange_(exchange) {
  const TensorSpec& source = exchange.source;
  const TensorSpec& destination = exchange.destination;
  same_mesh_ = SamePositions(source.mesh, destination.mesh);
  for (size_t j = 0; j < source.placements.size(); ++j) {
    const bool pending = source.placements[j].is_partial() && !(same_mesh_ && destination.placements[j].is_partial());
    if (pending) pending_dims_.push_back(static_cast<int>(j));
    if (pending && exchange.role == ExchangeRole::kReduce) term_count_ *= source.mesh.shape()[j];
    if (!same_mesh_) continue;
    MeshDimRule rule;
    rule.size = source.mesh.shape()[j];
    rule.source_shards = source.placements[j].is_shard();
    rule.destination_shards = destination.placements[j].is_shard();
    rule.destination_replicates = destination.placements[j].is_replicate();
    rule.pending = pending;
    rule.leveled = std::find(exchange.leveled_dims.begin(), exchange.leveled_dims.end(), static_cast<int>(j)) !=
                   exchange.leveled_dims.end();
    rules_.push_back(rule);
  }
  for (int d = 0; d < destination.rank(); ++d) {
    source_mesh_dims_.push_back(ShardingMeshDims(source, d));
    destination_mesh_dims_.push_back(ShardingMeshDims(destination, d));
  }
}

absl::InlinedVector<std::pair<int, int>, 6> ExchangeWalk::RangesOf(absl::Span<const int64_t> position) const {
  absl::InlinedVector<std::pair<int, int>, 6> ranges;
  for (size_t d = 0; d < exchange_.dims.size(); ++d) {
    const std::vector<OverlayEntry>& entries = exchange_.dims[d].entries;
    const int64_t shard = ShardIndex(exchange_.destination, static_cast<int>(d), position);
    const auto first = std::partition_point(entries.begin(), entries.end(),
                                            [shard](const OverlayEntry& e) { return e.destination_shard < shard; });
    const auto last = std::partition_point(first, entries.end(),
                                           [shard](const OverlayEntry& e) { return e.destination_shard == shard; });
    ranges.emplace_back(static_cast<int>(first - entries.begin()), static_cast<int>(last - entries.begin()));
  }
  return ranges;
}

// Row-major over the entries in `ranges`.
template <typename Visitor>
void ExchangeWalk::VisitCells(absl::Span<const std::pair<int, int>> ranges, const Visitor& visitor) const {
  Cell cell(ranges.size());
  absl::InlinedVector<int, 6> at(ranges.size());
  for (size_t d = 0; d < ranges.size(); ++d) {
    if (ranges[d].first >= ranges[d].second) return;
    at[d] = ranges[d].first;
    cell[d] = &exchange_.dims[d].entries[static_cast<size_t>(at[d])];
  }
  while (true) {
    visitor(cell);
    size_t d = ranges.size();
    while (d > 0) {
      --d;
      if (++at[d] < ranges[d].second) break;
      at[d] = ranges[d].first;
      cell[d] = &exchange_.dims[d].entries[static_cast<size_t>(at[d])];
      if (d == 0) return;
    }
    if (ranges.empty()) return;
    cell[d] = &exchange_.dims[d].entries[static_cast<size_t>(at[d])];
  }
}

void ExchangeWalk::SetSourceCoordinates(const Cell& cell, Position& position) const {
  for (size_t d = 0; d < cell.size(); ++d) {
    Decode(cell[d]->source_shard, source_mesh_dims_[d], exchange_.source.mesh.shape(), position);
  }
}

void ExchangeWalk::SetDestinationCoordinates(const Cell& cell, Position& position) const {
  for (size_t d = 0; d < cell.size(); ++d) {
    Decode(cell[d]->destination_shard, destination_mesh_dims_[d], exchange_.destination.mesh.shape(), position);
  }
}

void ExchangeWalk::SetPartCoordinates(const Cell& cell, Position& position) const {
  int64_t part = 0;
  for (const OverlayEntry* entry : cell) part += entry->part;
  Decode(part, exchange_.leveled_dims, exchange_.destination.mesh.shape(), position);
}

Position ExchangeWalk::ReducerOf(const Cell& cell, absl::Span<const int64_t> position) const {
  Position source(position.begin(), position.end());
  SetSourceCoordinates(cell, source);
  Position reducer(position.begin(), position.end());
  for (size_t j = 0; j < rules_.size(); ++j) {
    if (rules_[j].destination_replicates && rules_[j].source_shards) reducer[j] = source[j];
  }
  SetPartCoordinates(cell, reducer);
  return reducer;
}

absl::InlinedVector<TransferSource, 2> ExchangeWalk::SourcesOf(const Cell& cell,
                                                               absl::Span<const int64_t> position) const {
  absl::InlinedVector<TransferSource, 2> sources;
  const Mesh& mesh = exchange_.source.mesh;
  const auto add = [&sources, &mesh](const Position& at) {
    const int64_t flat = mesh.FlatPosition(at);
    sources.push_back({mesh.workers()[static_cast<size_t>(flat)], flat});
  };
  if (exchange_.role != ExchangeRole::kMove) {
    const Position reducer = ReducerOf(cell, position);
    const bool is_reducer = absl::Span<const int64_t>(reducer) == position;
    if (exchange_.role == ExchangeRole::kSpread) {
      if (!is_reducer) add(reducer);
      return sources;
    }
    if (!is_reducer) return sources;
  }
  Position source(position.begin(), position.end());
  SetSourceCoordinates(cell, source);
  if (exchange_.role == ExchangeRole::kMove) {
    add(source);
  } else {
    VisitFree(mesh, pending_dims_, source, add);
  }
  return sources;
}

std::vector<int64_t> ExchangeWalk::HoldersOf(const Cell& cell, int64_t term) const {
  const TensorSpec& source = exchange_.source;
  std::vector<int> free;
  for (size_t j = 0; j < source.placements.size(); ++j) {
    if (source.placements[j].is_replicate()) free.push_back(static_cast<int>(j));
  }
  Position position(source.placements.size(), 0);
  SetSourceCoordinates(cell, position);
  Decode(term, pending_dims_, source.mesh.shape(), position);
  std::vector<int64_t> holders;
  VisitFree(source.mesh, free, position,
            [&holders, &source](const Position& at) { holders.push_back(source.mesh.FlatPosition(at)); });
  return holders;
}

std::vector<int64_t> ExchangeWalk::DestinationsOf(const Cell& cell) const {
  const TensorSpec& destination = exchange_.destination;
  std::vector<int> free;
  for (size_t j = 0; j < destination.placements.size(); ++j) {
    if (!destination.placements[j].is_shard()) free.push_back(static_cast<int>(j));
  }
  Position position(destination.placements.size(), 0);
  SetDestinationCoordinates(cell, position);
  std::vector<int64_t> flats;
  VisitFree(destination.mesh, free, position,
            [&flats, &destination](const Position& at) { flats.push_back(destination.mesh.FlatPosition(at)); });
  return flats;
}

absl::InlinedVector<TransferSource, 2> ExchangeWalk::SourcesOnOtherMesh(const Cell& cell, int64_t flat_position) const {
  const std::vector<WorkerIndex>& from = exchange_.source.mesh.workers();
  const std::vector<WorkerIndex>& to = exchange_.destination.mesh.workers();
  const WorkerIndex self = to[static_cast<size_t>(flat_position)];
  absl::InlinedVector<TransferSource, 2> sources;
  // This worker's own copy of the term, or holder number `turn`.
  const auto take = [&](int64_t term, int64_t turn) {
    const std::vector<int64_t> holders = HoldersOf(cell, term);
    int64_t chosen = holders[static_cast<size_t>(turn % static_cast<int64_t>(holders.size()))];
    for (const int64_t holder : holders) {
      if (from[static_cast<size_t>(holder)] == self) chosen = holder;
    }
    sources.push_back({from[static_cast<size_t>(chosen)], chosen});
  };
  const std::vector<int64_t> destinations = DestinationsOf(cell);
  if (exchange_.role == ExchangeRole::kMove) {
    const auto at = std::find(destinations.begin(), destinations.end(), flat_position);
    take(0, at - destinations.begin());
    return sources;
  }
  int64_t terms = 1;
  for (const int dim : pending_dims_) terms *= exchange_.source.mesh.shape()[static_cast<size_t>(dim)];
  std::vector<bool> holds(from.size(), false);
  for (int64_t term = 0; term < terms; ++term) {
    for (const int64_t holder : HoldersOf(cell, term)) holds[static_cast<size_t>(holder)] = true;
  }
  std::vector<int64_t> candidates;
  for (const int64_t destination : destinations) {
    const std::optional<int64_t> flat = exchange_.source.mesh.FindWorker(to[static_cast<size_t>(destination)]);
    if (flat.has_value() && holds[static_cast<size_t>(*flat)]) candidates.push_back(destination);
  }
  if (candidates.empty()) candidates = destinations;
  int64_t part = 0;
  for (const OverlayEntry* entry : cell) part += entry->part;
  const int64_t reducer = candidates[static_cast<size_t>(part % static_cast<int64_t>(candidates.size()))];
  if (exchange_.role == ExchangeRole::kSpread) {
    if (reducer != flat_position) sources.push_back({to[static_cast<size_t>(reducer)], reducer});
  } else if (reducer == flat_position) {
    for (int64_t term = 0; term < terms; ++term) take(term, part);
  }
  return sources;
}

std::vector<Transfer> ExchangeWalk::TransfersTo(absl::Span<const int64_t> position) const {
  std::vector<Transfer> transfers;
  const int64_t flat = exchange_.destination.mesh.FlatPosition(position);
  VisitCells(RangesOf(position), [&](const Cell& cell) {
    absl::InlinedVector<TransferSource, 2> sources =
        same_mesh_ ? SourcesOf(cell, position) : SourcesOnOtherMesh(cell, flat);
    if (sources.empty()) return;
    Transfer& transfer = transfers.emplace_back();
    transfer.sources = std::move(sources);
    for (const OverlayEntry* entry : cell) {
      transfer.box.push_back({entry->start, entry->start + entry->size});
      transfer.destination_offset.push_back(entry->destination_offset);
      transfer.source_offset.push_back(exchange_.role == ExchangeRole::kSpread ? entry->destination_offset
                                                                               : entry->source_offset);
    }
  });
  return transfers;
}

void ExchangeWalk::VisitReceived(absl::Span<const int64_t> position,
                                 absl::FunctionRef<void(WorkerIndex, int64_t)> visit) const {
  const int64_t flat = exchange_.destination.mesh.FlatPosition(position);
  const WorkerIndex self = exchange_.destination.mesh.workers()[static_cast<size_t>(flat)];
  VisitCells(RangesOf(position), [&](const Cell& cell) {
    int64_t elements = 1;
    for (const OverlayEntry* entry : cell) elements *= entry->size;
    for (const TransferSource& source : same_mesh_ ? SourcesOf(cell, position) : SourcesOnOtherMesh(cell, flat)) {
      if (source.worker != self) visit(source.worker, elements);
    }
  });
}

// The cells whose source shards are those of `source_position`.
template <typename Visitor>
void ExchangeWalk::VisitCellsFrom(absl::Span<const int64_t> source_position, const Visitor& visitor) const {
  std::vector<std::vector<const OverlayEntry*>> held(exchange_.dims.size());
  for (size_t d = 0; d < held.size(); ++d) {
    const int64_t shard = ShardIndex(exchange_.source, static_cast<int>(d), source_position);
    for (const OverlayEntry& entry : exchange_.dims[d].entries) {
      if (entry.source_shard == shard) held[d].push_back(&entry);
    }
    if (held[d].empty()) return;
  }
  int64_t count = 1;
  for (const auto& entries : held) count *= static_cast<int64_t>(entries.size());
  Cell cell(held.size());
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i;
    for (size_t d = held.size(); d-- > 0;) {
      const int64_t size = static_cast<int64_t>(held[d].size());
      cell[d] = held[d][static_cast<size_t>(rest % size)];
      rest /= size;
    }
    visitor(cell);
  }
}

void ExchangeWalk::MarkReaders(const Cell& cell, absl::Span<const int64_t> source_position,
                               std::vector<bool>& readers) const {
  const Mesh& mesh = exchange_.destination.mesh;
  Position reader(source_position.begin(), source_position.end());
  SetDestinationCoordinates(cell, reader);
  std::vector<int> free;
  if (exchange_.role == ExchangeRole::kReduce) SetPartCoordinates(cell, reader);
  for (size_t j = 0; j < rules_.size(); ++j) {
    const MeshDimRule& rule = rules_[j];
    // Where the source replicates, a reader takes from its own coordinate; kMove carries kept Partials
    // in the same way.
    const bool own_coordinate = !rule.source_shards && !rule.pending;
    if (own_coordinate && reader[j] != source_position[j]) return;
    if (exchange_.role == ExchangeRole::kMove && rule.source_shards && !rule.destination_shards) {
      free.push_back(static_cast<int>(j));
    }
  }
  VisitFree(mesh, free, reader,
            [&readers, &mesh](const Position& at) { readers[static_cast<size_t>(mesh.FlatPosition(at))] = true; });
}

std::vector<int64_t> ExchangeWalk::ReadersOf(WorkerIndex worker) const {
  const Mesh& to = exchange_.destination.mesh;
  std::vector<bool> readers(static_cast<size_t>(to.size()), false);
  const std::optional<int64_t> own_destination = to.FindWorker(worker);
  const Mesh& from = exchange_.role == ExchangeRole::kSpread ? to : exchange_.source.mesh;
  const std::optional<int64_t> own_source = from.FindWorker(worker);
  if (!own_source.has_value()) return {};
  const Position position = from.PositionAt(*own_source);
  if (!same_mesh_) {
    for (int64_t flat = 0; flat < to.size(); ++flat) {
      VisitCells(RangesOf(to.PositionAt(flat)), [&](const Cell& cell) {
        for (const TransferSource& source : SourcesOnOtherMesh(cell, flat)) {
          if (source.worker == worker) readers[static_cast<size_t>(flat)] = true;
        }
      });
    }
  } else if (exchange_.role == ExchangeRole::kSpread) {
    std::vector<int> free;
    for (size_t j = 0; j < rules_.size(); ++j) {
      if (rules_[j].destination_replicates) free.push_back(static_cast<int>(j));
    }
    bool reduces = false;
    VisitCells(RangesOf(position),
               [&](const Cell& cell) { reduces = reduces || ReducerOf(cell, position) == position; });
    Position reader = position;
    if (reduces) {
      VisitFree(to, free, reader,
                [&readers, &to](const Position& at) { readers[static_cast<size_t>(to.FlatPosition(at))] = true; });
    }
  } else {
    VisitCellsFrom(position, [&](const Cell& cell) { MarkReaders(cell, position, readers); });
  }
  if (own_destination.has_value()) readers[static_cast<size_t>(*own_destination)] = false;
  std::vector<int64_t> flats;
  for (size_t flat = 0; flat < readers.size(); ++flat) {
    if (readers[flat]) flats.push_back(static_cast<int64_t>(flat));
  }
  return flats;
}

std::vector<Transfer> TransfersTo(const Exchange& exchange, absl::Span<const int64_t> position) {
  return ExchangeWalk(exchange).TransfersTo(position);
}

}  // namespace tessera
