#include "server/plan/movement/exchange_rounds.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "server/plan/movement/shared_line.h"

namespace tessera {
namespace {

// The product of the factors; none when one is less than two, or there are more hosts than `most`.
std::optional<int64_t> CountHosts(const std::vector<int>& factors, int64_t most) {
  int64_t hosts = 1;
  for (const int factor : factors) {
    if (factor < 2 || factor > most / hosts) return std::nullopt;
    hosts *= factor;
  }
  return hosts;
}

}  // namespace

std::vector<std::vector<int64_t>> ExchangeRounds::HostsOf(const Exchange& exchange, const ExchangeTables& tables,
                                                          int64_t group) {
  if (exchange.hosts.several()) return tables.MembersByHost(group);
  std::vector<std::vector<int64_t>> hosts;
  for (const int64_t offset : tables.member_offsets()) hosts.push_back({group + offset});
  return hosts;
}

bool ExchangeRounds::Fit(const Exchange& exchange, const ExchangeTables& tables) {
  const Rounds& rounds = exchange.rounds;
  if (rounds.digit < 0 || rounds.digit >= static_cast<int>(rounds.factors.size())) return false;
  if (!tables.same_mesh() || tables.replica_count() > 1) return false;
  const int64_t terms = tables.term_count();
  const std::optional<int64_t> hosts = CountHosts(rounds.factors, exchange.destination.mesh.size());
  for (int64_t group = 0; group < exchange.destination.mesh.size(); ++group) {
    if (tables.GroupOf(group) != group) continue;
    const std::vector<std::vector<int64_t>> members = HostsOf(exchange, tables, group);
    if (static_cast<int64_t>(members.size()) != hosts) return false;
    if (std::any_of(members.begin(), members.end(),
                    [&](const auto& on_host) { return on_host.size() != members[0].size(); })) {
      return false;
    }
    if (terms > 1 && terms != static_cast<int64_t>(tables.member_offsets().size())) return false;
    absl::flat_hash_map<int64_t, int64_t> holders;  // by family
    for (const int64_t offset : tables.member_offsets()) ++holders[tables.HolderOfDestination(group + offset).family];
    bool fit = true;
    tables.VisitWanted(group, [&](const ExchangeCell& cell) {
      const auto found = holders.find(cell.family);
      fit = fit && found != holders.end() && found->second == terms;
    });
    if (!fit) return false;
  }
  return true;
}

ExchangeRounds::ExchangeRounds(const Exchange& exchange, const ExchangeTables& tables)
    : exchange_(exchange),
      tables_(tables),
      factor_(exchange.rounds.factors[static_cast<size_t>(exchange.rounds.digit)]),
      places_(static_cast<size_t>(exchange.destination.mesh.size())) {
  for (int i = exchange.rounds.digit + 1; i < exchange.rounds.count(); ++i) {
    unit_ *= exchange.rounds.factors[static_cast<size_t>(i)];
  }
  for (int64_t group = 0; group < exchange.destination.mesh.size(); ++group) {
    if (tables.GroupOf(group) != group) continue;
    const std::vector<std::vector<int64_t>> members = HostsOf(exchange, tables, group);
    for (size_t host = 0; host < members.size(); ++host) {
      for (size_t column = 0; column < members[host].size(); ++column) {
        places_[static_cast<size_t>(members[host][column])] = {group, static_cast<int64_t>(host),
                                                               static_cast<int64_t>(column)};
      }
    }
  }
}

void ExchangeRounds::AddPiece(const ExchangeCell& cell, int64_t low, int64_t high, int64_t owner, Group& made) const {
  made.pieces[static_cast<size_t>(PlaceAt(owner).column)].push_back({cell, low, high, owner});
}

// The cells lie on a line, of which every member owns an equal length; the lengths of a column follow each other.
void ExchangeRounds::AddReducedPieces(int64_t group, Group& made) const {
  std::vector<int64_t> owners;
  for (size_t column = 0; column < made.members[0].size(); ++column) {
    for (const std::vector<int64_t>& on_host : made.members) owners.push_back(on_host[column]);
  }
  int64_t elements = 0;
  tables_.VisitWanted(group, [&](const ExchangeCell& cell) { elements += cell.elements; });
  const SharedLine line(std::move(owners), elements);
  int64_t start = 0;
  tables_.VisitWanted(group, [&](const ExchangeCell& cell) {
    line.Visit(start, cell.shape, 0, cell.elements,
               [&](int64_t owner, int64_t low, int64_t high) { AddPiece(cell, low, high, owner, made); });
    start += cell.elements;
  });
}

void ExchangeRounds::AddHeldPieces(int64_t group, Group& made) const {
  absl::flat_hash_map<int64_t, int64_t> holders;  // by family
  for (const int64_t offset : tables_.member_offsets()) {
    holders[tables_.HolderOfDestination(group + offset).family] = group + offset;
  }
  tables_.VisitWanted(
      group, [&](const ExchangeCell& cell) { AddPiece(cell, 0, cell.elements, holders.at(cell.family), made); });
}

const ExchangeRounds::Group& ExchangeRounds::GroupAt(int64_t flat) const {
  const int64_t group = PlaceAt(flat).group;
  std::unique_ptr<Group>& known = groups_[group];
  if (known != nullptr) return *known;
  known = std::make_unique<Group>();
  Group& made = *known;  // stays where it is
  made.members = HostsOf(exchange_, tables_, group);
  made.pieces.resize(made.members[0].size());
  tables_.term_count() > 1 ? AddReducedPieces(group, made) : AddHeldPieces(group, made);
  return made;
}

std::vector<size_t> ExchangeRounds::PartnersOf(int64_t host) const {
  std::vector<size_t> partners;
  for (int64_t digit = 0; digit < factor_; ++digit) {
    if (digit != DigitOf(host)) partners.push_back(static_cast<size_t>(host + (digit - DigitOf(host)) * unit_));
  }
  return partners;
}

TransferSource ExchangeRounds::SourceAt(int64_t flat) const {
  return {exchange_.destination.mesh.workers()[static_cast<size_t>(flat)], flat, {}};
}

bool ExchangeRounds::IsTaken(const OwnedPiece& piece, const Place& self) const {
  const int64_t owner = PlaceAt(piece.owner).host;
  const int64_t above = unit_ * factor_;  // of the digits before
  switch (exchange_.role) {
    case ExchangeRole::kReduce: return owner / unit_ == self.host / unit_;
    case ExchangeRole::kMove: return owner / above == self.host / above;
    case ExchangeRole::kGatherReduced: return owner / above == self.host / above && owner / unit_ != self.host / unit_;
    case ExchangeRole::kHostGather: break;
  }
  return true;
}

ExchangeRounds::Sources ExchangeRounds::SourcesOf(const OwnedPiece& piece, const Place& self,
                                                  const Group& group) const {
  const Place& owner = PlaceAt(piece.owner);
  const auto source_on = [&](int64_t host) {
    return SourceAt(group.members[static_cast<size_t>(host)][static_cast<size_t>(owner.column)]);
  };
  if (exchange_.role == ExchangeRole::kHostGather) return {source_on(self.host)};
  if (exchange_.role != ExchangeRole::kReduce) {
    return {source_on(self.host + (DigitOf(owner.host) - DigitOf(self.host)) * unit_)};
  }
  Sources sources;
  const bool is_first = exchange_.rounds.digit == 0;
  if (is_first) {
    for (const int64_t mate : group.members[static_cast<size_t>(self.host)]) sources.push_back(SourceAt(mate));
  } else {
    sources.push_back(source_on(self.host));
  }
  for (const size_t partner : PartnersOf(self.host)) {
    TransferSource& source = sources.emplace_back(source_on(static_cast<int64_t>(partner)));
    if (is_first && group.members[partner].size() > 1) source.added_up = group.members[partner];
  }
  return sources;
}

void ExchangeRounds::VisitTaken(
    int64_t destination, absl::FunctionRef<void(const ExchangeCell&, int64_t, int64_t, const Sources&)> visit) const {
  const Place& self = PlaceAt(destination);
  const Group& group = GroupAt(destination);
  for (size_t column = 0; column < group.pieces.size(); ++column) {
    if ((static_cast<int64_t>(column) == self.column) == (exchange_.role == ExchangeRole::kHostGather)) continue;
    const std::vector<OwnedPiece>& pieces = group.pieces[column];
    for (size_t i = 0; i < pieces.size();) {
      if (!IsTaken(pieces[i], self)) {
        ++i;
        continue;
      }
      const OwnedPiece& first = pieces[i];
      const Sources sources = SourcesOf(first, self, group);
      int64_t high = first.high;
      // The next piece is taken with it, if it follows it and has the same sources.
      for (++i; i < pieces.size() && pieces[i].cell.number == first.cell.number && pieces[i].low == high &&
                IsTaken(pieces[i], self) && SourcesOf(pieces[i], self, group) == sources;
           ++i) {
        high = pieces[i].high;
      }
      visit(first.cell, first.low, high, sources);
    }
  }
}

std::vector<int64_t> ExchangeRounds::Mates(int64_t flat) const {
  const Place& self = PlaceAt(flat);
  std::vector<int64_t> mates = GroupAt(flat).members[static_cast<size_t>(self.host)];
  std::erase(mates, flat);
  return mates;
}

std::vector<int64_t> ExchangeRounds::Takers(int64_t flat) const {
  std::vector<int64_t> takers;
  const bool is_first_sum = exchange_.role == ExchangeRole::kReduce && exchange_.rounds.digit == 0;
  if (exchange_.role == ExchangeRole::kHostGather || is_first_sum) takers = Mates(flat);
  if (exchange_.role != ExchangeRole::kHostGather) {
    const Place& self = PlaceAt(flat);
    const Group& group = GroupAt(flat);
    for (const size_t partner : PartnersOf(self.host)) {
      takers.push_back(group.members[partner][static_cast<size_t>(self.column)]);
    }
  }
  std::sort(takers.begin(), takers.end());
  return takers;
}

bool ExchangeRounds::has_mates() const {
  return std::any_of(places_.begin(), places_.end(), [](const Place& place) { return place.column > 0; });
}

}  // namespace tessera
