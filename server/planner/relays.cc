#include "server/planner/relays.h"

#include <algorithm>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "server/plan/exchange.h"
#include "server/plan/same_shards.h"
#include "server/planner/alternatives.h"

namespace tessera {
namespace {

constexpr size_t kFewestHosts = 3;  // that make a difference: one that gives and two that take

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

}  // namespace

std::vector<Step> Relayed(const ExchangeStep& step) {
  ExchangeStep move = step;
  move.exchange.far_takers = FarTakers::kRelays;
  return {move, InPlace(move, ExchangeRole::kSpread, Collective::kAllGather),
          InPlace(move, ExchangeRole::kShare, Collective::kAllGather)};
}

void AddRelays(Plan& plan, const Topology& topology) {
  const Topology reference = ReferenceOf(topology);
  const std::vector<int> phases = PhasesOf(plan);
  std::vector<Step> steps;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const auto* move = std::get_if<ExchangeStep>(&plan.steps[i]);
    const bool may_relay = move != nullptr && move->exchange.role == ExchangeRole::kMove &&
                           !move->exchange.is_by_rounds() && CountReplicas(move->exchange.destination) > 1 &&
                           move->exchange.destination.mesh.size() <= kMaxRelayedPositions && IsAlone(phases, i) &&
                           IsOnlyValueOfItsBuffer(plan, move->destination) &&
                           CountHosts(move->exchange, topology) >= kFewestHosts;
    if (may_relay) {
      std::vector<Step> relayed = Relayed(*move);
      if (AreWorthwhile(plan, relayed, Direct(*move), reference)) {
        std::move(relayed.begin(), relayed.end(), std::back_inserter(steps));
        continue;
      }
    }
    steps.push_back(std::move(plan.steps[i]));
  }
  plan.steps = std::move(steps);
}

}  // namespace tessera
