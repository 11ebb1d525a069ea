#include "server/planner/relays.h"

#include <algorithm>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "server/plan/exchange.h"
#include "server/plan/same_shards.h"

namespace tessera {
namespace {

constexpr size_t kFewestHosts = 3;   // that make a difference: one that gives and two that take
constexpr double kWorthwhile = 0.8;  // of the seconds of the direct way: predictions are no better than that

size_t CountHosts(const Exchange& exchange, const Topology& topology) {
  std::set<int32_t> hosts;
  for (const TensorSpec* spec : {&exchange.source, &exchange.destination}) {
    for (const WorkerIndex worker : spec->mesh.workers()) hosts.insert(topology.HostOf(worker));
  }
  return hosts.size();
}

// In its phase.
bool IsAlone(const std::vector<int>& phases, size_t index) {
  return std::count(phases.begin(), phases.end(), phases[index]) == 1;
}

bool IsOnlyValueOfItsBuffer(const Plan& plan, int value) {
  const int buffer = plan.values[static_cast<size_t>(value)].buffer;
  return std::count_if(plan.values.begin(), plan.values.end(),
                       [buffer](const PlanValue& other) { return other.buffer == buffer; }) == 1;
}

// As it is without relays.
std::vector<Step> Direct(const ExchangeStep& step) {
  ExchangeStep move = step;
  if (!ExchangeWalk(move.exchange).IsWantedTwiceFromFar()) return {move};
  move.exchange.far_takers = FarTakers::kOne;
  return {move, InPlace(move, ExchangeRole::kShare, move.name)};
}

// Of these steps alone, which are on the plan's values.
double SecondsOf(const Plan& plan, std::vector<Step> steps, const Topology& reference) {
  Plan priced;
  priced.buffers = plan.buffers;
  priced.values = plan.values;
  priced.steps = std::move(steps);
  return PredictSeconds(priced, reference);
}

}  // namespace

ExchangeStep InPlace(const ExchangeStep& step, ExchangeRole role, Collective name) {
  ExchangeStep added = step;
  added.source = step.destination;
  added.exchange.role = role;
  added.name = name;
  added.delivery = Delivery::kPull;
  return added;
}

std::vector<Step> Relayed(const ExchangeStep& step) {
  ExchangeStep move = step;
  move.exchange.far_takers = FarTakers::kRelays;
  return {move, InPlace(move, ExchangeRole::kSpread, Collective::kAllGather),
          InPlace(move, ExchangeRole::kShare, Collective::kAllGather)};
}

void AddRelays(Plan& plan, const Topology& topology) {
  Topology reference;  // what was measured chooses nothing
  reference.host_of_worker = topology.host_of_worker;
  const std::vector<int> phases = PhasesOf(plan);
  std::vector<Step> steps;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const auto* move = std::get_if<ExchangeStep>(&plan.steps[i]);
    const bool may_relay = move != nullptr && move->exchange.role == ExchangeRole::kMove &&
                           CountReplicas(move->exchange.destination) > 1 &&
                           move->exchange.destination.mesh.size() <= kMaxRelayedPositions && IsAlone(phases, i) &&
                           IsOnlyValueOfItsBuffer(plan, move->destination) &&
                           CountHosts(move->exchange, topology) >= kFewestHosts;
    if (may_relay) {
      std::vector<Step> relayed = Relayed(*move);
      if (SecondsOf(plan, relayed, reference) < kWorthwhile * SecondsOf(plan, Direct(*move), reference)) {
        std::move(relayed.begin(), relayed.end(), std::back_inserter(steps));
        continue;
      }
    }
    steps.push_back(std::move(plan.steps[i]));
  }
  plan.steps = std::move(steps);
}

}  // namespace tessera
