#include "server/planner/pushed_moves.h"

#include <algorithm>
#include <map>
#include <utility>
#include <variant>
#include <vector>

#include "schemas/types/layout.h"
#include "server/plan/movement/exchange.h"
#include "server/plan/movement/same_shards.h"
#include "server/planner/alternatives.h"

namespace tessera {
namespace {

// The busiest stores at most this part more than an equal share.
constexpr int64_t kLevelPart = 10;

// Elements that others take of each worker.
std::map<WorkerIndex, int64_t> GivenIn(const Exchange& exchange) {
  std::map<WorkerIndex, int64_t> given;
  Pieces(exchange).VisitTotals([](WorkerIndex, int64_t) {},
                               [&given](WorkerIndex worker, int64_t elements) { given[worker] += elements; });
  return given;
}

// Whether anybody takes anything of another.
bool IsGiven(const Exchange& exchange) {
  const Pieces pieces(exchange);
  return std::any_of(exchange.destination.mesh.workers().begin(), exchange.destination.mesh.workers().end(),
                     [&pieces](WorkerIndex worker) {
                       bool takes = false;
                       pieces.VisitReceived(worker, [&takes](WorkerIndex, int64_t elements) { takes |= elements > 0; });
                       return takes;
                     });
}

bool IsDonatedTo(const Plan& plan, int value) {
  return std::any_of(plan.donations.begin(), plan.donations.end(), [&](const Donation& donation) {
    return plan.outputs[static_cast<size_t>(donation.output)] == value;
  });
}

// Whether it is a large gather on one host to which all who want it give about as much.
bool IsLevelGather(const Exchange& exchange, const Topology& topology) {
  const TensorSpec& to = exchange.destination;
  const bool is_large_gather = CountReplicas(to) > 1 && exchange.source.dtype == to.dtype &&
                               to.mesh.size() <= kMaxPushedPositions &&
                               MaxShardElements(to) * SizeBytes(to.dtype) >= topology.min_pushed_bytes &&
                               AreOnOneHost({&exchange.source.mesh, &to.mesh}, topology);
  if (!is_large_gather) return false;
  int64_t total = 0, busiest = 0;
  for (const auto& [worker, elements] : GivenIn(exchange)) {
    total += elements;
    busiest = std::max(busiest, elements);
  }
  const int64_t share = total / to.mesh.size();
  return total > 0 && busiest <= share + share / kLevelPart;
}

bool ShouldPush(const Plan& plan, const Topology& topology, const ExchangeStep& step) {
  const Exchange& exchange = step.exchange;
  if (exchange.role != ExchangeRole::kMove || exchange.is_pushed_move() || exchange.is_by_rounds()) return false;
  if (!IsOnlyValueOfItsBuffer(plan, step.destination) || IsDonatedTo(plan, step.destination)) return false;
  const bool is_narrower = SizeBytes(exchange.destination.dtype) < SizeBytes(exchange.source.dtype);
  return (is_narrower && IsGiven(exchange)) || IsLevelGather(exchange, topology);
}

using Phase = std::vector<ExchangeStep>;

// The exchanges of steps [first, end); empty where there are other steps.
Phase ExchangesOf(const Plan& plan, size_t first, size_t end) {
  Phase exchanges;
  for (size_t i = first; i < end; ++i) {
    const auto* exchange = std::get_if<ExchangeStep>(&plan.steps[i]);
    if (exchange == nullptr) return {};
    exchanges.push_back(*exchange);
  }
  return exchanges;
}

// Takes those that are pushed from now on out of a phase.
Phase TakePushed(const Plan& plan, const Topology& topology, Phase& phase) {
  const auto first = std::stable_partition(phase.begin(), phase.end(),
                                           [&](const ExchangeStep& step) { return !ShouldPush(plan, topology, step); });
  Phase pushed(first, phase.end());
  phase.erase(first, phase.end());
  for (ExchangeStep& step : pushed) step.exchange.delivery = Delivery::kPush;
  return pushed;
}

// Whether all that moves is there when the plan begins.
bool AreOfInputs(const Plan& plan, const Phase& moves) {
  return std::all_of(moves.begin(), moves.end(), [&plan](const ExchangeStep& move) {
    const int buffer = plan.values[static_cast<size_t>(move.source)].buffer;
    return plan.buffers[static_cast<size_t>(buffer)].kind == PlanBuffer::Kind::kInput;
  });
}

// Whether moves may be stored in the phase before that of `spreads`, and be there in that.
bool MayJoin(const Plan& plan, const Phase& moves, const Phase& spreads) {
  const bool are_pushed = !spreads.empty() && std::all_of(spreads.begin(), spreads.end(), [](const ExchangeStep& step) {
    return step.exchange.delivery == Delivery::kPush;
  });
  return are_pushed && AreOfInputs(plan, moves);
}

}  // namespace

void PushMoves(Plan& plan, const Topology& topology) {
  const std::vector<int> phases = PhasesOf(plan);
  std::vector<Step> steps;
  for (size_t first = 0; first < plan.steps.size();) {
    const size_t end = EndOfPhase(phases, first);
    Phase pulled = ExchangesOf(plan, first, end);
    Phase pushed = TakePushed(plan, topology, pulled);
    if (pushed.empty()) {
      for (; first < end; ++first) steps.push_back(plan.steps[first]);
      continue;
    }
    first = end;
    AddPhase(pulled, steps);
    if (pushed.size() > 1 && !AreOfInputs(plan, pushed)) {  // what is made on the way is stored beside nothing
      for (ExchangeStep& step : pushed) AddPhase({std::move(step)}, steps);
      continue;
    }
    // Joins them with the exchanges that spread after them anyhow.
    const size_t next_end = first < plan.steps.size() ? EndOfPhase(phases, first) : first;
    Phase joined = ExchangesOf(plan, first, next_end);
    if (!pulled.empty() && MayJoin(plan, pushed, joined)) {
      first = next_end;
    } else {
      joined.clear();
    }
    joined.insert(joined.end(), pushed.begin(), pushed.end());
    AddPhase(joined, steps);
  }
  plan.steps = std::move(steps);
}

}  // namespace tessera
