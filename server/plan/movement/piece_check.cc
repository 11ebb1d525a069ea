#include "server/plan/movement/piece_check.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "schemas/types/layout.h"
#include "schemas/types/mix_bits.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// Cells of one position up to which it is looked at: more than there are workers.
constexpr int64_t kMaxCells = 1 << 16;
// Positions that are looked at however many pieces they take: the first and the last.
constexpr int64_t kFirstTakers = 2;
// Cells of one sender, counted for each position that wants them, up to which it is looked at: where more than this are
// offered, as by each worker of a spread over many hosts, a look at one sender would take longer than the plan.
constexpr int64_t kMaxOffered = 1 << 13;
// Senders that are looked at first, of those that the first positions take from.
constexpr size_t kFirstGivers = 2;

template <typename... Ts>
absl::Status Wrong(const Ts&... pieces) {
  return absl::InternalError(StrCat(pieces...));
}

// Positions in the order in which they are looked at: the first, the last, then strewn over the mesh, each once.
class StrewnPositions {
 public:
  explicit StrewnPositions(int64_t size) : size_(size) {
    while (room_ < size) room_ *= 2;
    step_ = (room_ * 5 / 8) | 1;  // odd: it comes by every number below a power of two
  }
  bool is_done() const { return count_ == size_; }
  // Not when done.
  int64_t Next() {
    ++count_;
    if (count_ == 1) return 0;
    if (count_ == 2) return size_ - 1;
    do {
      number_ = (number_ + step_) % room_;
    } while (number_ == 0 || number_ >= size_ - 1);
    return number_;
  }

 private:
  const int64_t size_;
  int64_t room_ = 1;
  int64_t step_ = 1;
  int64_t number_ = 0;
  int64_t count_ = 0;
};

// The hash of a piece from one giver, who gives so many terms of it. Sums of these tell lists of pieces apart, in
// whatever order they come.
uint64_t HashOf(const Piece& piece, size_t terms) {
  uint64_t hash = 0x9e3779b97f4a7c15U;
  for (const int64_t part : {piece.cell, piece.low, piece.high, piece.taker, static_cast<int64_t>(terms)}) {
    hash = MixBits(hash + 0x9e3779b97f4a7c15U + static_cast<uint64_t>(part));
  }
  return hash;
}

// The cells of an exchange, found from its overlay alone.
class Cells {
 public:
  explicit Cells(const Exchange& exchange) : exchange_(exchange) {
    for (size_t d = 0; d < exchange.dims.size(); ++d) {
      const std::vector<OverlayEntry>& entries = exchange.dims[d].entries;
      std::vector<std::vector<int64_t>>& of_shards = entries_of_shards_.emplace_back();
      for (size_t i = 0; i < entries.size(); ++i) {
        const size_t shard = static_cast<size_t>(entries[i].destination_shard);
        if (of_shards.size() <= shard) of_shards.resize(shard + 1);
        of_shards[shard].push_back(static_cast<int64_t>(i));
      }
    }
    const TensorSpec& from = exchange.source;
    const TensorSpec& to = exchange.destination;
    for (size_t j = 0; HaveSameArrangement(from.mesh, to.mesh) && j < to.placements.size(); ++j) {
      if (from.placements[j].is_partial() && to.placements[j].is_partial()) carried_dims_.push_back(j);
    }
  }

  struct Wanted {
    int64_t cell = 0;
    int64_t elements = 0;
  };
  int64_t CountWantedBy(const Position& position) const {
    int64_t count = 1;
    for (size_t d = 0; d < exchange_.dims.size(); ++d) {
      const auto shard = static_cast<size_t>(ShardIndex(exchange_.destination, static_cast<int>(d), position));
      const bool wants = shard < entries_of_shards_[d].size();
      const int64_t entries = wants ? static_cast<int64_t>(entries_of_shards_[d][shard].size()) : 0;
      count = entries > kMaxCells ? kMaxCells + 1 : std::min(count * entries, kMaxCells + 1);
    }
    return count;
  }

  // The elements that a position wants, by cell.
  std::vector<Wanted> WantedBy(const Position& position) const {
    std::vector<Wanted> wanted = {{0, 1}};
    for (size_t d = 0; d < exchange_.dims.size(); ++d) {
      const auto shard = static_cast<size_t>(ShardIndex(exchange_.destination, static_cast<int>(d), position));
      const std::vector<OverlayEntry>& entries = exchange_.dims[d].entries;
      std::vector<Wanted> longer;
      if (shard < entries_of_shards_[d].size()) {
        longer.reserve(wanted.size() * entries_of_shards_[d][shard].size());
        for (const Wanted& each : wanted) {
          for (const int64_t i : entries_of_shards_[d][shard]) {
            longer.push_back({each.cell * static_cast<int64_t>(entries.size()) + i,
                              each.elements * entries[static_cast<size_t>(i)].size});
          }
        }
      }
      wanted = std::move(longer);
    }
    return wanted;
  }

  // Whether two positions of the destination's mesh want the same cells.
  bool WantTheSame(const Position& a, const Position& b) const {
    for (int d = 0; d < exchange_.destination.rank(); ++d) {
      if (ShardIndex(exchange_.destination, d, a) != ShardIndex(exchange_.destination, d, b)) return false;
    }
    return std::all_of(carried_dims_.begin(), carried_dims_.end(), [&](size_t j) { return a[j] == b[j]; });
  }

  // Whether a position of the source's mesh has the cell; terms that stay pending are those of the taker's coordinates.
  bool Has(const Position& holder, int64_t cell, const Position& taker) const {
    for (size_t d = exchange_.dims.size(); d-- > 0;) {
      const std::vector<OverlayEntry>& entries = exchange_.dims[d].entries;
      const auto count = static_cast<int64_t>(entries.size());
      const OverlayEntry& entry = entries[static_cast<size_t>(cell % count)];
      if (ShardIndex(exchange_.source, static_cast<int>(d), holder) != entry.source_shard) return false;
      cell /= count;
    }
    return std::all_of(carried_dims_.begin(), carried_dims_.end(), [&](size_t j) { return holder[j] == taker[j]; });
  }

 private:
  const Exchange& exchange_;
  std::vector<std::vector<std::vector<int64_t>>> entries_of_shards_;  // by dim and destination shard
  std::vector<size_t> carried_dims_;
};

// One exchange, as it was seen at the positions that were looked at.
struct Seen {
  absl::flat_hash_map<WorkerIndex, uint64_t> taken_from;  // sums of hashes
  std::vector<WorkerIndex> givers;                        // the first of them: kFirstGivers
  absl::flat_hash_map<WorkerIndex, int64_t> received;     // elements
  absl::flat_hash_map<WorkerIndex, int64_t> sent;
};

class PieceCheck {
 public:
  explicit PieceCheck(const std::vector<ExchangeViews>& exchanges)
      : exchanges_(exchanges),
        to_(exchanges[0].exchange->destination),
        cells_(*exchanges[0].exchange),
        is_looked_at_(static_cast<size_t>(to_.mesh.size()), false),
        seen_(exchanges.size()) {}

  absl::Status Run() {
    StrewnPositions takers(to_.mesh.size());
    for (int64_t count = 0; !takers.is_done() && (count < kFirstTakers || visited_ < kMaxVerifiedPieces); ++count) {
      TESSERA_RETURN_IF_ERROR(CheckPosition(takers.Next()));
    }
    is_complete_ = is_complete_ && takers.is_done();
    for (size_t i = 0; i < exchanges_.size(); ++i) {
      TESSERA_RETURN_IF_ERROR(CheckSenders(exchanges_[i], seen_[i]));
      TESSERA_RETURN_IF_ERROR(CheckTotals(exchanges_[i], seen_[i]));
    }
    return absl::OkStatus();
  }

 private:
  struct Part {
    int64_t cell = 0;
    int64_t low = 0;
    int64_t high = 0;
  };

  absl::Status CheckPosition(int64_t flat) {
    const Position position = to_.mesh.PositionAt(flat);
    if (cells_.CountWantedBy(position) > kMaxCells) {
      is_complete_ = false;
      return absl::OkStatus();
    }
    is_looked_at_[static_cast<size_t>(flat)] = true;
    std::vector<Part> parts;
    for (size_t i = 0; i < exchanges_.size(); ++i) {
      absl::Status status;
      exchanges_[i].views->VisitTaken(flat, [&](const Piece& piece) {
        parts.push_back({piece.cell, piece.low, piece.high});
        visited_ += static_cast<int64_t>(piece.sources.size());
        if (status.ok()) status = CheckSources(*exchanges_[i].exchange, piece, position, seen_[i]);
      });
      TESSERA_RETURN_IF_ERROR(status);
    }
    return CheckTiles(std::move(parts), flat, position);
  }

  absl::Status CheckTiles(std::vector<Part> parts, int64_t flat, const Position& position) const {
    const auto before = [](const Part& a, const Part& b) {
      return std::pair(a.cell, a.low) < std::pair(b.cell, b.low);
    };
    if (!std::is_sorted(parts.begin(), parts.end(), before)) std::sort(parts.begin(), parts.end(), before);
    size_t next = 0;
    for (const Cells::Wanted& wanted : cells_.WantedBy(position)) {
      int64_t at = 0;
      for (; next < parts.size() && parts[next].cell == wanted.cell && parts[next].low == at; ++next) {
        if (parts[next].high <= at) return Wrong("position ", flat, " takes nothing of cell ", wanted.cell);
        at = parts[next].high;
      }
      if (at == wanted.elements) continue;
      return Wrong("position ", flat, " takes ", at, " of ", wanted.elements, " elements of cell ", wanted.cell,
                   " in one piece after another");
    }
    if (next == parts.size()) return absl::OkStatus();
    return Wrong("position ", flat, " takes elements ", parts[next].low, " to ", parts[next].high, " of cell ",
                 parts[next].cell, " beside what it wants, or twice");
  }

  // The terms of a piece, and who has them.
  absl::Status CheckSources(const Exchange& exchange, const Piece& piece, const Position& position, Seen& seen) {
    const WorkerIndex self = to_.mesh.workers()[static_cast<size_t>(piece.taker)];
    const Mesh& from = exchange.source.mesh;
    const int64_t elements = piece.high - piece.low;
    const auto receive = [&](WorkerIndex giver, WorkerIndex taker) {
      if (giver == taker) return;
      seen.received[taker] += elements;
      seen.sent[giver] += elements;
    };
    terms_.clear();
    for (const TransferSource& source : piece.sources) {
      receive(source.worker, self);
      if (source.worker != self) {
        const size_t terms = std::max<size_t>(1, source.added_up.size());
        const auto [taken, is_new] = seen.taken_from.try_emplace(source.worker, 0);
        taken->second += HashOf(piece, terms);
        if (is_new && seen.givers.size() < kFirstGivers) seen.givers.push_back(source.worker);
      }
      if (source.added_up.empty()) terms_.push_back(source.flat_position);
      for (const int64_t term : source.added_up) {
        receive(from.workers()[static_cast<size_t>(term)], source.worker);
        terms_.push_back(term);
      }
    }
    if (exchange.is_in_place()) {
      const bool is_one =
          terms_.size() == 1 && terms_[0] != piece.taker && terms_[0] >= 0 && terms_[0] < to_.mesh.size();
      if (is_one && cells_.WantTheSame(to_.mesh.PositionAt(terms_[0]), position)) return absl::OkStatus();
      return Wrong("position ", piece.taker, " takes cell ", piece.cell, " from where it is not");
    }
    const int64_t count = exchange.reduces() ? PendingTerms(exchange.source, exchange.destination) : 1;
    std::sort(terms_.begin(), terms_.end());
    const bool are_different = std::adjacent_find(terms_.begin(), terms_.end()) == terms_.end();
    if (!are_different || static_cast<int64_t>(terms_.size()) != count) {
      return Wrong("position ", piece.taker, " has ", terms_.size(), " of ", count, " terms of cell ", piece.cell,
                   are_different ? "" : ", one of them twice");
    }
    for (const int64_t term : terms_) {
      if (term >= 0 && term < from.size() && cells_.Has(from.PositionAt(term), piece.cell, position)) continue;
      return Wrong("position ", piece.taker, " takes cell ", piece.cell, " from position ", term, ", which has it not");
    }
    return absl::OkStatus();
  }

  absl::Status CheckSenders(const ExchangeViews& each, const Seen& seen) {
    const Mesh& givers = each.exchange->is_in_place() ? to_.mesh : each.exchange->source.mesh;
    StrewnPositions positions(givers.size());
    size_t next = 0;
    for (int64_t visited = 0; !positions.is_done() && visited < kMaxVerifiedPieces;) {
      const WorkerIndex worker =
          next < seen.givers.size() ? seen.givers[next++] : givers.workers()[static_cast<size_t>(positions.Next())];
      uint64_t given = 0;
      const int64_t offered = CountOffered(*each.exchange, worker);
      if (offered > kMaxOffered) return absl::OkStatus();
      visited += offered;
      each.views->VisitGiven(worker, [&](const Piece& piece) {
        if (is_looked_at_[static_cast<size_t>(piece.taker)]) given += HashOf(piece, piece.sources.size());
      });
      const auto taken = seen.taken_from.find(worker);
      if (given == (taken == seen.taken_from.end() ? 0 : taken->second)) continue;
      return Wrong("worker ", worker.value, " gives other pieces than are taken from it");
    }
    return absl::OkStatus();
  }

  // The cells that a worker has, once for each position that wants them: what it takes to see what it gives.
  static int64_t CountOffered(const Exchange& exchange, WorkerIndex worker) {
    const TensorSpec& spec = exchange.is_in_place() ? exchange.destination : exchange.source;
    const Position position = spec.mesh.PositionAt(*spec.mesh.FindWorker(worker));
    int64_t offered = 1;
    for (size_t d = 0; d < exchange.dims.size(); ++d) {
      const std::vector<OverlayEntry>& entries = exchange.dims[d].entries;
      const int64_t shard = ShardIndex(spec, static_cast<int>(d), position);
      const auto count = std::count_if(entries.begin(), entries.end(), [&](const OverlayEntry& entry) {
        return (exchange.is_in_place() ? entry.destination_shard : entry.source_shard) == shard;
      });
      offered = std::min<int64_t>(offered * std::max<int64_t>(1, count), kMaxOffered + 1);
    }
    for (size_t j = 0; j < exchange.destination.placements.size(); ++j) {
      if (exchange.destination.placements[j].is_shard()) continue;
      offered = std::min(offered * exchange.destination.mesh.shape()[j], kMaxOffered + 1);
    }
    return offered;
  }

  absl::Status CheckTotals(const ExchangeViews& each, const Seen& seen) {
    if (!is_complete_ && !each.views->HasQuickTotals()) return absl::OkStatus();
    absl::flat_hash_map<WorkerIndex, int64_t> received, sent;
    int64_t all_received = 0, all_sent = 0;
    each.views->VisitTotals(
        [&](WorkerIndex worker, int64_t elements) { received[worker] += elements, all_received += elements; },
        [&](WorkerIndex worker, int64_t elements) { sent[worker] += elements, all_sent += elements; });
    if (all_received != all_sent) return Wrong("workers receive ", all_received, " elements and send ", all_sent);
    // A worker receives the terms besides that it adds up for others.
    const bool adds_up = each.exchange->reduces() && each.exchange->hosts.several();
    for (const auto& [worker, elements] : received) {
      const std::optional<int64_t> flat = to_.mesh.FindWorker(worker);
      const bool is_known = is_complete_ || (!adds_up && flat.has_value() && is_looked_at_[static_cast<size_t>(*flat)]);
      if (is_known && ValueAt(seen.received, worker) != elements) {
        return Wrong("worker ", worker.value, " receives ", ValueAt(seen.received, worker), " elements, its total is ",
                     elements);
      }
    }
    for (const auto& [worker, elements] : sent) {
      if (!is_complete_ || ValueAt(seen.sent, worker) == elements) continue;
      return Wrong("worker ", worker.value, " sends ", ValueAt(seen.sent, worker), " elements, its total is ",
                   elements);
    }
    return absl::OkStatus();
  }

  static int64_t ValueAt(const absl::flat_hash_map<WorkerIndex, int64_t>& values, WorkerIndex worker) {
    const auto found = values.find(worker);
    return found == values.end() ? 0 : found->second;
  }

  const std::vector<ExchangeViews>& exchanges_;
  const TensorSpec& to_;
  const Cells cells_;
  std::vector<bool> is_looked_at_;  // by position of the destination
  std::vector<Seen> seen_;          // by exchange
  std::vector<int64_t> terms_;
  int64_t visited_ = 0;
  bool is_complete_ = true;
};

}  // namespace

absl::Status CheckPieces(const std::vector<ExchangeViews>& exchanges) { return PieceCheck(exchanges).Run(); }

}  // namespace tessera
