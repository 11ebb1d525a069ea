#include "server/plan/movement/exchange.h"

#include <algorithm>
#include <optional>

#include "schemas/types/layout.h"
#include "server/plan/movement/exchange_rounds.h"
#include "server/plan/movement/exchange_tables.h"

namespace tessera {
namespace {

using Sources = absl::InlinedVector<TransferSource, 2>;

// Appends the boxes of elements [low, high) of a cell.
void AddBoxes(const Exchange& exchange, const ExchangeCell& cell, int64_t low, int64_t high, const Sources& sources,
              std::vector<Transfer>& transfers) {
  VisitRange(cell.shape, low, high, [&](const Shape& offset, const Shape& extents) {
    Transfer& transfer = transfers.emplace_back();
    transfer.sources = sources;
    for (size_t d = 0; d < offset.size(); ++d) {
      const OverlayEntry& entry = *cell.entries[d];
      const int64_t start = entry.start + offset[d];
      transfer.box.push_back({start, start + extents[d]});
      transfer.destination_offset.push_back(entry.destination_offset + offset[d]);
      transfer.source_offset.push_back(exchange.is_in_place()
                                           ? entry.destination_offset + offset[d]
                                           : entry.source_offset + exchange.dims[d].source_step * offset[d]);
    }
  });
}

// The terms that a giver puts into one message: its own, or those that it adds up.
Sources TermsOf(const TransferSource& given, const Mesh& mesh) {
  if (given.added_up.empty()) return {given};
  Sources terms;
  for (const int64_t term : given.added_up) terms.push_back({mesh.workers()[static_cast<size_t>(term)], term, {}});
  return terms;
}

}  // namespace

int64_t PendingTerms(const TensorSpec& source, const TensorSpec& destination) {
  const bool same_mesh = HaveSameArrangement(source.mesh, destination.mesh);
  int64_t terms = 1;
  for (size_t j = 0; j < source.placements.size(); ++j) {
    const bool is_kept = same_mesh && destination.placements[j].is_partial();
    if (source.placements[j].is_partial() && !is_kept) terms *= source.mesh.shape()[j];
  }
  return terms;
}

bool CanGoByRounds(const Exchange& exchange) {
  return exchange.source.dtype == exchange.destination.dtype && ExchangeRounds::Fit(exchange, ExchangeTables(exchange));
}

int64_t CountHostsOfGroup(const Exchange& exchange) {
  const ExchangeTables tables(exchange);
  return static_cast<int64_t>(ExchangeRounds::HostsOf(exchange, tables, 0).size());
}

Pieces::Pieces(const Exchange& exchange)
    : exchange_(exchange),
      tables_(std::make_unique<const ExchangeTables>(exchange)),
      rounds_(exchange.is_by_rounds() ? std::make_unique<const ExchangeRounds>(exchange, *tables_) : nullptr) {}
Pieces::~Pieces() = default;

int64_t Pieces::term_count() const { return exchange_.reduces() ? tables_->term_count() : 1; }

TransferSource Pieces::SourceAt(int64_t flat) const {
  const Mesh& mesh = exchange_.is_in_place() ? exchange_.destination.mesh : exchange_.source.mesh;
  return {mesh.workers()[static_cast<size_t>(flat)], flat, {}};
}

void Pieces::VisitMembers(const ExchangeCell& cell, const Sides& sides, absl::FunctionRef<void(int64_t)> visit) const {
  if (sides.taker.has_value()) return visit(*sides.taker);
  for (const int64_t offset : tables_->member_offsets()) visit(cell.destination + offset);
}

void Pieces::VisitMoved(const ExchangeCell& cell, const Sides& sides, VisitPart visit) const {
  VisitMembers(cell, sides, [&](int64_t taker) {
    const ExchangeTables::Holder& own = tables_->HolderOfDestination(taker);
    if (own.family == cell.family) {
      if (sides.MayGive(own.flat)) visit(0, cell.elements, taker, {SourceAt(own.flat)});
      return;
    }
    tables_->VisitTaken(
        cell, 0, cell.elements, ExchangeTables::kMoved, taker, [&](int64_t taken_low, int64_t taken_high) {
          tables_->VisitParts(cell, taken_low, taken_high, taker, [&](int64_t replica, int64_t low, int64_t high) {
            const int64_t giver = cell.source + tables_->replica_offsets()[static_cast<size_t>(replica)];
            if (sides.MayGive(giver)) visit(low, high, taker, {SourceAt(giver)});
          });
        });
  });
}

void Pieces::VisitReduced(const ExchangeCell& cell, const Sides& sides, VisitPart visit) const {
  tables_->VisitPieces(cell, [&](const OwnedPiece& piece) {
    if (sides.taker.value_or(piece.owner) != piece.owner) return;
    if (exchange_.hosts.several()) return VisitSums(piece, sides.giver, visit);
    const int64_t first = sides.giver.has_value() ? tables_->HolderAt(*sides.giver).term : 0;
    const int64_t end = sides.giver.has_value() ? first + 1 : tables_->term_count();
    tables_->VisitParts(cell, piece.low, piece.high, piece.owner, [&](int64_t replica, int64_t low, int64_t high) {
      Sources sources;
      for (int64_t term = first; term < end; ++term) {
        const int64_t giver = tables_->SourceOf(cell, term, replica, piece.owner);
        if (sides.MayGive(giver)) sources.push_back(SourceAt(giver));
      }
      if (!sources.empty()) visit(low, high, piece.owner, sources);
    });
  });
}

void Pieces::VisitSums(const OwnedPiece& piece, std::optional<int64_t> giver, VisitPart visit) const {
  std::optional<int32_t> host;
  if (giver.has_value()) host = exchange_.hosts.HostOf(SourceAt(*giver).worker);
  tables_->VisitSums(piece, host, [&](int64_t low, int64_t high, absl::Span<const GivenTerms> given) {
    Sources sources;
    for (const GivenTerms& from : given) {
      if (giver.value_or(from.giver) != from.giver) continue;
      TransferSource& source = sources.emplace_back(SourceAt(from.giver));
      if (from.terms.size() > 1) source.added_up.assign(from.terms.begin(), from.terms.end());
    }
    if (!sources.empty()) visit(low, high, piece.owner, sources);
  });
}

void Pieces::VisitGatherReduced(const ExchangeCell& cell, const Sides& sides, VisitPart visit) const {
  tables_->VisitPieces(cell, [&](const OwnedPiece& piece) {
    if (!sides.MayGive(piece.owner)) return;
    const Sources sources = {SourceAt(piece.owner)};
    VisitMembers(cell, sides, [&](int64_t taker) {
      if (tables_->HasBeforeSpread(piece, taker)) return;
      tables_->VisitTaken(cell, piece.low, piece.high, piece.owner, taker,
                          [&](int64_t low, int64_t high) { visit(low, high, taker, sources); });
    });
  });
}

void Pieces::VisitHostGather(const ExchangeCell& cell, const Sides& sides, VisitPart visit) const {
  const auto visit_host = [&](int64_t member) {
    tables_->VisitFar(cell, member, [&](int64_t far_low, int64_t far_high) {
      const int32_t host = tables_->HostOfDestination(member);
      tables_->VisitTakers(cell, far_low, far_high, host, [&](int64_t giver, int64_t low, int64_t high) {
        if (!sides.MayGive(giver)) return;
        for (const int64_t mate : tables_->MatesOf(member)) {
          if (mate != giver && sides.taker.value_or(mate) == mate) visit(low, high, mate, {SourceAt(giver)});
        }
      });
    });
  };
  if (sides.taker.has_value() || sides.giver.has_value())
    return visit_host(sides.taker.has_value() ? *sides.taker : *sides.giver);
  for (const std::vector<int64_t>& on_host : tables_->MembersByHost(tables_->GroupOf(cell.destination))) {
    visit_host(on_host[0]);
  }
}

void Pieces::VisitCell(const ExchangeCell& cell, const Sides& sides, VisitPart visit) const {
  switch (exchange_.role) {
    case ExchangeRole::kMove: return VisitMoved(cell, sides, visit);
    case ExchangeRole::kReduce: return VisitReduced(cell, sides, visit);
    case ExchangeRole::kGatherReduced: return VisitGatherReduced(cell, sides, visit);
    case ExchangeRole::kHostGather: return VisitHostGather(cell, sides, visit);
  }
}

void Pieces::VisitTakenParts(int64_t destination, VisitPiece visit) const {
  const auto take = [&](const ExchangeCell& cell, int64_t low, int64_t high, const Sources& sources) {
    visit(cell, low, high, destination, sources);
  };
  if (rounds_ != nullptr) return rounds_->VisitTaken(destination, take);
  tables_->VisitWanted(destination, [&](const ExchangeCell& cell) {
    VisitCell(cell, {destination, std::nullopt},
              [&](int64_t low, int64_t high, int64_t, const Sources& sources) { take(cell, low, high, sources); });
  });
}

void Pieces::VisitGivenParts(WorkerIndex worker, VisitPiece visit) const {
  const bool is_in_place = exchange_.is_in_place() || rounds_ != nullptr;
  const Mesh& mesh = is_in_place ? exchange_.destination.mesh : exchange_.source.mesh;
  const std::optional<int64_t> flat = mesh.FindWorker(worker);
  if (!flat.has_value()) return;
  const auto give = [&](const ExchangeCell& cell, int64_t low, int64_t high, int64_t taker, const Sources& sources) {
    if (exchange_.destination.mesh.workers()[static_cast<size_t>(taker)] == worker) return;
    for (const TransferSource& source : sources) {
      if (source.flat_position == *flat) visit(cell, low, high, taker, TermsOf(source, mesh));
    }
  };
  if (rounds_ != nullptr) {
    for (const int64_t taker : rounds_->Takers(*flat)) {
      rounds_->VisitTaken(taker, [&](const ExchangeCell& cell, int64_t low, int64_t high, const Sources& sources) {
        give(cell, low, high, taker, sources);
      });
    }
    return;
  }
  const auto visit_cell = [&](const ExchangeCell& cell) {
    VisitCell(cell, {std::nullopt, *flat}, [&](int64_t low, int64_t high, int64_t taker, const Sources& sources) {
      give(cell, low, high, taker, sources);
    });
  };
  is_in_place ? tables_->VisitWanted(*flat, visit_cell) : tables_->VisitHeld(*flat, visit_cell);
}

bool Pieces::IsSharedAfterRounds() const { return rounds_ != nullptr && rounds_->has_mates(); }

bool Pieces::IsWantedTwiceFromFar() const {
  const Mesh& to = exchange_.destination.mesh;
  for (int64_t group = 0; group < to.size(); ++group) {
    if (!exchange_.hosts.several() || tables_->GroupOf(group) != group) continue;
    for (const std::vector<int64_t>& members : tables_->MembersByHost(group)) {
      bool is_far = false;
      if (members.size() < 2) continue;
      tables_->VisitFar(members[0], [&](const ExchangeCell&, int64_t, int64_t) { is_far = true; });
      if (is_far) return true;
    }
  }
  return false;
}

void Pieces::VisitTaken(int64_t destination, absl::FunctionRef<void(const Piece&)> visit) const {
  VisitTakenParts(destination,
                  [&](const ExchangeCell& cell, int64_t low, int64_t high, int64_t taker, const Sources& sources) {
                    visit({cell.number, low, high, taker, sources});
                  });
}

void Pieces::VisitGiven(WorkerIndex worker, absl::FunctionRef<void(const Piece&)> visit) const {
  VisitGivenParts(worker,
                  [&](const ExchangeCell& cell, int64_t low, int64_t high, int64_t taker, const Sources& sources) {
                    visit({cell.number, low, high, taker, sources});
                  });
}

std::vector<Transfer> Pieces::ForReceiver(absl::Span<const int64_t> position) const {
  std::vector<Transfer> transfers;
  VisitTakenParts(exchange_.destination.mesh.FlatPosition(position),
                  [&](const ExchangeCell& cell, int64_t low, int64_t high, int64_t, const Sources& sources) {
                    AddBoxes(exchange_, cell, low, high, sources, transfers);
                  });
  return transfers;
}

std::vector<Pieces::Given> Pieces::ForSender(WorkerIndex worker) const {
  std::vector<Given> given;
  std::vector<Transfer> boxes;
  VisitGivenParts(worker,
                  [&](const ExchangeCell& cell, int64_t low, int64_t high, int64_t taker, const Sources& sources) {
                    boxes.clear();
                    AddBoxes(exchange_, cell, low, high, sources, boxes);
                    for (Transfer& box : boxes) given.push_back({taker, std::move(box)});
                  });
  std::stable_sort(given.begin(), given.end(),
                   [](const Given& a, const Given& b) { return a.destination < b.destination; });
  return given;
}

void Pieces::VisitReceived(WorkerIndex worker, Count visit) const {
  const auto take = [&](const ExchangeCell&, int64_t low, int64_t high, int64_t, const Sources& sources) {
    for (const TransferSource& source : sources) {
      if (source.worker != worker) visit(source.worker, high - low);
    }
  };
  if (const std::optional<int64_t> flat = exchange_.destination.mesh.FindWorker(worker); flat.has_value()) {
    VisitTakenParts(*flat, take);
  }
  if (exchange_.role == ExchangeRole::kReduce && exchange_.hosts.several()) VisitGivenParts(worker, take);
}

std::vector<WorkerIndex> Pieces::AddersOf(WorkerIndex worker) const {
  const Mesh& mesh = exchange_.source.mesh;
  const std::optional<int64_t> flat = mesh.FindWorker(worker);
  if (exchange_.role != ExchangeRole::kReduce || !exchange_.hosts.several() || !flat.has_value()) return {};
  std::vector<WorkerIndex> adders;
  const auto add = [&](const TransferSource& source) {
    const bool has_term = std::find(source.added_up.begin(), source.added_up.end(), *flat) != source.added_up.end();
    if (has_term && source.worker != worker) adders.push_back(source.worker);
  };
  if (rounds_ != nullptr) {
    for (const int64_t mate : exchange_.is_in_place() ? std::vector<int64_t>() : rounds_->Mates(*flat)) {
      bool adds_up = false;
      VisitGivenParts(
          mesh.workers()[static_cast<size_t>(mate)],
          [&](const ExchangeCell&, int64_t, int64_t, int64_t, const Sources& terms) { adds_up |= terms.size() > 1; });
      if (adds_up) adders.push_back(mesh.workers()[static_cast<size_t>(mate)]);
    }
  } else {
    const int32_t host = exchange_.hosts.HostOf(worker);
    tables_->VisitHeld(*flat, [&](const ExchangeCell& cell) {
      tables_->VisitPieces(cell, [&](const OwnedPiece& piece) {
        tables_->VisitSums(piece, host, [&](int64_t, int64_t, absl::Span<const GivenTerms> given) {
          for (const GivenTerms& from : given) {
            add({mesh.workers()[static_cast<size_t>(from.giver)], from.giver, {from.terms.begin(), from.terms.end()}});
          }
        });
      });
    });
  }
  std::sort(adders.begin(), adders.end());
  adders.erase(std::unique(adders.begin(), adders.end()), adders.end());
  return adders;
}

}  // namespace tessera
