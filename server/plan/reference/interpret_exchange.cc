#include "server/plan/reference/interpret_exchange.h"

#include <algorithm>
#include <optional>

#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "server/plan/reference/interpret_local.h"

namespace tessera {
namespace {

std::vector<int64_t> ShardsAt(const TensorSpec& spec, const Position& position) {
  std::vector<int64_t> shards;
  for (int d = 0; d < spec.rank(); ++d) shards.push_back(ShardIndex(spec, d, position));
  return shards;
}

// The entry of a dim in which an element of a destination's shard lies.
const OverlayEntry& EntryAt(const DimOverlay& dim, int64_t shard, int64_t at) {
  const auto found = std::find_if(dim.entries.begin(), dim.entries.end(), [&](const OverlayEntry& entry) {
    return entry.destination_shard == shard && entry.destination_offset <= at &&
           at < entry.destination_offset + entry.size;
  });
  TESSERA_CHECK(found != dim.entries.end());
  return *found;
}

}  // namespace

NaiveExchange::NaiveExchange(const Exchange& exchange) : exchange_(exchange) {
  const TensorSpec& from = exchange.source;
  const TensorSpec& to = exchange.destination;
  for (size_t j = 0; HaveSameArrangement(from.mesh, to.mesh) && j < to.placements.size(); ++j) {
    if (from.placements[j].is_partial() && to.placements[j].is_partial()) carried_dims_.push_back(j);
  }
  for (int64_t flat = 0; flat < to.mesh.size(); ++flat) wanting_[WantedAt(flat)].push_back(flat);
}

NaiveExchange::Key NaiveExchange::CarriedAt(const Mesh& mesh, int64_t flat) const {
  const Position position = mesh.PositionAt(flat);
  Key carried;
  for (const size_t j : carried_dims_) carried.push_back(position[j]);
  return carried;
}

NaiveExchange::Key NaiveExchange::WantedAt(int64_t destination) const {
  const Mesh& mesh = exchange_.destination.mesh;
  Key wanted = ShardsAt(exchange_.destination, mesh.PositionAt(destination));
  for (const int64_t coordinate : CarriedAt(mesh, destination)) wanted.push_back(coordinate);
  return wanted;
}

const NaiveExchange::Holders& NaiveExchange::HoldersOf(const Key& source_shards, int64_t destination) const {
  const TensorSpec& from = exchange_.source;
  const Key carried = CarriedAt(exchange_.destination.mesh, destination);
  Key key = source_shards;
  key.insert(key.end(), carried.begin(), carried.end());
  const auto [at, is_new] = holders_.try_emplace(key);
  if (!is_new) return at->second;
  std::map<Key, std::vector<int64_t>> by_term;
  for (int64_t flat = 0; flat < from.mesh.size(); ++flat) {
    const Position position = from.mesh.PositionAt(flat);
    if (ShardsAt(from, position) != source_shards || CarriedAt(from.mesh, flat) != carried) continue;
    Key term;
    for (size_t j = 0; j < position.size(); ++j) {
      if (from.placements[j].is_partial()) term.push_back(position[j]);
    }
    by_term[term].push_back(flat);
  }
  for (auto& [term, positions] : by_term) at->second.push_back(std::move(positions));
  return at->second;
}

void NaiveExchange::ForEachElement(int64_t destination, absl::FunctionRef<void(const Element&)> visit) const {
  const TensorSpec& to = exchange_.destination;
  const Position position = to.mesh.PositionAt(destination);
  const std::vector<int64_t> shards = ShardsAt(to, position);
  const std::optional<int64_t> own = exchange_.source.mesh.FindWorker(to.mesh.WorkerAt(position));
  Element element;
  ForEachIndex(BoxShape(LocalBox(to, position)), [&](const Shape& at) {
    element.at = at;
    element.source_at = at;
    Key source_shards;
    for (size_t d = 0; d < at.size(); ++d) {
      const DimOverlay& dim = exchange_.dims[d];
      const OverlayEntry& entry = EntryAt(dim, shards[d], at[d]);
      source_shards.push_back(entry.source_shard);
      element.source_at[d] = entry.source_offset + dim.source_step * (at[d] - entry.destination_offset);
    }
    element.terms.clear();
    for (const std::vector<int64_t>& replicas : HoldersOf(source_shards, destination)) {
      const bool is_own = own.has_value() && std::find(replicas.begin(), replicas.end(), *own) != replicas.end();
      element.terms.push_back(is_own ? *own : replicas[0]);
    }
    visit(element);
  });
}

std::pair<int64_t, int64_t> NaiveExchange::CountTransfers(int64_t destination, const Element& element) const {
  const std::vector<int64_t>& wanting = wanting_.at(WantedAt(destination));
  if (wanting[0] != destination) return {0, 0};
  // Each term has as many replicas as the others, in the same shards.
  const Key source_shards = ShardsAt(exchange_.source, exchange_.source.mesh.PositionAt(element.terms[0]));
  bool has_term = false;
  for (const int64_t position : wanting) {
    const WorkerIndex worker = exchange_.destination.mesh.workers()[static_cast<size_t>(position)];
    for (const std::vector<int64_t>& replicas : HoldersOf(source_shards, destination)) {
      for (const int64_t holder : replicas) {
        has_term = has_term || exchange_.source.mesh.workers()[static_cast<size_t>(holder)] == worker;
      }
    }
  }
  return {static_cast<int64_t>(element.terms.size()) - (has_term ? 1 : 0), static_cast<int64_t>(wanting.size()) - 1};
}

}  // namespace tessera
