#include "server/plan/exchange_rounds.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "server/plan/shared_line.h"

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
  const bool moves = PendingTerms(exchange.source, exchange.destination) == 1;
  const std::optional<int64_t> hosts = CountHosts(rounds.factors, exchange.destination.mesh.size());
  for (int64_t group = 0; group < exchange.destination.mesh.size(); ++group) {
    if (tables.GroupOf(group) != group) continue;
    const std::vector<std::vector<int64_t>> members = HostsOf(exchange, tables, group);
    if (static_cast<int64_t>(members.size()) != hosts) return false;
    if (std::any_of(members.begin(), members.end(),
                    [&](const auto& on_host) { return on_host.size() != members[0].size(); })) {
      return false;
    }
    const int64_t wanted_holders = moves ? 1 : static_cast<int64_t>(tables.member_offsets().size());
    if (!moves && tables.term_count() != wanted_holders) return false;
    absl::flat_hash_map<int64_t, int64_t> holders;  // by family
    for (const int64_t offset : tables.member_offsets()) ++holders[tables.HolderOfDestination(group + offset).family];
    bool fit = true;
    tables.VisitWanted(group, [&](const ExchangeCell& cell) {
      const auto found = holders.find(cell.family);
      fit = fit && found != holders.end() && found->second == wanted_holders;
    });
    if (!fit) return false;
  }
  return true;
}

ExchangeRounds::ExchangeRounds(const Exchange& exchange, const ExchangeTables& tables)
    : exchange_(exchange), tables_(tables), places_(static_cast<size_t>(exchange.destination.mesh.size())) {
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

// The cells lie on a line, of which every member owns an equal length; those of a column follow each other.
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
    line.Visit(start, cell.shape, 0, cell.elements, [&](int64_t owner, int64_t low, int64_t high) {
      const Place& place = PlaceAt(owner);
      made.pieces[static_cast<size_t>(place.column)].push_back({cell, low, high, place.host, place.column});
    });
    start += cell.elements;
  });
}

void ExchangeRounds::AddHeldPieces(int64_t group, Group& made) const {
  absl::flat_hash_map<int64_t, Place> holders;  // by family
  for (const int64_t offset : tables_.member_offsets()) {
    holders[tables_.HolderOfDestination(group + offset).family] = PlaceAt(group + offset);
  }
  tables_.VisitWanted(group, [&](const ExchangeCell& cell) {
    const Place& place = holders.at(cell.family);
    made.pieces[static_cast<size_t>(place.column)].push_back({cell, 0, cell.elements, place.host, place.column});
  });
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

int64_t ExchangeRounds::UnitOf(int digit) const {
  int64_t unit = 1;
  for (size_t i = exchange_.rounds.factors.size(); --i > static_cast<size_t>(digit);)
    unit *= exchange_.rounds.factors[i];
  return unit;
}

int64_t ExchangeRounds::DigitOf(int64_t host, int digit) const {
  return host / UnitOf(digit) % exchange_.rounds.factors[static_cast<size_t>(digit)];
}

TransferSource ExchangeRounds::SourceAt(int64_t flat) const {
  return {exchange_.destination.mesh.workers()[static_cast<size_t>(flat)], flat, {}};
}

bool ExchangeRounds::IsTaken(const Piece& piece, const Place& self) const {
  const int digit = exchange_.rounds.digit;
  const int64_t unit = UnitOf(digit);
  const int64_t above = unit * exchange_.rounds.factors[static_cast<size_t>(digit)];  // of the digits before
  switch (exchange_.role) {
    case ExchangeRole::kReduce: return piece.host / unit == self.host / unit;
    case ExchangeRole::kMove: return piece.host / above == self.host / above;
    case ExchangeRole::kSpread: return piece.host / above == self.host / above && piece.host / unit != self.host / unit;
    case ExchangeRole::kShare:
    case ExchangeRole::kReduceEach: break;
  }
  return true;
}

ExchangeRounds::Sources ExchangeRounds::SourcesOf(const Piece& piece, const Place& self, const Group& group) const {
  const int digit = exchange_.rounds.digit;
  const int64_t unit = UnitOf(digit);
  const size_t column = static_cast<size_t>(piece.column);
  const auto member = [&](int64_t host) { return group.members[static_cast<size_t>(host)][column]; };
  const int64_t own_digit = DigitOf(self.host, digit);
  if (exchange_.role == ExchangeRole::kShare) return {SourceAt(member(self.host))};
  if (exchange_.role != ExchangeRole::kReduce) {
    return {SourceAt(member(self.host + (DigitOf(piece.host, digit) - own_digit) * unit))};
  }
  Sources sources;
  const bool is_first = digit == 0;
  if (is_first) {
    for (const int64_t mate : group.members[static_cast<size_t>(self.host)]) sources.push_back(SourceAt(mate));
  } else {
    sources.push_back(SourceAt(member(self.host)));
  }
  for (int64_t other = 0; other < exchange_.rounds.factors[static_cast<size_t>(digit)]; ++other) {
    if (other == own_digit) continue;
    const int64_t host = self.host + (other - own_digit) * unit;
    TransferSource& source = sources.emplace_back(SourceAt(member(host)));
    const std::vector<int64_t>& on_host = group.members[static_cast<size_t>(host)];
    if (is_first && on_host.size() > 1) source.added_up = on_host;
  }
  return sources;
}

void ExchangeRounds::VisitTaken(
    int64_t destination, absl::FunctionRef<void(const ExchangeCell&, int64_t, int64_t, const Sources&)> visit) const {
  const Place& self = PlaceAt(destination);
  const Group& group = GroupAt(destination);
  for (size_t column = 0; column < group.pieces.size(); ++column) {
    if ((static_cast<int64_t>(column) == self.column) == (exchange_.role == ExchangeRole::kShare)) continue;
    const std::vector<Piece>& pieces = group.pieces[column];
    for (size_t i = 0; i < pieces.size();) {
      if (!IsTaken(pieces[i], self)) {
        ++i;
        continue;
      }
      const Piece& first = pieces[i];
      const Sources sources = SourcesOf(first, self, group);
      int64_t high = first.high;
      // What comes next to it from the same is taken together.
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
  if (exchange_.role == ExchangeRole::kShare || is_first_sum) takers = Mates(flat);
  if (exchange_.role != ExchangeRole::kShare) {
    const Place& self = PlaceAt(flat);
    const int digit = exchange_.rounds.digit;
    const int64_t own_digit = DigitOf(self.host, digit);
    const Group& group = GroupAt(flat);
    for (int64_t other = 0; other < exchange_.rounds.factors[static_cast<size_t>(digit)]; ++other) {
      const int64_t host = self.host + (other - own_digit) * UnitOf(digit);
      if (other != own_digit)
        takers.push_back(group.members[static_cast<size_t>(host)][static_cast<size_t>(self.column)]);
    }
  }
  std::sort(takers.begin(), takers.end());
  return takers;
}

bool ExchangeRounds::has_mates() const {
  for (int64_t flat = 0; flat < static_cast<int64_t>(places_.size()); ++flat) {
    if (PlaceAt(flat).group == flat && GroupAt(flat).members[0].size() > 1) return true;
  }
  return false;
}

}  // namespace tessera
