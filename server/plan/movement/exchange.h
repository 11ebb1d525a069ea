#pragma once

// Exchange: who takes what from whom, in factorised form. Per tensor dim a 1-D overlay of source and
// destination intervals; the product over dims is implied. 4,096 workers cost thousands of entries,
// not millions of pairs.
//
//   rows to columns, 4x4 on two workers:
//     dim 0: [0:2) shard 0 -> shard 0 (whole), [2:4) shard 1 -> shard 0   destination is not cut here
//     dim 1: [0:2) -> destination shard 0, [2:4) -> destination shard 1   source is not cut here
//
// A cell is one entry per dim: a box of the destination that lies in one shard of the source and in
// one of the destination. If source and destination differ in dtype, elements are converted as they are written, or
// before they are given (Delivery::kPush). Law: over the cells that a position receives, every element of its box is
// written exactly once (kMove, kReduce with kGatherReduced together), or reduced exactly once per term. By rounds
// what is reduced in part lies there, too, until the whole replaces it.

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "schemas/types/tensor_spec.h"
#include "server/plan/movement/worker_hosts.h"

namespace tessera {

struct OverlayEntry {
  int64_t start = 0;  // global index in the destination's dim
  int64_t size = 0;
  int32_t source_shard = 0;        // shard index along this dim (layout.h) in the source
  int32_t destination_shard = 0;   // in the destination
  int64_t source_offset = 0;       // first element, within the source's shard along this dim
  int64_t destination_offset = 0;  // within the destination's shard
  bool operator==(const OverlayEntry&) const = default;
};

struct DimOverlay {
  int64_t source_step = 1;  // a slice x[::2] walks the source with a step; may be negative
  std::vector<OverlayEntry> entries;
  bool operator==(const DimOverlay&) const = default;
};

enum class ExchangeRole : uint8_t {
  kMove = 0,           // no pending terms: every destination takes each cell from one holder
  kReduce = 1,         // pending terms: one destination of each cell (the reducer) takes all terms and reduces
                       // them, in the order of the source's coordinates, into its own place
  kGatherReduced = 2,  // the other destinations take the reduced cell from the reducer's place, or the relay's
  kHostGather = 3,     // several hosts: the others of a host take what one of them took from far from its place
};

// How what is moved or spread reaches others where memory is mapped: they take it when its giver has it; or the giver
// stores it to them, which saves reading it again for each, and converts it before (kMove), or as it reduces
// (kGatherReduced). Destinations that are reached by messages get them in time to read their own place.
enum class Delivery : uint8_t { kPull = 0, kPush = 1 };

// Several hosts: who takes what none of its host has, under kMove and kGatherReduced.
enum class FarTakers : uint8_t {
  kEach = 0,    // everyone that wants it
  kOne = 1,     // one of those on its host that want it; a kHostGather follows
  kRelays = 2,  // of a kMove: one of all that want it, the relay; a kGatherReduced, under which one of each host takes
                // it from the relay, and a kHostGather follow
};

// Several hosts: a step of those by which they exchange in rounds, each with the few that differ from it in one digit
// of their numbers (recursive halving and doubling; exchange_rounds.h).
struct Rounds {
  std::vector<int> factors;  // of the number of hosts, most significant first; none: not by rounds
  int digit = 0;             // the step's; of a kHostGather 0
  int count() const { return static_cast<int>(factors.size()); }
  bool is_last() const { return digit + 1 == count(); }
  bool operator==(const Rounds&) const = default;
};

struct Exchange {
  ExchangeRole role = ExchangeRole::kMove;
  ReduceOp reduce_op = ReduceOp::kSum;
  Delivery delivery = Delivery::kPull;  // kPush: of a kMove or kGatherReduced
  FarTakers far_takers = FarTakers::kEach;
  // The specs that the shard indexes refer to. In place `source` is that of the step that moved or reduced first: the
  // same reducers and takers are found again.
  TensorSpec source;
  TensorSpec destination;
  std::vector<DimOverlay> dims;
  WorkerHosts hosts;  // the plan's
  Rounds rounds;
  bool is_by_rounds() const { return !rounds.factors.empty(); }
  bool is_pushed_move() const { return role == ExchangeRole::kMove && delivery == Delivery::kPush; }
  // Adds to what an earlier exchange wrote: the cells that it takes lie in the value that it writes.
  bool is_in_place() const {
    const bool reduces_further = role == ExchangeRole::kReduce && is_by_rounds() && rounds.digit > 0;
    return role == ExchangeRole::kGatherReduced || role == ExchangeRole::kHostGather || reduces_further;
  }
  bool reduces() const { return role == ExchangeRole::kReduce; }
  bool operator==(const Exchange&) const = default;
};

// The dtype in which workers take elements from each other: the source's; the destination's where they
// were converted before.
inline DType TakenDType(const Exchange& exchange) {
  return exchange.is_in_place() || exchange.is_pushed_move() ? exchange.destination.dtype : exchange.source.dtype;
}

// One term or the one holder of a cell; or the sum of a host's terms.
struct TransferSource {
  WorkerIndex worker;
  int64_t flat_position = 0;  // in the mesh where the data lies
  // Several: the flat positions, on the worker's host and its own among them, whose terms the worker adds up in this
  // order. Empty: its own alone.
  std::vector<int64_t> added_up = {};
  bool operator==(const TransferSource&) const = default;
};

// A cell as one destination position gets it. Offsets are in elements along each dim, within the
// shards. More than one source: pending terms, to be reduced in this order.
struct Transfer {
  Box box;              // global, of the destination
  Shape source_offset;  // one per dim
  Shape destination_offset;
  absl::InlinedVector<TransferSource, 2> sources;
};

// Elements [low, high) of a cell, in row-major order, as one position of the destination takes them.
struct Piece {
  int64_t cell = 0;  // its number: row-major over the entries of the dims
  int64_t low = 0;
  int64_t high = 0;
  int64_t taker = 0;  // flat position
  absl::Span<const TransferSource> sources;
};

// A movement as it is seen from three sides. CheckPieces finds out whether they agree (piece_check.h).
class PieceViews {
 public:
  virtual ~PieceViews() = default;
  // The pieces that a position of the destination's mesh takes, its own among them.
  virtual void VisitTaken(int64_t destination, absl::FunctionRef<void(const Piece&)> visit) const = 0;
  // The pieces that a worker gives to others: `sources` has this worker alone, or those whose terms it adds up.
  virtual void VisitGiven(WorkerIndex worker, absl::FunctionRef<void(const Piece&)> visit) const = 0;
  // Adds to the numbers of elements that workers receive and send (`sent(worker, elements)`), from and to other
  // workers; in far fewer steps than there are pieces.
  virtual void VisitTotals(absl::FunctionRef<void(WorkerIndex, int64_t)> received,
                           absl::FunctionRef<void(WorkerIndex, int64_t)> sent) const = 0;
  // Whether VisitTotals takes about as many steps as there are workers.
  virtual bool HasQuickTotals() const = 0;
};

class ExchangeRounds;
class ExchangeTables;
struct ExchangeCell;
struct OwnedPiece;

// The pieces that move in an exchange, as a receiver sees them, as a sender sees them, and in sums. They are the
// meaning of an Exchange: lowering, prices, flows and Verify all ask it. Each view follows from one function, which
// says of a cell who takes which part of it from whom; the sums have closed forms besides. Tables that don't depend on
// a worker are made once.
//
//   Pieces(exchange of the example).ForReceiver({1}): 2x2 from itself, 2x2 from position 0
//   .ForSender(WorkerIndex(0)): the same 2x2, for position 1
//   .VisitTotals: each receives 4 elements and sends 4
//
// Givers, under kMove: a destination whose worker holds the cell takes it from itself. Cells that the others want of
// one source shard are laid on a line, cell after cell and destination after destination, and its holders give equal
// lengths of it (shared_line.h), so a cell may come in parts. On one mesh, where the holders at the destinations' own
// coordinates (on the mesh dims that replicate the source) are nearly as level, those give, and nothing is cut.
//
// With several hosts: a worker that wants a cell takes it from holders on its own host if there are some; these share
// that, and cells that no host has for itself are shared so that the busiest holder has least. Under FarTakers::kOne
// what several workers of a host want of a group's cells from far (moved, or reduced elsewhere) is laid on a line, of
// which each takes an equal length; under kHostGather the others take it from there. Under FarTakers::kRelays what the
// workers of all hosts want from far is laid on one line: its source gives each cell once, and the relays pass it on
// (the scatter and all-gather of van de Geijn's broadcast; Barnett et al., "Interprocessor collective communication
// library", 1994). Where each worker has a host of its own, or hosts are not told, what a worker doesn't hold is far.
//
// Reducers: the destinations of a cell that hold a term of it, or all of them where none does. Cells of one destination
// shard with the same candidates are laid on a line, of which each reduces an equal length. A reducer takes its own
// term from itself; the others it takes from one replica, as under kMove.
//
// With several hosts: those on the hosts to which the fewest others have to send. A term comes from the reducer's host
// if it is there; another host sends one sum of its terms, which its workers share in adding up (host_sums.h). The
// reducer's order is its own host's terms by coordinate, then the sums by host.
//
// Under kGatherReduced the reducer itself takes nothing: the cell is in place.
//
// By rounds: see exchange_rounds.h.
//
// Keeps a reference to the exchange, which is one that VerifyPlan accepts. One thread at a time.
class Pieces final : public PieceViews {
 public:
  explicit Pieces(const Exchange& exchange);
  ~Pieces() override;

  void VisitTaken(int64_t destination, absl::FunctionRef<void(const Piece&)> visit) const override;
  void VisitGiven(WorkerIndex worker, absl::FunctionRef<void(const Piece&)> visit) const override;
  void VisitTotals(absl::FunctionRef<void(WorkerIndex, int64_t)> received,
                   absl::FunctionRef<void(WorkerIndex, int64_t)> sent) const override;
  bool HasQuickTotals() const override;

  // The transfers that a position of the destination's mesh takes, own pieces included, in a fixed order that senders
  // reproduce.
  std::vector<Transfer> ForReceiver(absl::Span<const int64_t> position) const;
  // Calls `visit(from, elements)` for each piece that the worker takes from another: what ForReceiver says of its
  // position, and the terms that it adds up for others.
  void VisitReceived(WorkerIndex worker, absl::FunctionRef<void(WorkerIndex, int64_t)> visit) const;
  // A transfer that another position of the destination's mesh takes from one worker.
  struct Given {
    int64_t destination = 0;  // flat position
    Transfer transfer;        // `sources` has this worker alone; or those whose terms it adds up
  };
  // By destination, increasing; for each in the order of its ForReceiver. A worker's transfers from itself are left
  // out.
  std::vector<Given> ForSender(WorkerIndex worker) const;
  // The workers that add up a term of this worker's for others, sorted.
  std::vector<WorkerIndex> AddersOf(WorkerIndex worker) const;
  // The number of terms of a cell: 1 where nothing is reduced.
  int64_t term_count() const;
  // By rounds: whether workers share what their host took when all digits are done.
  bool IsSharedAfterRounds() const;
  // Whether several workers of a host want the same from far: of a kMove or kGatherReduced, which FarTakers::kOne
  // suits.
  bool IsWantedTwiceFromFar() const;

 private:
  using Sources = absl::InlinedVector<TransferSource, 2>;
  using Count = absl::FunctionRef<void(WorkerIndex, int64_t)>;
  // The pieces that are asked for: those of one taker, or of one giver, or all. `sources` has the asked giver alone.
  struct Sides {
    std::optional<int64_t> taker;  // a flat position of the destination
    std::optional<int64_t> giver;  // of the mesh where the data lies
    bool MayGive(int64_t flat) const { return giver.value_or(flat) == flat; }
  };
  // (low, high, taker, sources): elements [low, high) of a cell that a position takes.
  using VisitPart = absl::FunctionRef<void(int64_t, int64_t, int64_t, const Sources&)>;
  using VisitPiece = absl::FunctionRef<void(const ExchangeCell&, int64_t, int64_t, int64_t, const Sources&)>;

  TransferSource SourceAt(int64_t flat) const;  // in the mesh where the data lies
  void VisitMembers(const ExchangeCell& cell, const Sides& sides, absl::FunctionRef<void(int64_t)> visit) const;
  // The one place that says who takes which part of a cell from whom; a function for each role.
  void VisitCell(const ExchangeCell& cell, const Sides& sides, VisitPart visit) const;
  void VisitMoved(const ExchangeCell& cell, const Sides& sides, VisitPart visit) const;
  void VisitReduced(const ExchangeCell& cell, const Sides& sides, VisitPart visit) const;
  void VisitSums(const OwnedPiece& piece, std::optional<int64_t> giver, VisitPart visit) const;
  void VisitGatherReduced(const ExchangeCell& cell, const Sides& sides, VisitPart visit) const;
  void VisitHostGather(const ExchangeCell& cell, const Sides& sides, VisitPart visit) const;
  // The pieces that a position takes, its own included, in order; those that a worker gives to others, with the terms
  // that it adds up.
  void VisitTakenParts(int64_t destination, VisitPiece visit) const;
  void VisitGivenParts(WorkerIndex worker, VisitPiece visit) const;
  void VisitEachTransfer(Count received, Count sent) const;
  void VisitMoveTraffic(Count received, Count sent) const;
  void VisitReduceTraffic(Count received, Count sent) const;
  void VisitSumTraffic(Count received, Count sent) const;
  void VisitGatherReducedTraffic(Count received, Count sent) const;
  // Under FarTakers::kOne; of moves where nothing is replicated.
  void VisitMoveOnceTraffic(Count received, Count sent) const;
  void VisitGatherReducedOnceTraffic(Count received, Count sent) const;
  void VisitHostGatherTraffic(Count received, Count sent) const;
  // Calls `visit(group, members by host)` for all groups of destinations.
  void VisitGroups(absl::FunctionRef<void(int64_t, absl::Span<const std::vector<int64_t>>)> visit) const;
  // Calls `visit(member, elements, members of its host)` for what members take once for their host.
  void VisitFarParts(int64_t group, absl::Span<const std::vector<int64_t>> members,
                     absl::FunctionRef<void(int64_t, int64_t, absl::Span<const int64_t>)> visit) const;

  const Exchange& exchange_;
  std::unique_ptr<const ExchangeTables> tables_;
  std::unique_ptr<const ExchangeRounds> rounds_;  // or null
};

// How many terms an element has that are to be reduced: 1 where nothing is pending, or stays pending.
int64_t PendingTerms(const TensorSpec& source, const TensorSpec& destination);

// Whether it can go by the rounds that it names (exchange_rounds.h); nothing is converted so. Its dims are an overlay
// that VerifyPlan accepts.
bool CanGoByRounds(const Exchange& exchange);
// The hosts of the first destinations that want the same: what the factors of rounds multiply to.
int64_t CountHostsOfGroup(const Exchange& exchange);

}  // namespace tessera
