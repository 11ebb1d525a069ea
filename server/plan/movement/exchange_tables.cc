#include "server/plan/movement/exchange_tables.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "schemas/types/layout.h"

namespace tessera {
namespace {

// The replicas at the destinations' own coordinates are taken as they are when the busiest gives at most this
// part more than an equal share.
constexpr int64_t kLevelTolerance = 20;

std::vector<int64_t> StridesOf(const Mesh& mesh) {
  std::vector<int64_t> strides(static_cast<size_t>(mesh.ndim()), 1);
  for (size_t j = strides.size(); j-- > 1;) strides[j - 1] = strides[j] * mesh.shape()[j];
  return strides;
}

// Sums of coordinate times stride over all coordinates of `dims`, in row-major order.
std::vector<int64_t> OffsetsOver(const Mesh& mesh, absl::Span<const int> dims, absl::Span<const int64_t> strides) {
  std::vector<int64_t> offsets = {0};
  for (const int dim : dims) {
    const size_t j = static_cast<size_t>(dim);
    std::vector<int64_t> longer;
    longer.reserve(offsets.size() * static_cast<size_t>(mesh.shape()[j]));
    for (const int64_t offset : offsets) {
      for (int64_t c = 0; c < mesh.shape()[j]; ++c) longer.push_back(offset + c * strides[j]);
    }
    offsets = std::move(longer);
  }
  return offsets;
}

// Row-major strides over some dims of a mesh; 0 for the others.
std::vector<int64_t> NumberStrides(const Mesh& mesh, absl::Span<const int> dims) {
  std::vector<int64_t> strides(static_cast<size_t>(mesh.ndim()), 0);
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    strides[static_cast<size_t>(dims[i])] = stride;
    stride *= mesh.shape()[static_cast<size_t>(dims[i])];
  }
  return strides;
}

int64_t NumberOf(absl::Span<const int64_t> position, absl::Span<const int64_t> strides) {
  int64_t number = 0;
  for (size_t j = 0; j < position.size(); ++j) number += position[j] * strides[j];
  return number;
}

bool IsSharedLevelly(int64_t busiest, int64_t share) { return busiest <= share + share / kLevelTolerance; }

int64_t ShareOf(int64_t total, int64_t givers) { return total / givers + (total % givers != 0 ? 1 : 0); }

}  // namespace

bool ExchangeTables::Take::operator<(const Take& other) const {
  return std::tie(cell, low, destination) < std::tie(other.cell, other.low, other.destination);
}

ExchangeTables::ExchangeTables(const Exchange& exchange)
    : exchange_(exchange), same_mesh_(HaveSameArrangement(exchange.source.mesh, exchange.destination.mesh)) {
  NumberSource();
  NumberDestination();
  IndexEntries();
  const bool by_host = exchange.hosts.several();
  const bool takes_itself = exchange.far_takers == FarTakers::kEach;
  if (exchange.role == ExchangeRole::kMove && takes_itself && ((same_mesh_ && !by_host) || replica_count() == 1)) {
    WeighMoves();
  }
}

void ExchangeTables::NumberSource() {
  const TensorSpec& source = exchange_.source;
  std::vector<int> family_dims;
  std::vector<int> term_dims;
  std::vector<int> replica_dims;
  for (int j = 0; j < source.mesh.ndim(); ++j) {
    const Placement& placement = source.placements[static_cast<size_t>(j)];
    const bool carried = same_mesh_ && exchange_.destination.placements[static_cast<size_t>(j)].is_partial();
    const bool pending = placement.is_partial() && !carried;
    (placement.is_replicate() ? replica_dims : pending ? term_dims : family_dims).push_back(j);
  }
  const std::vector<int64_t> strides = StridesOf(source.mesh);
  const std::vector<int64_t> family_strides = NumberStrides(source.mesh, family_dims);
  const std::vector<int64_t> term_strides = NumberStrides(source.mesh, term_dims);
  const std::vector<int64_t> replica_strides = NumberStrides(source.mesh, replica_dims);
  term_offsets_ = OffsetsOver(source.mesh, term_dims, strides);
  replica_offsets_ = OffsetsOver(source.mesh, replica_dims, strides);
  for (int d = 0; d < source.rank(); ++d) {
    const std::vector<int> dims = ShardingMeshDims(source, d);
    source_parts_.push_back(OffsetsOver(source.mesh, dims, strides));
    family_parts_.push_back(OffsetsOver(source.mesh, dims, family_strides));
  }
  holders_.reserve(static_cast<size_t>(source.mesh.size()));
  for (int64_t flat = 0; flat < source.mesh.size(); ++flat) {
    const Position position = source.mesh.PositionAt(flat);
    holders_.push_back({NumberOf(position, family_strides), NumberOf(position, term_strides),
                        NumberOf(position, replica_strides), flat});
  }
}

void ExchangeTables::NumberDestination() {
  const TensorSpec& source = exchange_.source;
  const TensorSpec& destination = exchange_.destination;
  std::vector<int> member_dims;
  std::vector<int> carried_dims;
  for (int j = 0; j < destination.mesh.ndim(); ++j) {
    const Placement& placement = destination.placements[static_cast<size_t>(j)];
    if (placement.is_shard()) continue;
    const bool carried = same_mesh_ && placement.is_partial() && source.placements[static_cast<size_t>(j)].is_partial();
    (carried ? carried_dims : member_dims).push_back(j);
  }
  const std::vector<int64_t> strides = StridesOf(destination.mesh);
  member_offsets_ = OffsetsOver(destination.mesh, member_dims, strides);
  for (int d = 0; d < destination.rank(); ++d) {
    destination_parts_.push_back(OffsetsOver(destination.mesh, ShardingMeshDims(destination, d), strides));
  }
  std::vector<int64_t> family_strides(strides.size(), 0);
  if (!carried_dims.empty()) {
    std::vector<int> family_dims;
    for (int j = 0; j < source.mesh.ndim(); ++j) {
      const bool is_carried = std::find(carried_dims.begin(), carried_dims.end(), j) != carried_dims.end();
      if (is_carried || source.placements[static_cast<size_t>(j)].is_shard()) family_dims.push_back(j);
    }
    family_strides = NumberStrides(source.mesh, family_dims);
  }
  for (int64_t flat = 0; flat < destination.mesh.size(); ++flat) {
    const Position position = destination.mesh.PositionAt(flat);
    std::pair<int64_t, int64_t> carried = {0, 0};
    for (const int dim : carried_dims) {
      const size_t j = static_cast<size_t>(dim);
      carried.first += position[j] * family_strides[j];
      carried.second += position[j] * strides[j];
    }
    int64_t group = flat;
    for (const int dim : member_dims) group -= position[static_cast<size_t>(dim)] * strides[static_cast<size_t>(dim)];
    carried_.push_back(carried);
    groups_.push_back(group);
    const std::optional<int64_t> held = source.mesh.FindWorker(destination.mesh.workers()[static_cast<size_t>(flat)]);
    destination_holders_.push_back(held.has_value() ? HolderAt(*held) : Holder());
  }
}

void ExchangeTables::IndexEntries() {
  const size_t rank = exchange_.dims.size();
  entries_of_source_shard_.resize(rank);
  entries_of_destination_shard_.resize(rank);
  cell_strides_.assign(rank, 1);
  for (size_t d = 0; d < rank; ++d) {
    const std::vector<OverlayEntry>& entries = exchange_.dims[d].entries;
    entries_of_source_shard_[d].resize(source_parts_[d].size());
    entries_of_destination_shard_[d].resize(destination_parts_[d].size(), {0, 0});
    for (size_t i = 0; i < entries.size(); ++i) {
      entries_of_source_shard_[d][static_cast<size_t>(entries[i].source_shard)].push_back(static_cast<int>(i));
      auto& range = entries_of_destination_shard_[d][static_cast<size_t>(entries[i].destination_shard)];
      if (range.second == 0) range.first = static_cast<int>(i);
      range.second = static_cast<int>(i) + 1;
    }
  }
  for (size_t d = rank; d-- > 1;) {
    cell_strides_[d - 1] = cell_strides_[d] * static_cast<int64_t>(exchange_.dims[d].entries.size());
  }
}

int64_t ExchangeTables::GroupOf(int64_t destination_flat) const {
  return groups_[static_cast<size_t>(destination_flat)];
}

void ExchangeTables::FillCell(absl::Span<const int> at, const std::pair<int64_t, int64_t>& carried,
                              ExchangeCell& cell) const {
  cell.number = 0;
  cell.elements = 1;
  cell.family = carried.first;
  cell.source = carried.second;
  cell.destination = carried.second;
  for (size_t d = 0; d < at.size(); ++d) {
    const OverlayEntry& entry = exchange_.dims[d].entries[static_cast<size_t>(at[d])];
    cell.entries[d] = &entry;
    cell.shape[d] = entry.size;
    cell.number += cell_strides_[d] * at[d];
    cell.elements *= entry.size;
    cell.family += family_parts_[d][static_cast<size_t>(entry.source_shard)];
    cell.source += source_parts_[d][static_cast<size_t>(entry.source_shard)];
    cell.destination += destination_parts_[d][static_cast<size_t>(entry.destination_shard)];
  }
}

// Calls `visit(at)` for all lists of one of `choices[d]` (of `counts[d]`) per dim, in row-major order.
template <typename Choice, typename Visitor>
void ExchangeTables::VisitProduct(absl::Span<const int> counts, const Choice& choice, const Visitor& visit) const {
  absl::InlinedVector<int, 6> number(counts.size(), 0);
  absl::InlinedVector<int, 6> at(counts.size(), 0);
  for (size_t d = 0; d < counts.size(); ++d) {
    if (counts[d] == 0) return;
    at[d] = choice(d, 0);
  }
  while (true) {
    visit(at);
    size_t d = counts.size();
    for (; d > 0; --d) {
      if (++number[d - 1] < counts[d - 1]) break;
      number[d - 1] = 0;
      at[d - 1] = choice(d - 1, 0);
    }
    if (d == 0) return;
    at[d - 1] = choice(d - 1, number[d - 1]);
  }
}

void ExchangeTables::VisitWanted(int64_t destination_flat, absl::FunctionRef<void(const ExchangeCell&)> visit) const {
  const size_t rank = exchange_.dims.size();
  const Position position = exchange_.destination.mesh.PositionAt(destination_flat);
  absl::InlinedVector<int, 6> counts(rank);
  absl::InlinedVector<int, 6> firsts(rank);
  for (size_t d = 0; d < rank; ++d) {
    const int64_t shard = ShardIndex(exchange_.destination, static_cast<int>(d), position);
    const auto [first, last] = entries_of_destination_shard_[d][static_cast<size_t>(shard)];
    firsts[d] = first;
    counts[d] = last - first;
  }
  ExchangeCell cell;
  cell.entries.resize(rank);
  cell.shape.resize(rank);
  const std::pair<int64_t, int64_t>& carried = carried_[static_cast<size_t>(destination_flat)];
  VisitProduct(
      counts, [&firsts](size_t d, int i) { return firsts[d] + i; },
      [&](absl::Span<const int> at) {
        FillCell(at, carried, cell);
        visit(cell);
      });
}

void ExchangeTables::VisitHeld(int64_t source_flat, absl::FunctionRef<void(const ExchangeCell&)> visit) const {
  const size_t rank = exchange_.dims.size();
  const Position position = exchange_.source.mesh.PositionAt(source_flat);
  absl::InlinedVector<int, 6> counts(rank);
  absl::InlinedVector<const std::vector<int>*, 6> lists(rank);
  for (size_t d = 0; d < rank; ++d) {
    const int64_t shard = ShardIndex(exchange_.source, static_cast<int>(d), position);
    lists[d] = &entries_of_source_shard_[d][static_cast<size_t>(shard)];
    counts[d] = static_cast<int>(lists[d]->size());
  }
  ExchangeCell cell;
  cell.entries.resize(rank);
  cell.shape.resize(rank);
  const std::pair<int64_t, int64_t> carried =
      same_mesh_ ? carried_[static_cast<size_t>(source_flat)] : std::pair<int64_t, int64_t>(0, 0);
  VisitProduct(
      counts, [&lists](size_t d, int i) { return (*lists[d])[static_cast<size_t>(i)]; },
      [&](absl::Span<const int> at) {
        FillCell(at, carried, cell);
        visit(cell);
      });
}

int64_t ExchangeTables::CommonElements(int64_t source_flat, int64_t destination_flat) const {
  const Position source = exchange_.source.mesh.PositionAt(source_flat);
  const Position destination = exchange_.destination.mesh.PositionAt(destination_flat);
  int64_t elements = 1;
  for (size_t d = 0; d < exchange_.dims.size(); ++d) {
    const int64_t from = ShardIndex(exchange_.source, static_cast<int>(d), source);
    const int64_t to = ShardIndex(exchange_.destination, static_cast<int>(d), destination);
    const auto [first, last] = entries_of_destination_shard_[d][static_cast<size_t>(to)];
    const std::vector<int>& held = entries_of_source_shard_[d][static_cast<size_t>(from)];
    int64_t common = 0;
    for (auto at = std::lower_bound(held.begin(), held.end(), first); at != held.end() && *at < last; ++at) {
      common += exchange_.dims[d].entries[static_cast<size_t>(*at)].size;
    }
    elements *= common;
  }
  return elements;
}

const std::vector<OwnedPiece>& ExchangeTables::PiecesOf(int64_t group) const {
  const auto found = pieces_.find(group);
  if (found != pieces_.end()) return *found->second;
  // Cells with the same candidates share a line: those of one family, or all of which no member has a term and that
  // the same members should reduce.
  struct Candidates {
    std::vector<int64_t> members;
    int64_t elements = 0;
    SharedLine line;
    int64_t start = 0;
  };
  std::vector<Candidates> candidates;
  absl::flat_hash_map<int64_t, size_t> of_family;
  std::map<std::vector<int64_t>, size_t> of_members;  // where none has a term
  absl::flat_hash_map<int64_t, std::vector<int64_t>> with_term;
  std::vector<int64_t> all;
  for (const int64_t offset : member_offsets_) {
    all.push_back(group + offset);
    const Holder& holder = HolderOfDestination(group + offset);
    if (holder.family >= 0) with_term[holder.family].push_back(group + offset);
  }
  const auto candidates_of = [&](const ExchangeCell& cell) -> Candidates& {
    const auto [at, is_new] = of_family.emplace(cell.family, candidates.size());
    if (!is_new) return candidates[at->second];
    const auto own = with_term.find(cell.family);
    const bool is_own = own != with_term.end() && !has_relays();
    std::vector<int64_t> members =
        has_relays() ? FarMembers(cell, all) : OnNearestHosts(cell, is_own ? own->second : all);
    if (!is_own) at->second = of_members.emplace(members, candidates.size()).first->second;
    if (at->second == candidates.size()) candidates.push_back({std::move(members), 0, {}, 0});
    return candidates[at->second];
  };
  VisitWanted(group, [&](const ExchangeCell& cell) { candidates_of(cell).elements += cell.elements; });
  for (Candidates& each : candidates) {
    if (!each.members.empty()) each.line = SharedLine(each.members, each.elements);
  }
  auto pieces = std::make_unique<std::vector<OwnedPiece>>();
  VisitWanted(group, [&](const ExchangeCell& cell) {
    Candidates& reducers = candidates_of(cell);
    if (reducers.members.empty()) return;
    reducers.line.Visit(reducers.start, cell.shape, 0, cell.elements, [&](int64_t reducer, int64_t low, int64_t high) {
      pieces->push_back({cell, low, high, reducer});
    });
    reducers.start += cell.elements;
  });
  return *pieces_.emplace(group, std::move(pieces)).first->second;
}

void ExchangeTables::VisitPieces(const ExchangeCell& cell, absl::FunctionRef<void(const OwnedPiece&)> visit) const {
  if (member_offsets_.size() == 1 && !has_relays()) return visit({cell, 0, cell.elements, cell.destination});
  const std::vector<OwnedPiece>& pieces = PiecesOf(cell.destination);
  auto piece = std::lower_bound(pieces.begin(), pieces.end(), cell.number,
                                [](const OwnedPiece& each, int64_t number) { return each.cell.number < number; });
  for (; piece != pieces.end() && piece->cell.number == cell.number; ++piece) visit(*piece);
}

ExchangeTables::Sharing ExchangeTables::MakeSharing(const ExchangeCell& cell) const {
  Sharing sharing;
  const auto add = [&](const ExchangeCell& held, int64_t low, int64_t high, int64_t destination) {
    sharing.takes.push_back({held.number, low, destination, 0, 0, high - low});
  };
  VisitHeld(cell.source, [&](const ExchangeCell& held) {
    if (exchange_.role != ExchangeRole::kMove) {
      VisitPieces(held, [&](const OwnedPiece& piece) { add(held, piece.low, piece.high, piece.owner); });
      return;
    }
    for (const int64_t offset : member_offsets_) {
      const int64_t destination = held.destination + offset;
      if (HolderOfDestination(destination).family == held.family) continue;
      VisitTaken(held, 0, held.elements, kMoved, destination,
                 [&](int64_t low, int64_t high) { add(held, low, high, destination); });
    }
  });
  if (!std::is_sorted(sharing.takes.begin(), sharing.takes.end())) {
    std::sort(sharing.takes.begin(), sharing.takes.end());
  }
  if (exchange_.hosts.several()) {
    exchange_.role == ExchangeRole::kMove ? ShareByHost(cell, sharing) : SumByHost(cell, sharing);
    return sharing;
  }
  int64_t length = 0;
  std::vector<int64_t> own_loads(replica_offsets_.size(), 0);
  for (Take& take : sharing.takes) {
    take.start = length;
    length += take.length;
    if (same_mesh_) own_loads[static_cast<size_t>(HolderOfDestination(take.destination).replica)] += take.length;
  }
  std::vector<int64_t> replicas(replica_offsets_.size());
  std::iota(replicas.begin(), replicas.end(), int64_t{0});
  const int64_t busiest = *std::max_element(own_loads.begin(), own_loads.end());
  sharing.own_coordinates = same_mesh_ && IsSharedLevelly(busiest, ShareOf(length, replica_count()));
  sharing.lines.emplace_back(std::move(replicas), length);
  return sharing;
}

int64_t ExchangeTables::SourceOf(const ExchangeCell& cell, int64_t term, int64_t replica, int64_t reducer) const {
  const Holder& own = HolderOfDestination(reducer);
  if (own.family == cell.family && own.term == term) return own.flat;
  return cell.source + term_offsets_[static_cast<size_t>(term)] + replica_offsets_[static_cast<size_t>(replica)];
}

const ExchangeTables::Sharing& ExchangeTables::SharingOf(const ExchangeCell& cell) const {
  const auto found = sharings_.find(cell.family);
  if (found != sharings_.end()) return *found->second;
  return *sharings_.emplace(cell.family, std::make_unique<Sharing>(MakeSharing(cell))).first->second;
}

void ExchangeTables::VisitParts(const ExchangeCell& cell, int64_t low, int64_t high, int64_t destination,
                                absl::FunctionRef<void(int64_t, int64_t, int64_t)> visit) const {
  if (replica_count() == 1) return visit(0, low, high);
  if (!given_elements_.empty()) return visit(HolderOfDestination(destination).replica, low, high);
  const Sharing& sharing = SharingOf(cell);
  if (sharing.own_coordinates) return visit(HolderOfDestination(destination).replica, low, high);
  const auto at = std::lower_bound(sharing.takes.begin(), sharing.takes.end(), Take{cell.number, low, destination, 0});
  sharing.lines[at->line].Visit(at->start, cell.shape, low, high, visit);
}

// With each destination taking from the replica at its own coordinates, a holder gives a box that is a product
// over the tensor dims, to every coordinate of the dims that it shards and the destination replicates.
void ExchangeTables::WeighMoves() {
  const TensorSpec& source = exchange_.source;
  const TensorSpec& destination = exchange_.destination;
  const auto is_own = [&](size_t j) { return same_mesh_ && source.placements[j].is_replicate(); };
  std::vector<std::vector<int>> own_dims(exchange_.dims.size());  // sharded by the destination, by tensor dim
  std::vector<std::vector<int64_t>> weights(exchange_.dims.size());
  for (size_t d = 0; d < exchange_.dims.size(); ++d) {
    const std::vector<int> sharding = ShardingMeshDims(destination, static_cast<int>(d));
    for (const int j : sharding) {
      if (is_own(static_cast<size_t>(j))) own_dims[d].push_back(j);
    }
    const std::vector<int64_t> digits =
        OffsetsOver(destination.mesh, sharding, NumberStrides(destination.mesh, own_dims[d]));
    int64_t count = 1;
    for (const int j : own_dims[d]) count *= destination.mesh.shape()[static_cast<size_t>(j)];
    weights[d].resize(source_parts_[d].size() * static_cast<size_t>(count), 0);
    for (const OverlayEntry& entry : exchange_.dims[d].entries) {
      weights[d]
             [static_cast<size_t>(entry.source_shard * count + digits[static_cast<size_t>(entry.destination_shard)])] +=
          entry.size;
    }
  }
  int64_t copies = 1;
  for (size_t j = 0; j < destination.placements.size(); ++j) {
    const bool is_member = !destination.placements[j].is_shard() &&
                           !(same_mesh_ && destination.placements[j].is_partial() && source.placements[j].is_partial());
    if (is_member && !is_own(j)) copies *= destination.mesh.shape()[j];
  }
  absl::flat_hash_map<int64_t, int64_t> totals;
  for (const Holder& holder : holders_) {
    const Position position = source.mesh.PositionAt(holder.flat);
    int64_t elements = copies;
    for (size_t d = 0; d < weights.size(); ++d) {
      int64_t at = ShardIndex(source, static_cast<int>(d), position);
      for (const int j : own_dims[d]) {
        at = at * source.mesh.shape()[static_cast<size_t>(j)] + position[static_cast<size_t>(j)];
      }
      elements *= weights[d][static_cast<size_t>(at)];
    }
    const std::optional<int64_t> own =
        destination.mesh.FindWorker(source.mesh.workers()[static_cast<size_t>(holder.flat)]);
    if (own.has_value()) elements -= CommonElements(holder.flat, *own);
    given_elements_.push_back(elements);
    totals[holder.family] += elements;
  }
  if (replica_count() == 1) return;
  int64_t share = 0;
  for (const auto& [family, total] : totals) share = std::max(share, ShareOf(total, replica_count()));
  if (!IsSharedLevelly(*std::max_element(given_elements_.begin(), given_elements_.end()), share))
    given_elements_.clear();
}

}  // namespace tessera
