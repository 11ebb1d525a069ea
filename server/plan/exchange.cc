#include "server/plan/exchange.h"

#include <algorithm>
#include <optional>

#include "schemas/types/layout.h"
#include "server/plan/exchange_tables.h"

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
      transfer.source_offset.push_back(exchange.role == ExchangeRole::kSpread
                                           ? entry.destination_offset + offset[d]
                                           : entry.source_offset + exchange.dims[d].source_step * offset[d]);
    }
  });
}

// Adds up what is said of the givers of one destination, part by part.
class GivenList {
 public:
  GivenList(const Exchange& exchange, TransferSource self) : exchange_(exchange), sources_({self}) {}

  void Add(const ExchangeCell& cell, int64_t low, int64_t high, int64_t destination) {
    std::vector<Transfer> boxes;
    AddBoxes(exchange_, cell, low, high, sources_, boxes);
    for (Transfer& box : boxes) given_.push_back({destination, std::move(box)});
  }
  std::vector<ExchangeWalk::Given> Sorted() && {
    std::stable_sort(given_.begin(), given_.end(),
                     [](const auto& a, const auto& b) { return a.destination < b.destination; });
    return std::move(given_);
  }

 private:
  const Exchange& exchange_;
  const Sources sources_;
  std::vector<ExchangeWalk::Given> given_;
};

}  // namespace

bool SamePositions(const Mesh& a, const Mesh& b) {
  return a == b || (a.shape() == b.shape() && a.workers() == b.workers());
}

ExchangeWalk::ExchangeWalk(const Exchange& exchange)
    : exchange_(exchange), tables_(std::make_unique<const ExchangeTables>(exchange)) {}
ExchangeWalk::~ExchangeWalk() = default;

int64_t ExchangeWalk::term_count() const { return exchange_.role == ExchangeRole::kReduce ? tables_->term_count() : 1; }

void ExchangeWalk::AddMoves(int64_t destination, std::vector<Transfer>& transfers) const {
  const std::vector<WorkerIndex>& workers = exchange_.source.mesh.workers();
  const ExchangeTables::Holder& own = tables_->HolderOfDestination(destination);
  const auto from = [&workers](int64_t flat) { return Sources{{workers[static_cast<size_t>(flat)], flat}}; };
  tables_->VisitWanted(destination, [&](const ExchangeCell& cell) {
    if (own.family == cell.family) return AddBoxes(exchange_, cell, 0, cell.elements, from(own.flat), transfers);
    tables_->VisitParts(cell, 0, cell.elements, destination, [&](int64_t replica, int64_t low, int64_t high) {
      const int64_t flat = cell.source + tables_->replica_offsets()[static_cast<size_t>(replica)];
      AddBoxes(exchange_, cell, low, high, from(flat), transfers);
    });
  });
}

void ExchangeWalk::AddReductions(int64_t destination, std::vector<Transfer>& transfers) const {
  const std::vector<WorkerIndex>& workers = exchange_.source.mesh.workers();
  for (const ReducedPiece& piece : tables_->PiecesOf(tables_->GroupOf(destination))) {
    if (piece.reducer != destination) continue;
    const ExchangeCell& cell = piece.cell;
    tables_->VisitParts(cell, piece.low, piece.high, destination, [&](int64_t replica, int64_t low, int64_t high) {
      Sources sources;
      for (int64_t term = 0; term < tables_->term_count(); ++term) {
        const int64_t flat = tables_->SourceOf(cell, term, replica, destination);
        sources.push_back({workers[static_cast<size_t>(flat)], flat});
      }
      AddBoxes(exchange_, cell, low, high, sources, transfers);
    });
  }
}

void ExchangeWalk::AddSpreads(int64_t destination, std::vector<Transfer>& transfers) const {
  const std::vector<WorkerIndex>& workers = exchange_.destination.mesh.workers();
  for (const ReducedPiece& piece : tables_->PiecesOf(tables_->GroupOf(destination))) {
    if (piece.reducer == destination) continue;
    AddBoxes(exchange_, piece.cell, piece.low, piece.high,
             {{workers[static_cast<size_t>(piece.reducer)], piece.reducer}}, transfers);
  }
}

std::vector<Transfer> ExchangeWalk::TransfersTo(absl::Span<const int64_t> position) const {
  std::vector<Transfer> transfers;
  const int64_t destination = exchange_.destination.mesh.FlatPosition(position);
  switch (exchange_.role) {
    case ExchangeRole::kMove: AddMoves(destination, transfers); break;
    case ExchangeRole::kReduce: AddReductions(destination, transfers); break;
    case ExchangeRole::kSpread: AddSpreads(destination, transfers); break;
  }
  return transfers;
}

void ExchangeWalk::VisitReceived(absl::Span<const int64_t> position,
                                 absl::FunctionRef<void(WorkerIndex, int64_t)> visit) const {
  const WorkerIndex self = exchange_.destination.mesh.WorkerAt(position);
  for (const Transfer& transfer : TransfersTo(position)) {
    const int64_t elements = NumElements(transfer.box);
    for (const TransferSource& source : transfer.sources) {
      if (source.worker != self) visit(source.worker, elements);
    }
  }
}

std::vector<ExchangeWalk::Given> ExchangeWalk::GivenBy(WorkerIndex worker) const {
  const Mesh& to = exchange_.destination.mesh;
  if (exchange_.role == ExchangeRole::kSpread) {
    const std::optional<int64_t> flat = to.FindWorker(worker);
    if (!flat.has_value()) return {};
    GivenList given(exchange_, {worker, *flat});
    const int64_t group = tables_->GroupOf(*flat);
    for (const ReducedPiece& piece : tables_->PiecesOf(group)) {
      if (piece.reducer != *flat) continue;
      for (const int64_t offset : tables_->member_offsets()) {
        if (group + offset != *flat) given.Add(piece.cell, piece.low, piece.high, group + offset);
      }
    }
    return std::move(given).Sorted();
  }
  const std::optional<int64_t> flat = exchange_.source.mesh.FindWorker(worker);
  if (!flat.has_value()) return {};
  const ExchangeTables::Holder self = tables_->HolderAt(*flat);
  GivenList given(exchange_, {worker, *flat});
  tables_->VisitHeld(*flat, [&](const ExchangeCell& cell) {
    const auto add = [&](int64_t low, int64_t high, int64_t destination) {
      const ExchangeTables::Holder& own = tables_->HolderOfDestination(destination);
      const bool holds = own.family == cell.family;
      if (holds && (exchange_.role == ExchangeRole::kMove || own.term == self.term)) return;
      tables_->VisitParts(cell, low, high, destination, [&](int64_t replica, int64_t part_low, int64_t part_high) {
        const bool gives = exchange_.role == ExchangeRole::kMove
                               ? replica == self.replica
                               : tables_->SourceOf(cell, self.term, replica, destination) == self.flat;
        if (gives) given.Add(cell, part_low, part_high, destination);
      });
    };
    if (exchange_.role == ExchangeRole::kMove) {
      for (const int64_t offset : tables_->member_offsets()) add(0, cell.elements, cell.destination + offset);
      return;
    }
    for (const ReducedPiece& piece : tables_->PiecesOf(cell.destination)) {
      if (piece.cell.number == cell.number) add(piece.low, piece.high, piece.reducer);
    }
  });
  return std::move(given).Sorted();
}

std::vector<int64_t> ExchangeWalk::ReadersOf(WorkerIndex worker) const {
  std::vector<int64_t> flats;
  for (const Given& given : GivenBy(worker)) {
    if (flats.empty() || flats.back() != given.destination) flats.push_back(given.destination);
  }
  return flats;
}

void ExchangeWalk::VisitMoveTraffic(absl::FunctionRef<void(int64_t, int64_t)> received,
                                    absl::FunctionRef<void(WorkerIndex, int64_t)> sent) const {
  const Mesh& from = exchange_.source.mesh;
  const Mesh& to = exchange_.destination.mesh;
  for (int64_t flat = 0; flat < to.size(); ++flat) {
    const ExchangeTables::Holder& own = tables_->HolderOfDestination(flat);
    const int64_t wanted = NumElements(LocalBox(exchange_.destination, to.PositionAt(flat)));
    received(flat, wanted - (own.flat < 0 ? 0 : tables_->CommonElements(own.flat, flat)));
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

void ExchangeWalk::VisitReduceTraffic(absl::FunctionRef<void(int64_t, int64_t)> received,
                                      absl::FunctionRef<void(WorkerIndex, int64_t)> sent) const {
  const std::vector<WorkerIndex>& workers = exchange_.source.mesh.workers();
  const int64_t terms = tables_->term_count();
  // What all holders of a family's replica give for each of their terms, own pieces included.
  absl::flat_hash_map<std::pair<int64_t, int64_t>, int64_t> given;
  for (int64_t flat = 0; flat < exchange_.destination.mesh.size(); ++flat) {
    if (tables_->GroupOf(flat) != flat) continue;
    for (const ReducedPiece& piece : tables_->PiecesOf(flat)) {
      const ExchangeTables::Holder& own = tables_->HolderOfDestination(piece.reducer);
      const bool owns = own.family == piece.cell.family;
      received(piece.reducer, (piece.high - piece.low) * (owns ? terms - 1 : terms));
      tables_->VisitParts(
          piece.cell, piece.low, piece.high, piece.reducer, [&](int64_t replica, int64_t low, int64_t high) {
            if (exchange_.hosts.several()) {
              for (int64_t term = 0; term < terms; ++term) {
                const int64_t giver = tables_->SourceOf(piece.cell, term, replica, piece.reducer);
                if (giver != own.flat) sent(workers[static_cast<size_t>(giver)], high - low);
              }
              return;
            }
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

void ExchangeWalk::VisitSpreadTraffic(absl::FunctionRef<void(int64_t, int64_t)> received,
                                      absl::FunctionRef<void(WorkerIndex, int64_t)> sent) const {
  const Mesh& to = exchange_.destination.mesh;
  const int64_t others = static_cast<int64_t>(tables_->member_offsets().size()) - 1;
  for (int64_t flat = 0; flat < to.size(); ++flat) {
    received(flat, NumElements(LocalBox(exchange_.destination, to.PositionAt(flat))));
    if (tables_->GroupOf(flat) != flat) continue;
    for (const ReducedPiece& piece : tables_->PiecesOf(flat)) {
      received(piece.reducer, piece.low - piece.high);
      sent(to.workers()[static_cast<size_t>(piece.reducer)], (piece.high - piece.low) * others);
    }
  }
}

void ExchangeWalk::VisitTraffic(absl::FunctionRef<void(int64_t, int64_t)> received,
                                absl::FunctionRef<void(WorkerIndex, int64_t)> sent) const {
  switch (exchange_.role) {
    case ExchangeRole::kMove: return VisitMoveTraffic(received, sent);
    case ExchangeRole::kReduce: return VisitReduceTraffic(received, sent);
    case ExchangeRole::kSpread: return VisitSpreadTraffic(received, sent);
  }
}

std::vector<Transfer> TransfersTo(const Exchange& exchange, absl::Span<const int64_t> position) {
  return ExchangeWalk(exchange).TransfersTo(position);
}

}  // namespace tessera
