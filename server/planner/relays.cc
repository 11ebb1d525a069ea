#include "server/planner/relays.h"

#include <iterator>
#include <optional>
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

size_t CountHosts(const Exchange& exchange, const Topology& reference) {
  std::set<int32_t> hosts;
  for (const TensorSpec* spec : {&exchange.source, &exchange.destination}) {
    for (const WorkerIndex worker : spec->mesh.workers()) hosts.insert(reference.HostOf(worker));
  }
  return hosts.size();
}

bool MayRelay(const Plan& plan, const Topology& reference, const ExchangeStep& move) {
  return CountReplicas(move.exchange.destination) > 1 &&
         move.exchange.destination.mesh.size() <= kMaxRelayedPositions &&
         IsOnlyValueOfItsBuffer(plan, move.destination) && CountHosts(move.exchange, reference) >= kFewestHosts;
}

// What may replace the moves [first, end) of a phase; none where there are other steps, or no relays.
std::optional<PhaseAlternative> FindRelays(const Plan& plan, const Topology& reference, size_t first, size_t end) {
  PhaseAlternative alternative;
  bool relays = false;
  for (size_t i = first; i < end; ++i) {
    const auto* move = std::get_if<ExchangeStep>(&plan.steps[i]);
    if (move == nullptr || move->exchange.role != ExchangeRole::kMove || move->exchange.is_by_rounds()) {
      return std::nullopt;
    }
    const bool is_relayed = MayRelay(plan, reference, *move);
    alternative.Replace(*move, is_relayed ? Relayed(*move) : std::vector<ExchangeStep>{*move});
    relays = relays || is_relayed;
  }
  if (!relays) return std::nullopt;
  return alternative;
}

}  // namespace

std::vector<ExchangeStep> Relayed(const ExchangeStep& step) {
  ExchangeStep move = step;
  move.exchange.far_takers = FarTakers::kRelays;
  return {move, InPlace(move, ExchangeRole::kSpread, Collective::kAllGather),
          InPlace(move, ExchangeRole::kShare, Collective::kAllGather)};
}

void AddRelays(Plan& plan, const Topology& topology) {
  const Topology reference = ReferenceOf(topology);
  const std::vector<int> phases = PhasesOf(plan);
  std::vector<Step> steps;
  for (size_t first = 0, end = 0; first < plan.steps.size(); first = end) {
    end = EndOfPhase(phases, first);
    if (const auto found = FindRelays(plan, reference, first, end); found.has_value()) {
      std::vector<Step> relayed = found->Steps();
      if (AreWorthwhile(plan, relayed, found->DirectSteps(), reference)) {
        std::move(relayed.begin(), relayed.end(), std::back_inserter(steps));
        continue;
      }
    }
    std::move(plan.steps.begin() + static_cast<ptrdiff_t>(first), plan.steps.begin() + static_cast<ptrdiff_t>(end),
              std::back_inserter(steps));
  }
  plan.steps = std::move(steps);
}

}  // namespace tessera
