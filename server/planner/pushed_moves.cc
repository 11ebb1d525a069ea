#include "server/planner/pushed_moves.h"

#include <algorithm>
#include <map>
#include <optional>
#include <variant>
#include <vector>

#include "schemas/types/layout.h"
#include "server/plan/exchange.h"
#include "server/plan/same_shards.h"
#include "server/planner/alternatives.h"

namespace tessera {
namespace {

// The busiest stores at most this part more than an equal share.
constexpr int64_t kLevelPart = 10;

// Whether those who want it have about as much of it each to store.
bool IsLevel(const Exchange& spread) {
  std::map<WorkerIndex, int64_t> sent;
  ExchangeWalk(spread).VisitTraffic([](WorkerIndex, int64_t) {},
                                    [&sent](WorkerIndex worker, int64_t elements) { sent[worker] += elements; });
  int64_t total = 0, busiest = 0;
  for (const auto& [worker, elements] : sent) {
    total += elements;
    busiest = std::max(busiest, elements);
  }
  const int64_t share = total / spread.destination.mesh.size();
  return busiest <= share + share / kLevelPart;
}

bool IsDonatedTo(const Plan& plan, int value) {
  return std::any_of(plan.donations.begin(), plan.donations.end(), [&](const Donation& donation) {
    return plan.outputs[static_cast<size_t>(donation.output)] == value;
  });
}

// The step by which the others have what `move` moves, which becomes the holders' own; none where it stays as it is.
std::optional<ExchangeStep> PassOn(const Plan& plan, const Topology& topology, ExchangeStep& move) {
  const Exchange& exchange = move.exchange;
  const TensorSpec& to = exchange.destination;
  const bool may = exchange.role == ExchangeRole::kMove && exchange.far_takers == FarTakers::kEach &&
                   !exchange.is_by_rounds() && exchange.given_besides.empty() && CountReplicas(to) > 1 && to.mesh.size() <= kMaxPushedPositions &&
                   SizeBytes(to.dtype) <= SizeBytes(exchange.source.dtype) &&
                   MaxShardElements(to) * SizeBytes(to.dtype) >= topology.min_pushed_bytes &&
                   AreOnOneHost({&exchange.source.mesh, &to.mesh}, topology) &&
                   IsOnlyValueOfItsBuffer(plan, move.destination) && !IsDonatedTo(plan, move.destination) &&
                   AreWantedByHolders(exchange);
  if (!may) return std::nullopt;
  ExchangeStep own = move;
  own.exchange.far_takers = FarTakers::kHolders;
  ExchangeStep spread = InPlace(own, ExchangeRole::kSpread, Collective::kAllGather);
  spread.delivery = Delivery::kPush;
  if (!IsLevel(spread.exchange)) return std::nullopt;
  move = std::move(own);
  return spread;
}

bool ArePushed(const Plan& plan, size_t first, size_t end) {
  for (size_t i = first; i < end; ++i) {
    const auto* exchange = std::get_if<ExchangeStep>(&plan.steps[i]);
    if (exchange == nullptr || exchange->delivery != Delivery::kPush) return false;
  }
  return true;
}

}  // namespace

void PushMoves(Plan& plan, const Topology& topology) {
  if (plan.hosts.several()) return;
  const std::vector<int> phases = PhasesOf(plan);
  std::vector<Step> steps;
  for (size_t first = 0; first < plan.steps.size();) {
    size_t end = EndOfPhase(phases, first);
    std::vector<ExchangeStep> spreads;
    for (size_t i = first; i < end; ++i) {
      if (auto* move = std::get_if<ExchangeStep>(&plan.steps[i]); move != nullptr) {
        if (std::optional<ExchangeStep> spread = PassOn(plan, topology, *move); spread.has_value()) {
          spreads.push_back(*std::move(spread));
        }
      }
      steps.push_back(plan.steps[i]);
    }
    first = end;
    if (spreads.empty()) continue;
    // With what is spread after them anyhow.
    end = first < plan.steps.size() ? EndOfPhase(phases, first) : first;
    const bool is_joined = end > first && ArePushed(plan, first, end);
    for (; is_joined && first < end; ++first) steps.push_back(plan.steps[first]);
    for (ExchangeStep& spread : spreads) {
      const bool is_first = !is_joined && &spread == &spreads.front();
      spread.start = is_first ? StepStart::kNewPhase : StepStart::kWithPrevious;
      steps.emplace_back(std::move(spread));
    }
  }
  plan.steps = std::move(steps);
}

}  // namespace tessera
