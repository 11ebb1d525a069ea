// Pieces: what workers receive and send, counted without a list of the transfers.

#include <cstdint>
#include <utility>
#include <vector>

#include "schemas/types/layout.h"
#include "server/plan/movement/exchange.h"
#include "server/plan/movement/exchange_rounds.h"
#include "server/plan/movement/exchange_tables.h"

namespace tessera {

void Pieces::VisitMoveTraffic(Count received, Count sent) const {
  const Mesh& from = exchange_.source.mesh;
  const Mesh& to = exchange_.destination.mesh;
  for (int64_t flat = 0; flat < to.size(); ++flat) {
    const ExchangeTables::Holder& own = tables_->HolderOfDestination(flat);
    const int64_t wanted = NumElements(LocalBox(exchange_.destination, to.PositionAt(flat)));
    received(to.workers()[static_cast<size_t>(flat)],
             wanted - (own.flat < 0 ? 0 : tables_->CommonElements(own.flat, flat)));
  }
  for (int64_t flat = 0; flat < from.size(); ++flat) {
    if (!tables_->given_elements().empty()) {
      sent(from.workers()[static_cast<size_t>(flat)], tables_->given_elements()[static_cast<size_t>(flat)]);
      continue;
    }
    if (tables_->HolderAt(flat).replica != 0) continue;
    tables_->VisitHeld(flat, [&](const ExchangeCell& cell) {
      for (const int64_t offset : tables_->member_offsets()) {
        const int64_t destination = cell.destination + offset;
        if (tables_->HolderOfDestination(destination).family == cell.family) continue;
        tables_->VisitParts(cell, 0, cell.elements, destination, [&](int64_t replica, int64_t low, int64_t high) {
          const int64_t giver = flat + tables_->replica_offsets()[static_cast<size_t>(replica)];
          sent(from.workers()[static_cast<size_t>(giver)], high - low);
        });
      }
    });
  }
}

void Pieces::VisitSumTraffic(Count received, Count sent) const {
  const absl::Span<const WorkerIndex> workers = exchange_.source.mesh.workers();
  const Mesh& to = exchange_.destination.mesh;
  for (int64_t flat = 0; flat < to.size(); ++flat) {
    if (tables_->GroupOf(flat) != flat) continue;
    for (const OwnedPiece& piece : tables_->PiecesOf(flat)) {
      const WorkerIndex reducer = to.workers()[static_cast<size_t>(piece.owner)];
      tables_->VisitSums(piece, std::nullopt, [&](int64_t low, int64_t high, absl::Span<const GivenTerms> given) {
        const auto count = [&](WorkerIndex from, WorkerIndex to_worker) {
          if (from == to_worker) return;
          sent(from, high - low);
          received(to_worker, high - low);
        };
        for (const GivenTerms& from : given) {
          const WorkerIndex giver = workers[static_cast<size_t>(from.giver)];
          count(giver, reducer);
          for (const int64_t term : from.terms) count(workers[static_cast<size_t>(term)], giver);
        }
      });
    }
  }
}

void Pieces::VisitReduceTraffic(Count received, Count sent) const {
  if (exchange_.hosts.several()) return VisitSumTraffic(received, sent);
  const absl::Span<const WorkerIndex> workers = exchange_.source.mesh.workers();
  const int64_t terms = tables_->term_count();
  // Elements that all holders of a family's replica give for each of their terms, own pieces included.
  absl::flat_hash_map<std::pair<int64_t, int64_t>, int64_t> given;
  for (int64_t flat = 0; flat < exchange_.destination.mesh.size(); ++flat) {
    if (tables_->GroupOf(flat) != flat) continue;
    for (const OwnedPiece& piece : tables_->PiecesOf(flat)) {
      const ExchangeTables::Holder& own = tables_->HolderOfDestination(piece.owner);
      const bool owns = own.family == piece.cell.family;
      received(exchange_.destination.mesh.workers()[static_cast<size_t>(piece.owner)],
               (piece.high - piece.low) * (owns ? terms - 1 : terms));
      tables_->VisitParts(
          piece.cell, piece.low, piece.high, piece.owner, [&](int64_t replica, int64_t low, int64_t high) {
            given[{piece.cell.family, replica}] += high - low;
            if (!owns) return;
            const int64_t asked = piece.cell.source + tables_->term_offsets()[static_cast<size_t>(own.term)] +
                                  tables_->replica_offsets()[static_cast<size_t>(replica)];
            sent(workers[static_cast<size_t>(asked)], low - high);
          });
    }
  }
  for (size_t flat = 0; flat < workers.size(); ++flat) {
    const ExchangeTables::Holder holder = tables_->HolderAt(static_cast<int64_t>(flat));
    const auto at = given.find({holder.family, holder.replica});
    if (at != given.end()) sent(workers[flat], at->second);
  }
}

void Pieces::VisitGatherReducedTraffic(Count received, Count sent) const {
  const Mesh& to = exchange_.destination.mesh;
  const int64_t others = static_cast<int64_t>(tables_->member_offsets().size()) - 1;
  for (int64_t flat = 0; flat < to.size(); ++flat) {
    received(to.workers()[static_cast<size_t>(flat)],
             NumElements(LocalBox(exchange_.destination, to.PositionAt(flat))));
    if (tables_->GroupOf(flat) != flat) continue;
    for (const OwnedPiece& piece : tables_->PiecesOf(flat)) {
      const WorkerIndex reducer = to.workers()[static_cast<size_t>(piece.owner)];
      received(reducer, piece.low - piece.high);
      sent(reducer, (piece.high - piece.low) * others);
    }
  }
}

void Pieces::VisitGroups(absl::FunctionRef<void(int64_t, absl::Span<const std::vector<int64_t>>)> visit) const {
  for (int64_t flat = 0; flat < exchange_.destination.mesh.size(); ++flat) {
    if (tables_->GroupOf(flat) == flat) visit(flat, tables_->MembersByHost(flat));
  }
}

void Pieces::VisitFarParts(int64_t group, absl::Span<const std::vector<int64_t>> members,
                           absl::FunctionRef<void(int64_t, int64_t, absl::Span<const int64_t>)> visit) const {
  const std::vector<int64_t> far = tables_->FarElements(group, members);
  for (size_t host = 0; host < members.size(); ++host) {
    const SharedLine line(members[host], far[host]);
    if (!line.MayRound()) {
      for (size_t i = 0; i < members[host].size(); ++i) visit(members[host][i], line.PartOf(i), members[host]);
      continue;
    }
    absl::flat_hash_map<int64_t, int64_t> parts;
    int64_t start = 0;
    tables_->VisitFar(members[host][0], [&](const ExchangeCell& cell, int64_t low, int64_t high) {
      line.Visit(start, cell.shape, low, high,
                 [&](int64_t taker, int64_t from, int64_t to) { parts[taker] += to - from; });
      start += high - low;
    });
    for (const int64_t member : members[host]) visit(member, parts[member], members[host]);
  }
}

void Pieces::VisitMoveOnceTraffic(Count received, Count sent) const {
  const absl::Span<const WorkerIndex> from = exchange_.source.mesh.workers();
  const absl::Span<const WorkerIndex> to = exchange_.destination.mesh.workers();
  VisitGroups([&](int64_t group, absl::Span<const std::vector<int64_t>> members) {
    tables_->VisitWanted(group, [&](const ExchangeCell& cell) {
      const WorkerIndex holder = from[static_cast<size_t>(cell.source)];
      for (const std::vector<int64_t>& on_host : members) {
        if (tables_->IsFar(cell, ExchangeTables::kMoved, on_host[0])) {
          sent(holder, cell.elements);
          continue;
        }
        for (const int64_t member : on_host) {
          const WorkerIndex taker = to[static_cast<size_t>(member)];
          if (taker == holder) continue;
          sent(holder, cell.elements);
          received(taker, cell.elements);
        }
      }
    });
    VisitFarParts(group, members, [&](int64_t member, int64_t elements, absl::Span<const int64_t>) {
      received(to[static_cast<size_t>(member)], elements);
    });
  });
}

void Pieces::VisitGatherReducedOnceTraffic(Count received, Count sent) const {
  const absl::Span<const WorkerIndex> workers = exchange_.destination.mesh.workers();
  VisitGroups([&](int64_t group, absl::Span<const std::vector<int64_t>> members) {
    absl::flat_hash_map<int32_t, absl::Span<const int64_t>> on_host;
    for (const std::vector<int64_t>& each : members) on_host[tables_->HostOfDestination(each[0])] = each;
    for (const OwnedPiece& piece : tables_->PiecesOf(group)) {
      const int64_t elements = piece.high - piece.low;
      const absl::Span<const int64_t> mates = on_host.at(tables_->HostOfDestination(piece.owner));
      for (const int64_t mate : mates) {
        if (mate != piece.owner) received(workers[static_cast<size_t>(mate)], elements);
      }
      sent(workers[static_cast<size_t>(piece.owner)],
           elements * static_cast<int64_t>(mates.size() - 1 + members.size() - 1));
    }
    VisitFarParts(group, members, [&](int64_t member, int64_t elements, absl::Span<const int64_t>) {
      received(workers[static_cast<size_t>(member)], elements);
    });
  });
}

void Pieces::VisitHostGatherTraffic(Count received, Count sent) const {
  const absl::Span<const WorkerIndex> workers = exchange_.destination.mesh.workers();
  VisitGroups([&](int64_t group, absl::Span<const std::vector<int64_t>> members) {
    VisitFarParts(group, members, [&](int64_t member, int64_t elements, absl::Span<const int64_t> on_host) {
      sent(workers[static_cast<size_t>(member)], elements * static_cast<int64_t>(on_host.size() - 1));
      for (const int64_t mate : on_host) {
        if (mate != member) received(workers[static_cast<size_t>(mate)], elements);
      }
    });
  });
}

void Pieces::VisitEachTransfer(Count received, Count sent) const {
  const Mesh& to = exchange_.destination.mesh;
  for (const WorkerIndex worker : to.workers()) {
    VisitReceived(worker, [&](WorkerIndex from, int64_t elements) {
      received(worker, elements);
      sent(from, elements);
    });
  }
}

bool Pieces::HasQuickTotals() const {
  if (rounds_ != nullptr || exchange_.far_takers != FarTakers::kEach) return false;
  return exchange_.role == ExchangeRole::kGatherReduced ||
         (exchange_.role == ExchangeRole::kMove && !tables_->given_elements().empty());
}

void Pieces::VisitTotals(Count received, Count sent) const {
  const bool is_once = exchange_.far_takers == FarTakers::kOne;
  if (rounds_ != nullptr || tables_->has_relays()) return VisitEachTransfer(received, sent);
  switch (exchange_.role) {
    case ExchangeRole::kMove:
      if (!is_once) return VisitMoveTraffic(received, sent);
      return tables_->replica_count() == 1 ? VisitMoveOnceTraffic(received, sent) : VisitEachTransfer(received, sent);
    case ExchangeRole::kReduce: return VisitReduceTraffic(received, sent);
    case ExchangeRole::kGatherReduced:
      return is_once ? VisitGatherReducedOnceTraffic(received, sent) : VisitGatherReducedTraffic(received, sent);
    case ExchangeRole::kHostGather: return VisitHostGatherTraffic(received, sent);
  }
}

}  // namespace tessera
