#include "server/plan/lower/collective_calls.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "schemas/types/layout.h"

namespace tessera {
namespace {

// A piece that a worker takes from one place: a dense run of elements, at both ends. Several sources: terms.
struct Piece {
  std::vector<WorkerIndex> sources;
  int64_t source_at = 0;  // in elements, of the buffer
  int64_t destination_at = 0;
  int64_t elements = 0;
};
using TakenPieces = std::map<WorkerIndex, std::vector<Piece>>;  // by who takes them

bool SumsInAnyOrder(ReduceOp op, DType dtype) {
  const bool is_integer = dtype == DType::kI32 || dtype == DType::kI64 || dtype == DType::kU32 || dtype == DType::kU64;
  return op == ReduceOp::kSum && is_integer;
}

bool MayBeCalls(const Plan& plan, const ExchangeStep& step) {
  const Exchange& exchange = step.exchange;
  const auto has_step = [](const DimOverlay& dim) { return dim.source_step != 1; };
  if (exchange.is_by_rounds() || exchange.role == ExchangeRole::kHostGather || exchange.is_pushed_move()) return false;
  if (exchange.far_takers != FarTakers::kEach || exchange.source.dtype != exchange.destination.dtype) return false;
  if (exchange.reduces() && !SumsInAnyOrder(exchange.reduce_op, exchange.source.dtype)) return false;
  if (IsInTransit(plan, step.source) || IsInTransit(plan, step.destination)) return false;
  return std::none_of(exchange.dims.begin(), exchange.dims.end(), has_step);
}

// The first element of a box at an offset of a value, if all of the box lies in one piece in row-major order.
std::optional<int64_t> DenseStart(const PlanValue& value, const Shape& extents, const Shape& offset) {
  int64_t at = value.offset, inner = 1;
  for (size_t d = extents.size(); d-- > 0;) {
    at += offset[d] * value.strides[d];
    if (extents[d] > 1 && value.strides[d] != inner) return std::nullopt;
    inner *= extents[d];
  }
  return at;
}

// Pieces of one sender that follow each other at both ends become one.
void AddPiece(Piece piece, std::vector<Piece>& pieces) {
  if (!pieces.empty()) {
    Piece& last = pieces.back();
    if (last.sources == piece.sources && last.source_at + last.elements == piece.source_at &&
        last.destination_at + last.elements == piece.destination_at) {
      last.elements += piece.elements;
      return;
    }
  }
  pieces.push_back(std::move(piece));
}

// Nothing where there are too many.
std::optional<TakenPieces> PiecesOf(const Plan& plan, const ExchangeStep& step, std::set<WorkerIndex>& scattered) {
  const Pieces exchange(step.exchange);
  const PlanValue& source = plan.values[static_cast<size_t>(step.source)];
  const PlanValue& destination = plan.values[static_cast<size_t>(step.destination)];
  const Mesh& mesh = step.exchange.destination.mesh;
  TakenPieces pieces;
  size_t count = 0;
  for (int64_t flat = 0; flat < mesh.size(); ++flat) {
    const Position position = mesh.PositionAt(flat);
    const WorkerIndex to = mesh.WorkerAt(position);
    for (const Transfer& transfer : exchange.ForReceiver(position)) {
      if (++count > kMaxCollectivePieces) return std::nullopt;
      const Shape extents = BoxShape(transfer.box);
      if (NumElements(extents) == 0) continue;
      Piece piece;
      const auto from_at = DenseStart(source, extents, transfer.source_offset);
      const auto to_at = DenseStart(destination, extents, transfer.destination_offset);
      bool is_whole = from_at.has_value() && to_at.has_value();
      for (const TransferSource& term : transfer.sources) {
        piece.sources.push_back(term.worker);
        is_whole = is_whole && term.added_up.empty();
      }
      if (!is_whole) scattered.insert(to);
      piece.source_at = from_at.value_or(0);
      piece.destination_at = to_at.value_or(0);
      piece.elements = NumElements(extents);
      AddPiece(std::move(piece), pieces[to]);
    }
  }
  return pieces;
}

// Workers that have to do with each other, sorted; by the first of them.
std::vector<std::vector<WorkerIndex>> GroupsOf(const TakenPieces& pieces) {
  std::map<WorkerIndex, WorkerIndex> parent;
  const auto find = [&parent](WorkerIndex worker) {
    parent.try_emplace(worker, worker);
    while (parent.at(worker) != worker) worker = parent.at(worker) = parent.at(parent.at(worker));
    return worker;
  };
  for (const auto& [to, list] : pieces) {
    for (const Piece& piece : list) {
      for (const WorkerIndex from : piece.sources) {
        const WorkerIndex a = find(from), b = find(to);
        parent.at(std::max(a, b)) = std::min(a, b);
      }
    }
  }
  std::map<WorkerIndex, std::vector<WorkerIndex>> groups;
  for (const auto& [worker, up] : parent) groups[find(worker)].push_back(worker);
  std::vector<std::vector<WorkerIndex>> sorted;
  for (auto& [first, members] : groups) sorted.push_back(std::move(members));
  return sorted;
}

// The call of one group, with all that its workers take; in elements.
class GroupCall {
 public:
  GroupCall(std::vector<WorkerIndex> workers, const TakenPieces& pieces) : workers_(std::move(workers)) {
    for (const WorkerIndex worker : workers_) {
      const auto taken = pieces.find(worker);
      pieces_.push_back(taken == pieces.end() ? std::vector<Piece>() : taken->second);
      for (const Piece& piece : pieces_.back()) {
        if (count_ == 0) count_ = piece.elements;
        is_even_ = is_even_ && piece.elements == count_;
      }
    }
  }

  std::optional<CollectiveCall> Find(ExchangeRole role) const {
    if (workers_.size() < 2 || !is_even_) return std::nullopt;
    switch (role) {
      case ExchangeRole::kMove: {
        const auto gather = AllGather(/*own_is_there=*/false);
        return gather.has_value() ? gather : Broadcast();
      }
      case ExchangeRole::kGatherReduced: return AllGather(/*own_is_there=*/true);
      case ExchangeRole::kReduce: return ReduceScatter();
      case ExchangeRole::kHostGather: return std::nullopt;
    }
    return std::nullopt;
  }

 private:
  size_t RankOf(WorkerIndex worker) const {
    return static_cast<size_t>(std::lower_bound(workers_.begin(), workers_.end(), worker) - workers_.begin());
  }
  CollectiveCall Make(CallKind kind) const {
    CollectiveCall call;
    call.kind = kind;
    call.workers = workers_;
    call.count = count_;
    return call;
  }
  // Finds whether values by rank are `at + by_rank * rank`, with a step that is none or one piece.
  std::optional<CallMemory> Places(const std::vector<int64_t>& by_rank) const {
    const int64_t step = by_rank[1] - by_rank[0];
    if (step != 0 && step != count_) return std::nullopt;
    for (size_t rank = 0; rank < by_rank.size(); ++rank) {
      if (by_rank[rank] != by_rank[0] + step * static_cast<int64_t>(rank)) return std::nullopt;
    }
    return CallMemory{.at = by_rank[0], .by_rank = step};
  }
  bool HasAllTerms(const Piece& piece) const {
    std::vector<WorkerIndex> sources = piece.sources;
    std::sort(sources.begin(), sources.end());
    return sources == workers_;
  }

  std::optional<CollectiveCall> AllGather(bool own_is_there) const {
    const size_t ranks = workers_.size();
    std::optional<int64_t> start;  // of the destination's first piece
    std::vector<std::optional<int64_t>> given(ranks);
    for (size_t to = 0; to < ranks; ++to) {
      std::vector<uint8_t> has(ranks, 0);
      if (pieces_[to].size() != (own_is_there ? ranks - 1 : ranks)) return std::nullopt;
      for (const Piece& piece : pieces_[to]) {
        if (piece.sources.size() != 1) return std::nullopt;
        const size_t from = RankOf(piece.sources[0]);
        const int64_t first = piece.destination_at - count_ * static_cast<int64_t>(from);
        if (std::exchange(has[from], 1) != 0 || (own_is_there && from == to)) return std::nullopt;
        if (start.value_or(first) != first || given[from].value_or(piece.source_at) != piece.source_at) {
          return std::nullopt;
        }
        start = first;
        given[from] = piece.source_at;
      }
    }
    std::vector<int64_t> sources;
    for (const auto& at : given) sources.push_back(*at);
    const auto source = Places(sources);
    if (!source.has_value()) return std::nullopt;
    // A rank's own piece that is in place already must be its piece of the result.
    if (own_is_there && !(*source == CallMemory{.at = *start, .by_rank = count_})) return std::nullopt;
    CollectiveCall call = Make(CallKind::kAllGather);
    call.source = *source;
    call.destination.at = *start;
    return call;
  }

  // A pair's is one message.
  std::optional<CollectiveCall> Broadcast() const {
    if (workers_.size() < 3) return std::nullopt;
    CollectiveCall call = Make(CallKind::kBroadcast);
    const Piece* known = nullptr;
    for (const std::vector<Piece>& list : pieces_) {
      if (list.size() > 1 || (list.size() == 1 && list[0].sources.size() != 1)) return std::nullopt;
      if (list.empty()) continue;
      if (known == nullptr) known = &list[0];
      if (list[0].sources != known->sources || list[0].source_at != known->source_at ||
          list[0].destination_at != known->destination_at) {
        return std::nullopt;
      }
    }
    call.root = RankOf(known->sources[0]);
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      if (pieces_[rank].empty() && rank != call.root) return std::nullopt;
    }
    call.root_keeps = !pieces_[call.root].empty();
    call.source.at = known->source_at;
    call.destination.at = known->destination_at;
    return call;
  }

  std::optional<CollectiveCall> ReduceScatter() const {
    CollectiveCall call = Make(CallKind::kReduceScatter);
    std::vector<int64_t> sources, destinations;
    for (const std::vector<Piece>& list : pieces_) {
      if (list.size() != 1 || !HasAllTerms(list[0])) return std::nullopt;
      sources.push_back(list[0].source_at);
      destinations.push_back(list[0].destination_at);
    }
    const auto source = Places(sources);
    const auto destination = Places(destinations);
    if (!source.has_value() || !destination.has_value() || source->by_rank != count_) return std::nullopt;
    call.source.at = source->at;
    call.destination = *destination;
    return call;
  }

  const std::vector<WorkerIndex> workers_;
  std::vector<std::vector<Piece>> pieces_;  // by rank
  int64_t count_ = 0;
  bool is_even_ = true;
};

CallMemory InBytes(const CallMemory& elements, int parameter, DType dtype) {
  const int64_t size = SizeBytes(dtype);
  return {parameter, elements.at * size, elements.by_rank * size};
}

// The calls of a step, and whether all that it does is in them.
std::vector<CollectiveCall> CallsOfStep(const Plan& plan, const ExchangeStep& step, bool& has_others) {
  has_others = true;
  if (!MayBeCalls(plan, step)) return {};
  std::set<WorkerIndex> scattered;
  const std::optional<TakenPieces> pieces = PiecesOf(plan, step, scattered);
  if (!pieces.has_value()) return {};
  has_others = false;
  std::vector<CollectiveCall> calls;
  for (const std::vector<WorkerIndex>& workers : GroupsOf(*pieces)) {
    std::optional<CollectiveCall> call;
    if (std::none_of(workers.begin(), workers.end(), [&](WorkerIndex w) { return scattered.count(w) != 0; })) {
      call = GroupCall(workers, *pieces).Find(step.exchange.role);
    }
    if (!call.has_value()) {
      has_others = true;
      continue;
    }
    const DType dtype = step.exchange.source.dtype;
    call->dtype = dtype;
    call->source = InBytes(call->source, plan.values[static_cast<size_t>(step.source)].buffer, dtype);
    call->destination = InBytes(call->destination, plan.values[static_cast<size_t>(step.destination)].buffer, dtype);
    calls.push_back(*std::move(call));
  }
  return calls;
}

bool HaveSameWorkers(const std::vector<CollectiveCall>& a, const std::vector<CollectiveCall>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const CollectiveCall& x, const CollectiveCall& y) { return x.workers == y.workers; });
}

}  // namespace

int64_t BytesTaken(const CollectiveCall& call, size_t from, size_t to) {
  if (from == to || (call.kind == CallKind::kBroadcast && from != call.root)) return 0;
  return call.piece_bytes();
}

std::vector<CollectiveCall> CallsOfPhase(const Plan& plan, size_t first, size_t end) {
  std::vector<CollectiveCall> all, of_first;
  for (size_t s = first; s < end; ++s) {
    const auto* step = std::get_if<ExchangeStep>(&plan.steps[s]);
    if (step == nullptr) return {};
    bool has_others = false;
    std::vector<CollectiveCall> calls = CallsOfStep(plan, *step, has_others);
    if (s == first) of_first = calls;
    if (end - first > 1 && (has_others || !HaveSameWorkers(calls, of_first))) return {};
    all.insert(all.end(), std::make_move_iterator(calls.begin()), std::make_move_iterator(calls.end()));
  }
  return all;
}

bool MayMakeCalls(absl::Span<const WorkerIndex> workers, absl::FunctionRef<bool(WorkerIndex)> has_library,
                  absl::FunctionRef<int32_t(WorkerIndex)> host_of) {
  std::set<int32_t> hosts;
  for (const WorkerIndex worker : workers) {
    if (!has_library(worker) || !hosts.insert(host_of(worker)).second) return false;
  }
  return hosts.size() > 1;
}

std::string_view ToText(CallKind kind) {
  switch (kind) {
    case CallKind::kAllGather: return "AllGather";
    case CallKind::kBroadcast: return "Broadcast";
    case CallKind::kReduceScatter: return "ReduceScatter";
  }
  return "?";
}

}  // namespace tessera
