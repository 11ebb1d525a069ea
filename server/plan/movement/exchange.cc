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

// Collects what one worker gives, part by part.
class GivenList {
 public:
  explicit GivenList(const Exchange& exchange) : exchange_(exchange) {}

  void Add(const ExchangeCell& cell, int64_t low, int64_t high, const Sources& sources, int64_t destination) {
    std::vector<Transfer> boxes;
    AddBoxes(exchange_, cell, low, high, sources, boxes);
    for (Transfer& box : boxes) given_.push_back({destination, std::move(box)});
  }
  std::vector<ExchangeWalk::Given> Sorted() && {
    std::stable_sort(given_.begin(), given_.end(),
                     [](const auto& a, const auto& b) { return a.destination < b.destination; });
    return std::move(given_);
  }

 private:
  const Exchange& exchange_;
  std::vector<ExchangeWalk::Given> given_;
};

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

ExchangeWalk::ExchangeWalk(const Exchange& exchange)
    : exchange_(exchange),
      tables_(std::make_unique<const ExchangeTables>(exchange)),
      rounds_(exchange.is_by_rounds() ? std::make_unique<const ExchangeRounds>(exchange, *tables_) : nullptr) {}
ExchangeWalk::~ExchangeWalk() = default;

int64_t ExchangeWalk::term_count() const { return exchange_.reduces() ? tables_->term_count() : 1; }

void ExchangeWalk::AddMoves(int64_t destination, std::vector<Transfer>& transfers) const {
  const absl::Span<const WorkerIndex> workers = exchange_.source.mesh.workers();
  const ExchangeTables::Holder& own = tables_->HolderOfDestination(destination);
  const auto from = [&workers](int64_t flat) { return Sources{{workers[static_cast<size_t>(flat)], flat, {}}}; };
  tables_->VisitWanted(destination, [&](const ExchangeCell& cell) {
    if (own.family == cell.family) return AddBoxes(exchange_, cell, 0, cell.elements, from(own.flat), transfers);
    tables_->VisitTaken(
        cell, 0, cell.elements, ExchangeTables::kMoved, destination, [&](int64_t taken_low, int64_t taken_high) {
          tables_->VisitParts(
              cell, taken_low, taken_high, destination, [&](int64_t replica, int64_t low, int64_t high) {
                const int64_t flat = cell.source + tables_->replica_offsets()[static_cast<size_t>(replica)];
                AddBoxes(exchange_, cell, low, high, from(flat), transfers);
              });
        });
  });
}

void ExchangeWalk::AddReductions(int64_t destination, std::vector<Transfer>& transfers) const {
  const absl::Span<const WorkerIndex> workers = exchange_.source.mesh.workers();
  for (const OwnedPiece& piece : tables_->PiecesOf(tables_->GroupOf(destination))) {
    if (piece.owner != destination) continue;
    const ExchangeCell& cell = piece.cell;
    if (exchange_.hosts.several()) {
      VisitSums(piece, std::nullopt, [&](int64_t low, int64_t high, const Sources& sources) {
        AddBoxes(exchange_, cell, low, high, sources, transfers);
      });
      continue;
    }
    tables_->VisitParts(cell, piece.low, piece.high, destination, [&](int64_t replica, int64_t low, int64_t high) {
      Sources sources;
      for (int64_t term = 0; term < tables_->term_count(); ++term) {
        const int64_t flat = tables_->SourceOf(cell, term, replica, destination);
        sources.push_back({workers[static_cast<size_t>(flat)], flat, {}});
      }
      AddBoxes(exchange_, cell, low, high, sources, transfers);
    });
  }
}

void ExchangeWalk::VisitSums(const OwnedPiece& piece, std::optional<int32_t> from_host,
                             absl::FunctionRef<void(int64_t, int64_t, const Sources&)> visit) const {
  const absl::Span<const WorkerIndex> workers = exchange_.source.mesh.workers();
  tables_->VisitSums(piece, from_host, [&](int64_t low, int64_t high, absl::Span<const GivenTerms> given) {
    Sources sources;
    for (const GivenTerms& from : given) {
      TransferSource& source = sources.emplace_back();
      source.worker = workers[static_cast<size_t>(from.giver)];
      source.flat_position = from.giver;
      if (from.terms.size() > 1) source.added_up.assign(from.terms.begin(), from.terms.end());
    }
    visit(low, high, sources);
  });
}

void ExchangeWalk::AddSpreads(int64_t destination, std::vector<Transfer>& transfers) const {
  const absl::Span<const WorkerIndex> workers = exchange_.destination.mesh.workers();
  for (const OwnedPiece& piece : tables_->PiecesOf(tables_->GroupOf(destination))) {
    if (tables_->HasBeforeSpread(piece, destination)) continue;
    const Sources sources = {{workers[static_cast<size_t>(piece.owner)], piece.owner, {}}};
    tables_->VisitTaken(piece.cell, piece.low, piece.high, piece.owner, destination, [&](int64_t low, int64_t high) {
      AddBoxes(exchange_, piece.cell, low, high, sources, transfers);
    });
  }
}

void ExchangeWalk::AddShares(int64_t destination, std::vector<Transfer>& transfers) const {
  const absl::Span<const WorkerIndex> workers = exchange_.destination.mesh.workers();
  const int32_t host = tables_->HostOfDestination(destination);
  tables_->VisitFar(destination, [&](const ExchangeCell& cell, int64_t low, int64_t high) {
    tables_->VisitTakers(cell, low, high, host, [&](int64_t taker, int64_t from, int64_t to) {
      if (taker == destination) return;
      AddBoxes(exchange_, cell, from, to, {{workers[static_cast<size_t>(taker)], taker, {}}}, transfers);
    });
  });
}

void ExchangeWalk::AddRound(int64_t destination, std::vector<Transfer>& transfers) const {
  rounds_->VisitTaken(destination, [&](const ExchangeCell& cell, int64_t low, int64_t high, const Sources& sources) {
    AddBoxes(exchange_, cell, low, high, sources, transfers);
  });
}

bool ExchangeWalk::IsSharedAfterRounds() const { return rounds_ != nullptr && rounds_->has_mates(); }

bool ExchangeWalk::IsWantedTwiceFromFar() const {
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

std::vector<Transfer> ExchangeWalk::TransfersTo(absl::Span<const int64_t> position) const {
  std::vector<Transfer> transfers;
  const int64_t destination = exchange_.destination.mesh.FlatPosition(position);
  if (rounds_ != nullptr) {
    AddRound(destination, transfers);
    return transfers;
  }
  switch (exchange_.role) {
    case ExchangeRole::kMove: AddMoves(destination, transfers); break;
    case ExchangeRole::kReduce: AddReductions(destination, transfers); break;
    case ExchangeRole::kSpread: AddSpreads(destination, transfers); break;
    case ExchangeRole::kShare: AddShares(destination, transfers); break;
  }
  return transfers;
}

void ExchangeWalk::VisitReceived(WorkerIndex worker, Count visit) const {
  const Mesh& to = exchange_.destination.mesh;
  if (const std::optional<int64_t> flat = to.FindWorker(worker); flat.has_value()) {
    for (const Transfer& transfer : TransfersTo(to.PositionAt(*flat))) {
      const int64_t elements = NumElements(transfer.box);
      for (const TransferSource& source : transfer.sources) {
        if (source.worker != worker) visit(source.worker, elements);
      }
    }
  }
  if (exchange_.role != ExchangeRole::kReduce || !exchange_.hosts.several()) return;
  for (const Given& given : GivenBy(worker)) {
    for (const TransferSource& term : given.transfer.sources) {
      if (term.worker != worker) visit(term.worker, NumElements(given.transfer.box));
    }
  }
}

void ExchangeWalk::VisitSumsOf(
    int64_t flat, absl::FunctionRef<void(const OwnedPiece&, int64_t, int64_t, const TransferSource&)> visit) const {
  const int32_t host = exchange_.hosts.HostOf(exchange_.source.mesh.workers()[static_cast<size_t>(flat)]);
  tables_->VisitHeld(flat, [&](const ExchangeCell& cell) {
    for (const OwnedPiece& piece : tables_->PiecesOfCell(cell)) {
      VisitSums(piece, host, [&](int64_t low, int64_t high, const Sources& sources) {
        for (const TransferSource& source : sources) {
          const auto& added_up = source.added_up;
          const bool has_part =
              source.flat_position == flat || std::find(added_up.begin(), added_up.end(), flat) != added_up.end();
          if (has_part) visit(piece, low, high, source);
        }
      });
    }
  });
}

std::vector<ExchangeWalk::Given> ExchangeWalk::SumsGivenBy(WorkerIndex worker) const {
  const std::optional<int64_t> flat = exchange_.source.mesh.FindWorker(worker);
  if (!flat.has_value()) return {};
  GivenList given(exchange_);
  VisitSumsOf(*flat, [&](const OwnedPiece& piece, int64_t low, int64_t high, const TransferSource& source) {
    if (source.flat_position != *flat || tables_->HolderOfDestination(piece.owner).flat == *flat) return;
    given.Add(piece.cell, low, high, TermsOf(source, exchange_.source.mesh), piece.owner);
  });
  return std::move(given).Sorted();
}

std::vector<ExchangeWalk::Given> ExchangeWalk::SpreadBy(int64_t flat) const {
  GivenList given(exchange_);
  const Sources self = {{exchange_.destination.mesh.workers()[static_cast<size_t>(flat)], flat, {}}};
  const int64_t group = tables_->GroupOf(flat);
  for (const OwnedPiece& piece : tables_->PiecesOf(group)) {
    if (piece.owner != flat) continue;
    for (const int64_t offset : tables_->member_offsets()) {
      const int64_t destination = group + offset;
      if (tables_->HasBeforeSpread(piece, destination)) continue;
      tables_->VisitTaken(piece.cell, piece.low, piece.high, flat, destination,
                          [&](int64_t low, int64_t high) { given.Add(piece.cell, low, high, self, destination); });
    }
  }
  return std::move(given).Sorted();
}

std::vector<ExchangeWalk::Given> ExchangeWalk::SharedBy(int64_t flat) const {
  GivenList given(exchange_);
  const Sources self = {{exchange_.destination.mesh.workers()[static_cast<size_t>(flat)], flat, {}}};
  const int32_t host = tables_->HostOfDestination(flat);
  std::vector<int64_t> mates = tables_->MembersOn(tables_->GroupOf(flat), host);
  std::erase(mates, flat);
  if (mates.empty()) return {};
  tables_->VisitFar(flat, [&](const ExchangeCell& cell, int64_t low, int64_t high) {
    tables_->VisitTakers(cell, low, high, host, [&](int64_t taker, int64_t from, int64_t to) {
      if (taker != flat) return;
      for (const int64_t mate : mates) given.Add(cell, from, to, self, mate);
    });
  });
  return std::move(given).Sorted();
}

std::vector<ExchangeWalk::Given> ExchangeWalk::RoundGivenBy(WorkerIndex worker) const {
  const Mesh& mesh = exchange_.destination.mesh;
  const std::optional<int64_t> flat = mesh.FindWorker(worker);
  if (!flat.has_value()) return {};
  GivenList given(exchange_);
  for (const int64_t taker : rounds_->Takers(*flat)) {
    rounds_->VisitTaken(taker, [&](const ExchangeCell& cell, int64_t low, int64_t high, const Sources& sources) {
      const auto own = std::find_if(sources.begin(), sources.end(),
                                    [&](const TransferSource& source) { return source.flat_position == *flat; });
      if (own == sources.end()) return;
      given.Add(cell, low, high, TermsOf(*own, mesh), taker);
    });
  }
  return std::move(given).Sorted();
}

std::vector<ExchangeWalk::Given> ExchangeWalk::GivenBy(WorkerIndex worker) const {
  if (rounds_ != nullptr) return RoundGivenBy(worker);
  const Mesh& to = exchange_.destination.mesh;
  if (exchange_.is_in_place()) {
    const std::optional<int64_t> flat = to.FindWorker(worker);
    if (!flat.has_value()) return {};
    return exchange_.role == ExchangeRole::kSpread ? SpreadBy(*flat) : SharedBy(*flat);
  }
  if (exchange_.role == ExchangeRole::kReduce && exchange_.hosts.several()) return SumsGivenBy(worker);
  const std::optional<int64_t> flat = exchange_.source.mesh.FindWorker(worker);
  if (!flat.has_value()) return {};
  const ExchangeTables::Holder self = tables_->HolderAt(*flat);
  const Sources sources = {{worker, *flat, {}}};
  GivenList given(exchange_);
  tables_->VisitHeld(*flat, [&](const ExchangeCell& cell) {
    const auto add = [&](int64_t low, int64_t high, int64_t destination) {
      const ExchangeTables::Holder& own = tables_->HolderOfDestination(destination);
      const bool holds = own.family == cell.family;
      if (holds && (exchange_.role == ExchangeRole::kMove || own.term == self.term)) return;
      tables_->VisitParts(cell, low, high, destination, [&](int64_t replica, int64_t part_low, int64_t part_high) {
        const bool gives = exchange_.role == ExchangeRole::kMove
                               ? replica == self.replica
                               : tables_->SourceOf(cell, self.term, replica, destination) == self.flat;
        if (gives) given.Add(cell, part_low, part_high, sources, destination);
      });
    };
    if (exchange_.role == ExchangeRole::kMove) {
      for (const int64_t offset : tables_->member_offsets()) {
        const int64_t destination = cell.destination + offset;
        tables_->VisitTaken(cell, 0, cell.elements, ExchangeTables::kMoved, destination,
                            [&](int64_t low, int64_t high) { add(low, high, destination); });
      }
      return;
    }
    for (const OwnedPiece& piece : tables_->PiecesOfCell(cell)) add(piece.low, piece.high, piece.owner);
  });
  return std::move(given).Sorted();
}

std::vector<WorkerIndex> ExchangeWalk::AddersOf(WorkerIndex worker) const {
  const std::optional<int64_t> flat = exchange_.source.mesh.FindWorker(worker);
  if (exchange_.role != ExchangeRole::kReduce || !exchange_.hosts.several() || !flat.has_value()) return {};
  std::vector<WorkerIndex> adders;
  if (rounds_ != nullptr && !exchange_.is_in_place()) {
    for (const int64_t mate : rounds_->Mates(*flat)) {
      const WorkerIndex adder = exchange_.source.mesh.workers()[static_cast<size_t>(mate)];
      const std::vector<Given> given = RoundGivenBy(adder);
      if (std::any_of(given.begin(), given.end(), [](const Given& each) { return each.transfer.sources.size() > 1; })) {
        adders.push_back(adder);
      }
    }
  } else if (rounds_ == nullptr) {
    VisitSumsOf(*flat, [&](const OwnedPiece&, int64_t, int64_t, const TransferSource& source) {
      if (!source.added_up.empty() && source.worker != worker) adders.push_back(source.worker);
    });
  }
  std::sort(adders.begin(), adders.end());
  adders.erase(std::unique(adders.begin(), adders.end()), adders.end());
  return adders;
}

std::vector<Transfer> TransfersTo(const Exchange& exchange, absl::Span<const int64_t> position) {
  return ExchangeWalk(exchange).TransfersTo(position);
}

}  // namespace tessera
