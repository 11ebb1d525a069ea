#include "server/planner/rounds.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "server/plan/movement/exchange.h"
#include "server/planner/alternatives.h"

namespace tessera {
namespace {

// The factors of a number of hosts, increasing, by which rounds take least: each a wait and a message for each of the
// others in it. `least`: of the factors.
struct PricedFactors {
  std::vector<int> factors;
  double seconds = 0;  // of the halving or of the doubling
};
PricedFactors CheapestFactors(int64_t hosts, int64_t least, const Topology& reference) {
  const auto round_s = [&reference](int64_t factor) {
    return reference.step_latency_s + reference.message_latency_s +
           static_cast<double>(factor - 1) * reference.message_overhead_s;
  };
  PricedFactors best = {{static_cast<int>(hosts)}, round_s(hosts)};
  for (int64_t factor = least; factor * factor <= hosts; ++factor) {
    if (hosts % factor != 0) continue;
    PricedFactors others = CheapestFactors(hosts / factor, factor, reference);
    others.seconds += round_s(factor);
    if (others.seconds >= best.seconds) continue;
    others.factors.insert(others.factors.begin(), static_cast<int>(factor));
    best = std::move(others);
  }
  return best;
}

// Hosts that are not told are one, or one for each worker.
bool AreApart(const Exchange& exchange, const Topology& reference) {
  return exchange.hosts.several() || !AreOnOneHost({&exchange.source.mesh, &exchange.destination.mesh}, reference);
}

bool Multiplies(const Plan& plan) {
  return std::any_of(plan.steps.begin(), plan.steps.end(), [](const Step& step) {
    const auto* local = std::get_if<LocalStep>(&step);
    return std::holds_alternative<ContractStep>(step) ||
           (local != nullptr && std::holds_alternative<MatmulOp>(local->op));
  });
}

bool MayGoByRounds(const Plan& plan, const Topology& reference, const ExchangeStep& step) {
  const ExchangeRole role = step.exchange.role;
  return (role == ExchangeRole::kMove || role == ExchangeRole::kReduce) && !step.exchange.is_pushed_move() &&
         step.exchange.destination.mesh.size() <= kMaxPositionsByRounds &&
         IsOnlyValueOfItsBuffer(plan, step.destination) && AreApart(step.exchange, reference);
}

// The steps that may replace the steps [first, middle) of a phase, and those of the next one if they spread just what
// the first ones reduce.
std::optional<PhaseAlternative> FindRounds(const Plan& plan, const Topology& reference, size_t first, size_t middle) {
  PhaseAlternative alternative;
  std::vector<int> reduced;  // values that were not spread yet
  for (size_t i = first; i < middle; ++i) {
    const auto* step = std::get_if<ExchangeStep>(&plan.steps[i]);
    if (step == nullptr || !MayGoByRounds(plan, reference, *step)) return std::nullopt;
    const int64_t hosts = CountHostsOfGroup(step->exchange);
    std::vector<ExchangeStep> rounds = ByRounds(*step, CheapestFactors(hosts, 2, reference).factors);
    if (rounds.empty()) return std::nullopt;
    if (step->exchange.reduces()) reduced.push_back(step->destination);
    alternative.Replace(*step, std::move(rounds));
  }
  if (reduced.empty()) return alternative;
  if (middle == plan.steps.size()) return std::nullopt;
  const size_t end = EndOfPhase(PhasesOf(plan), middle);
  for (size_t i = middle; i < end; ++i) {
    const auto* step = std::get_if<ExchangeStep>(&plan.steps[i]);
    if (step == nullptr || step->exchange.role != ExchangeRole::kGatherReduced) return std::nullopt;
    if (std::erase(reduced, step->destination) == 0) return std::nullopt;
    alternative.Omit(*step);
  }
  if (!reduced.empty()) return std::nullopt;
  return alternative;
}

}  // namespace

std::vector<ExchangeStep> ByRounds(const ExchangeStep& step, const std::vector<int>& factors) {
  ExchangeStep made = step;
  Rounds& rounds = made.exchange.rounds;
  rounds.factors = factors;
  const int count = static_cast<int>(factors.size());
  if (count < 2 || !CanGoByRounds(made.exchange)) return {};
  std::vector<ExchangeStep> steps;
  int next = count - 1;
  if (made.exchange.reduces()) {
    const ReduceOp op = made.exchange.reduce_op;
    for (rounds.digit = 0; rounds.digit < count; ++rounds.digit) {
      const bool divides = op == ReduceOp::kAvg && rounds.digit + 1 == count;
      made.exchange.reduce_op = op == ReduceOp::kAvg && !divides ? ReduceOp::kSum : op;
      steps.push_back(rounds.digit == 0 ? made : InPlace(made, ExchangeRole::kReduce, made.name));
    }
    made.exchange.reduce_op = ReduceOp::kSum;  // as of a spread that is not by rounds
  } else {
    rounds.digit = next--;
    steps.push_back(made);
  }
  for (rounds.digit = next; rounds.digit >= 0; --rounds.digit) {
    steps.push_back(InPlace(made, ExchangeRole::kGatherReduced, Collective::kAllGather));
  }
  rounds.digit = 0;
  if (Pieces(made.exchange).IsSharedAfterRounds()) {
    steps.push_back(InPlace(made, ExchangeRole::kHostGather, Collective::kAllGather));
  }
  return steps;
}

void AddRounds(Plan& plan, const Topology& topology) {
  if (Multiplies(plan)) return;
  const Topology reference = ReferenceOf(topology);
  TakeAlternatives(plan, reference, [&](size_t first, size_t end) { return FindRounds(plan, reference, first, end); });
}

}  // namespace tessera
