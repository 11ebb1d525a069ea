#include "server/planner/relays.h"

#include <optional>
#include <variant>
#include <vector>

#include "server/plan/movement/exchange.h"
#include "server/plan/movement/same_shards.h"
#include "server/planner/alternatives.h"

namespace tessera {
namespace {

constexpr size_t kFewestHosts = 3;  // that make a difference: one that gives and two that take

bool MayRelay(const Plan& plan, const Topology& reference, const ExchangeStep& move) {
  return !move.exchange.is_pushed_move() && CountReplicas(move.exchange.destination) > 1 &&
         move.exchange.destination.mesh.size() <= kMaxRelayedPositions &&
         IsOnlyValueOfItsBuffer(plan, move.destination) &&
         CountHosts({&move.exchange.source.mesh, &move.exchange.destination.mesh}, reference) >= kFewestHosts;
}

// The steps that may replace the moves [first, end) of a phase; none where there are other steps, or no relays.
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
  return {move, InPlace(move, ExchangeRole::kGatherReduced, Collective::kAllGather),
          InPlace(move, ExchangeRole::kHostGather, Collective::kAllGather)};
}

void AddRelays(Plan& plan, const Topology& topology) {
  const Topology reference = ReferenceOf(topology);
  TakeAlternatives(plan, reference, [&](size_t first, size_t end) { return FindRelays(plan, reference, first, end); });
}

}  // namespace tessera
