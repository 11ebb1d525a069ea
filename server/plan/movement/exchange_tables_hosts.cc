// ExchangeTables where workers are on several hosts.

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "server/plan/movement/exchange_tables.h"

namespace tessera {

// A line for each host of holders, for who is there; and one for all others, filling up the holders.
void ExchangeTables::ShareByHost(const ExchangeCell& cell, Sharing& sharing) const {
  std::vector<int64_t> replicas(replica_offsets_.size());
  std::iota(replicas.begin(), replicas.end(), int64_t{0});
  absl::flat_hash_map<int32_t, size_t> line_of_host;
  std::vector<std::vector<int64_t>> givers;
  for (const int64_t replica : replicas) {
    const int32_t host = HostOfSource(cell.source + replica_offsets_[static_cast<size_t>(replica)]);
    const auto [at, is_new] = line_of_host.emplace(host, givers.size());
    if (is_new) givers.emplace_back();
    givers[at->second].push_back(replica);
  }
  std::vector<int64_t> totals(givers.size() + 1, 0);
  for (Take& take : sharing.takes) {
    const auto at = line_of_host.find(HostOfDestination(take.destination));
    take.line = at == line_of_host.end() ? givers.size() : at->second;
    take.start = totals[take.line];
    totals[take.line] += take.length;
  }
  std::vector<int64_t> loads(replicas.size(), 0);
  for (size_t line = 0; line < givers.size(); ++line) {
    const SharedLine& made = sharing.lines.emplace_back(givers[line], totals[line]);
    for (size_t i = 0; i < givers[line].size(); ++i) loads[static_cast<size_t>(givers[line][i])] = made.PartOf(i);
  }
  sharing.lines.emplace_back(std::move(replicas), loads, totals.back());
}

// The pieces reduced on one host lie on one line, one after another: the givers of its terms share it.
void ExchangeTables::SumByHost(const ExchangeCell& cell, Sharing& sharing) const {
  absl::flat_hash_map<int32_t, size_t> line_of_host;
  std::vector<int32_t> hosts;
  std::vector<int64_t> totals;
  for (Take& take : sharing.takes) {
    const int32_t host = HostOfDestination(take.destination);
    take.line = line_of_host.emplace(host, hosts.size()).first->second;
    if (take.line == hosts.size()) {
      hosts.push_back(host);
      totals.push_back(0);
    }
    take.start = totals[take.line];
    totals[take.line] += take.length;
  }
  const TermsByHost& terms = TermsOf(cell);
  for (size_t i = 0; i < hosts.size(); ++i) sharing.sums.emplace_back(terms, hosts[i], totals[i]);
}

int32_t ExchangeTables::HostOfSource(int64_t flat) const {
  return exchange_.hosts.HostOf(exchange_.source.mesh.workers()[static_cast<size_t>(flat)]);
}

int32_t ExchangeTables::HostOfDestination(int64_t flat) const {
  return exchange_.hosts.HostOf(exchange_.destination.mesh.workers()[static_cast<size_t>(flat)]);
}

const TermsByHost& ExchangeTables::TermsOf(const ExchangeCell& cell) const {
  std::unique_ptr<const TermsByHost>& known = terms_[cell.family];
  if (known != nullptr) return *known;
  TermHolders holders;
  for (const int64_t term : term_offsets_) {
    std::vector<TermHolder>& of_term = holders.emplace_back();
    for (const int64_t replica : replica_offsets_) {
      const int64_t flat = cell.source + term + replica;
      of_term.push_back({flat, HostOfSource(flat)});
    }
  }
  known = std::make_unique<const TermsByHost>(std::move(holders));
  return *known;
}

// The candidates on whose hosts the cell can be reduced with the fewest sums from others.
std::vector<int64_t> ExchangeTables::OnNearestHosts(const ExchangeCell& cell,
                                                    absl::Span<const int64_t> candidates) const {
  if (!exchange_.hosts.several() || candidates.size() < 2) return {candidates.begin(), candidates.end()};
  const TermsByHost& terms = TermsOf(cell);
  absl::flat_hash_map<int32_t, int64_t> sums;
  int64_t fewest = term_count();
  for (const int64_t candidate : candidates) {
    const auto [at, is_new] = sums.emplace(HostOfDestination(candidate), 0);
    if (is_new) at->second = terms.CountSendingHosts(at->first);
    fewest = std::min(fewest, at->second);
  }
  std::vector<int64_t> nearest;
  for (const int64_t candidate : candidates) {
    if (sums.at(HostOfDestination(candidate)) == fewest) nearest.push_back(candidate);
  }
  return nearest;
}

void ExchangeTables::VisitSums(const OwnedPiece& piece, std::optional<int32_t> from_host,
                               absl::FunctionRef<void(int64_t, int64_t, absl::Span<const GivenTerms>)> visit) const {
  const Sharing& sharing = SharingOf(piece.cell);
  const auto at =
      std::lower_bound(sharing.takes.begin(), sharing.takes.end(), Take{piece.cell.number, piece.low, piece.owner, 0});
  sharing.sums[at->line].Visit(at->start, piece.cell.shape, piece.low, piece.high,
                               HolderOfDestination(piece.owner).flat, from_host, visit);
}

bool ExchangeTables::IsFar(const ExchangeCell& cell, int64_t reducer, int64_t destination) const {
  const bool several = exchange_.hosts.several();
  if (!several) return has_relays() && reducer == kMoved && HolderOfDestination(destination).family != cell.family;
  const int32_t host = HostOfDestination(destination);
  if (reducer != kMoved) return HostOfDestination(reducer) != host;
  const std::vector<int32_t>& hosts = HostsOfFamily(cell);
  return !std::binary_search(hosts.begin(), hosts.end(), host);
}

const std::vector<int32_t>& ExchangeTables::HostsOfFamily(const ExchangeCell& cell) const {
  const auto [at, is_new] = hosts_of_family_.try_emplace(cell.family);
  std::vector<int32_t>& hosts = at->second;
  if (!is_new) return hosts;
  for (const int64_t replica : replica_offsets_) hosts.push_back(HostOfSource(cell.source + replica));
  std::sort(hosts.begin(), hosts.end());
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  return hosts;
}

std::vector<int64_t> ExchangeTables::FarElements(int64_t group, absl::Span<const std::vector<int64_t>> members) const {
  absl::flat_hash_map<int32_t, int64_t> near;
  int64_t total = 0;
  if (moves()) {
    VisitWanted(group, [&](const ExchangeCell& cell) {
      total += cell.elements;
      for (const int32_t host : HostsOfFamily(cell)) near[host] += cell.elements;
    });
  } else {
    for (const OwnedPiece& piece : PiecesOf(group)) {
      total += piece.high - piece.low;
      near[HostOfDestination(piece.owner)] += piece.high - piece.low;
    }
  }
  std::vector<int64_t> far;
  for (const std::vector<int64_t>& on_host : members) far.push_back(total - near[HostOfDestination(on_host[0])]);
  return far;
}

std::vector<int64_t> ExchangeTables::FarMembers(const ExchangeCell& cell, absl::Span<const int64_t> members) const {
  std::vector<int64_t> far;
  for (const int64_t member : members) {
    if (IsFar(cell, kMoved, member)) far.push_back(member);
  }
  return far;
}

void ExchangeTables::VisitFar(const ExchangeCell& cell, int64_t destination_flat,
                              absl::FunctionRef<void(int64_t, int64_t)> visit) const {
  if (moves()) {
    if (IsFar(cell, kMoved, destination_flat)) visit(0, cell.elements);
    return;
  }
  VisitPieces(cell, [&](const OwnedPiece& piece) {
    if (!IsFar(piece.cell, piece.owner, destination_flat) || HasBeforeSpread(piece, destination_flat)) return;
    visit(piece.low, piece.high);
  });
}

void ExchangeTables::VisitFar(int64_t destination_flat,
                              absl::FunctionRef<void(const ExchangeCell&, int64_t, int64_t)> visit) const {
  VisitWanted(destination_flat, [&](const ExchangeCell& cell) {
    VisitFar(cell, destination_flat, [&](int64_t low, int64_t high) { visit(cell, low, high); });
  });
}

std::vector<int64_t> ExchangeTables::MembersOn(int64_t group, int32_t host) const {
  std::vector<int64_t> members;
  for (const int64_t offset : member_offsets_) {
    if (HostOfDestination(group + offset) == host) members.push_back(group + offset);
  }
  return members;
}

std::vector<std::vector<int64_t>> ExchangeTables::MembersByHost(int64_t group) const {
  std::map<int32_t, std::vector<int64_t>> members;
  for (const int64_t offset : member_offsets_) members[HostOfDestination(group + offset)].push_back(group + offset);
  std::vector<std::vector<int64_t>> by_host;
  for (auto& [host, on_host] : members) by_host.push_back(std::move(on_host));
  return by_host;
}

const ExchangeTables::FarLine& ExchangeTables::FarLineOf(int64_t group, int32_t host) const {
  std::unique_ptr<FarLine>& known = far_lines_[{group, host}];
  if (known != nullptr) return *known;
  known = std::make_unique<FarLine>();
  FarLine& far = *known;  // stays where it is
  std::vector<int64_t> members = MembersOn(group, host);
  int64_t length = 0;
  VisitFar(members[0], [&](const ExchangeCell& cell, int64_t low, int64_t high) {
    far.items.push_back({cell.number, low, length});
    length += high - low;
  });
  far.line = SharedLine(std::move(members), length);
  return far;
}

void ExchangeTables::VisitTakers(const ExchangeCell& cell, int64_t low, int64_t high, int32_t host,
                                 absl::FunctionRef<void(int64_t, int64_t, int64_t)> visit) const {
  const FarLine& far = FarLineOf(GroupOf(cell.destination), host);
  const auto is_before = [](const FarLine::Item& item, const std::pair<int64_t, int64_t>& wanted) {
    return std::pair(item.cell, item.low) < wanted;
  };
  const auto at = std::lower_bound(far.items.begin(), far.items.end(), std::pair(cell.number, low), is_before);
  far.line.Visit(at->start, cell.shape, low, high, visit);
}

void ExchangeTables::VisitTaken(const ExchangeCell& cell, int64_t low, int64_t high, int64_t reducer,
                                int64_t destination, absl::FunctionRef<void(int64_t, int64_t)> visit) const {
  if (exchange_.far_takers == FarTakers::kEach || !IsFar(cell, reducer, destination)) return visit(low, high);
  if (has_relays() && reducer == kMoved) {
    return VisitPieces(cell, [&](const OwnedPiece& piece) {
      if (piece.owner == destination) visit(piece.low, piece.high);
    });
  }
  VisitTakers(cell, low, high, HostOfDestination(destination), [&](int64_t taker, int64_t from, int64_t to) {
    if (taker == destination) visit(from, to);
  });
}

}  // namespace tessera
