#include "server/planner/same_sums.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "server/plan/cost.h"
#include "server/plan/movement/exchange.h"
#include "server/plan/movement/same_shards.h"
#include "server/planner/overlay.h"

namespace tessera {
namespace {

constexpr int64_t kComparedPositions = 64;  // beyond it what could be cut or added up otherwise is not compared

// The row-major number of a worker's coordinates on the mesh dims of pending terms.
int64_t TermOf(const TensorSpec& source, WorkerIndex worker) {
  const Position position = source.mesh.PositionAt(*source.mesh.FindWorker(worker));
  int64_t term = 0;
  for (size_t j = 0; j < source.placements.size(); ++j) {
    if (source.placements[j].is_partial()) term = term * source.mesh.shape()[j] + position[j];
  }
  return term;
}

// A box of the whole, and in which order its terms are added up: lists are added up first, by others.
struct Sum {
  Box box;
  std::vector<std::vector<int64_t>> terms;
};

// The sums of an exchange. Terms are numbered as in `whole_source`.
std::vector<Sum> SumsOf(const Exchange& exchange, const TensorSpec& whole_source) {
  std::vector<Sum> sums;
  const Pieces pieces(exchange);
  const absl::Span<const WorkerIndex> holders = exchange.source.mesh.workers();
  for (int64_t flat = 0; flat < exchange.destination.mesh.size(); ++flat) {
    for (Transfer& transfer : pieces.ForReceiver(exchange.destination.mesh.PositionAt(flat))) {
      Sum& sum = sums.emplace_back();
      sum.box = std::move(transfer.box);
      for (const TransferSource& source : transfer.sources) {
        std::vector<int64_t>& terms = sum.terms.emplace_back();
        if (source.added_up.empty()) terms.push_back(TermOf(whole_source, source.worker));
        for (const int64_t holder : source.added_up) {
          terms.push_back(TermOf(whole_source, holders[static_cast<size_t>(holder)]));
        }
      }
    }
  }
  return sums;
}

// A reduction of the whole, and those of its parts.
class Reduction {
 public:
  Reduction(const SplitProblem& problem, const TensorSpec& source, const TensorSpec& destination,
            std::string_view letters)
      : problem_(problem), source_(source), letters_(letters), destination_(destination) {
    is_compared_ = source.mesh.size() <= kComparedPositions && destination.mesh.size() <= kComparedPositions;
    if (!is_compared_) return;
    whole_ = Make(source, destination, {});
    if (whole_.has_value() && whole_->role == ExchangeRole::kReduce) whole_sums_ = SumsOf(*whole_, source_);
  }

  // `source`: the whole one, or the part of it.
  bool IsSame(const PartRange& part, const TensorSpec& source, const TensorSpec& destination) const {
    const bool is_everywhere = part.on_grid.empty() && part.in_output.empty();
    if (!source_.has_partial() || (is_everywhere && CountReplicas(destination_) == 1)) return true;
    if (!is_compared_) return false;
    const size_t dim = static_cast<size_t>(DimOf(letters_, part.letter));
    std::vector<int64_t> start(source.shape.size(), 0);
    if (source.shape == source_.shape) start[dim] = part.start;
    const std::optional<Exchange> made = Make(source, destination, start);
    if (!made.has_value() || !whole_.has_value() || made->role != whole_->role) return false;
    if (made->role != ExchangeRole::kReduce) return true;
    for (Sum& sum : SumsOf(*made, source_)) {
      sum.box[dim] = {sum.box[dim].start + part.start, sum.box[dim].stop + part.start};
      for (const Sum& of_whole : whole_sums_) {
        if (sum.terms != of_whole.terms && !IsEmpty(Intersect(sum.box, of_whole.box))) return false;
      }
    }
    return true;
  }

 private:
  std::optional<Exchange> Make(const TensorSpec& source, const TensorSpec& destination,
                               absl::Span<const int64_t> start) const {
    auto exchanges = MakeExchanges(source, destination, start, {});
    if (!exchanges.ok()) return std::nullopt;
    Exchange exchange = std::move((*exchanges)[0].exchange);
    exchange.hosts = HostsAmong(WorkerHosts(problem_.topology.host_of_worker), source.mesh, destination.mesh);
    return exchange;
  }

  const SplitProblem& problem_;
  const TensorSpec& source_;
  const std::string_view letters_;
  const TensorSpec& destination_;
  bool is_compared_ = false;
  std::optional<Exchange> whole_;
  std::vector<Sum> whole_sums_;
};

bool HaveSameReductions(const SplitProblem& problem, const std::vector<PartRange>& parts) {
  if (AreOnOneHost(
          {&problem.output.mesh, &problem.product.mesh, &problem.operands[0]->own.mesh, &problem.operands[1]->own.mesh},
          problem.topology)) {
    return true;
  }
  const std::string& letters = problem.notation.output;
  const auto is_same = [&](const Reduction& reduction, const auto& source_in, const auto& destination_in) {
    return std::all_of(parts.begin(), parts.end(), [&](const PartRange& part) {
      return reduction.IsSame(part, source_in(part), destination_in(part));
    });
  };
  for (const OperandReading* operand : problem.operands) {
    if (operand->way != OperandReading::Way::kGathered || DimOf(operand->letters, parts[0].letter) < 0) continue;
    const Reduction reduction(problem, operand->own, operand->on_grid, operand->letters);
    const bool same = is_same(
        reduction, [&](const PartRange&) { return operand->own; },
        [&](const PartRange& part) { return OnGridIn(part, operand->on_grid, operand->letters); });
    if (!same) return false;
  }
  if (HoldSameShards(problem.product, problem.output)) return true;
  return is_same(
      Reduction(problem, problem.product, problem.output, letters),
      [&](const PartRange& part) { return OnGridIn(part, problem.product, letters); },
      [&](const PartRange& part) { return OutputIn(part, problem.output, letters); });
}

// Whether what lies in the part is cut into the same pieces of the inner letters, in the whole and by itself.
bool IsCutAlike(const SplitProblem& problem, const OperandReading& operand, const Pieces& whole,
                const PartRange& part) {
  const int dim = DimOf(operand.letters, part.letter);
  const TensorSpec spec = OnGridIn(part, operand.on_grid, operand.letters);
  std::vector<int64_t> start(spec.shape.size(), 0);
  if (dim >= 0) start[static_cast<size_t>(dim)] = part.start;
  const auto exchanges = MakeExchanges(operand.own, spec, start, {});
  if (!exchanges.ok()) return false;
  const Mesh& mesh = operand.on_grid.mesh;
  const Pieces by_itself((*exchanges)[0].exchange);
  for (int64_t flat = 0; flat < spec.mesh.size(); ++flat) {
    const std::vector<Transfer> pieces = by_itself.ForReceiver(spec.mesh.PositionAt(flat));
    const int64_t in_whole = *mesh.FindWorker(spec.mesh.workers()[static_cast<size_t>(flat)]);
    for (const Transfer& piece_of_whole : whole.ForReceiver(mesh.PositionAt(in_whole))) {
      for (const Transfer& piece : pieces) {
        Box box = piece.box;
        for (size_t d = 0; d < box.size(); ++d) box[d] = {box[d].start + start[d], box[d].stop + start[d]};
        if (IsEmpty(Intersect(box, piece_of_whole.box))) continue;
        for (size_t d = 0; d < box.size(); ++d) {
          const bool is_inner = RoleOf(problem.notation, operand.letters[d]) == LetterRole::kInner;
          if (is_inner && box[d] != piece_of_whole.box[d]) return false;
        }
      }
    }
  }
  return true;
}

}  // namespace

bool HaveSameSums(const SplitProblem& problem, const std::vector<PartRange>& parts) {
  if (!HaveSameReductions(problem, parts)) return false;
  for (const OperandReading* operand : problem.operands) {
    if (operand->way != OperandReading::Way::kPieces || CountReplicas(operand->own) == 1) continue;
    const bool has_letter = DimOf(operand->letters, parts[0].letter) >= 0;
    if (!has_letter && parts[0].on_grid.empty()) continue;  // every part reads what the whole does
    const Mesh& mesh = operand->on_grid.mesh;
    if (mesh.size() > kComparedPositions || !AreOnOneHost({&mesh, &operand->own.mesh}, problem.topology)) {
      return false;
    }
    const Pieces whole(operand->pieces);
    for (const PartRange& part : parts) {
      const bool is_read_again = !has_letter && part.start_on_grid != 0;
      if (!is_read_again && !IsCutAlike(problem, *operand, whole, part)) return false;
    }
  }
  return true;
}

}  // namespace tessera
