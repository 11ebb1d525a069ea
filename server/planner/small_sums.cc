#include "server/planner/small_sums.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "schemas/types/layout.h"
#include "server/plan/movement/exchange.h"

namespace tessera {
namespace {

const ExchangeStep* FindReduction(const Plan& plan, size_t first, size_t end, int value) {
  for (size_t i = first; i < end; ++i) {
    const auto* exchange = std::get_if<ExchangeStep>(&plan.steps[i]);
    if (exchange == nullptr || exchange->exchange.role != ExchangeRole::kReduce) continue;
    if (exchange->destination == value) return exchange;
  }
  return nullptr;
}

// The values that steps [middle, end) spread, if they do nothing else and those who want them may do without.
std::vector<int> ReducedByEach(const Plan& plan, size_t first, size_t middle, size_t end, int64_t max_bytes) {
  std::vector<int> values;
  int64_t bytes = 0;
  for (size_t i = middle; i < end; ++i) {
    const auto* spread = std::get_if<ExchangeStep>(&plan.steps[i]);
    if (spread == nullptr || spread->exchange.role != ExchangeRole::kSpread) return {};
    const ExchangeStep* reduction = FindReduction(plan, first, middle, spread->destination);
    if (reduction == nullptr || !EachHoldsOneOfTwoTerms(reduction->exchange)) return {};
    const TensorSpec& result = reduction->exchange.destination;
    // A worker that reduces for others gives them fewer bytes.
    if (SizeBytes(result.dtype) < SizeBytes(reduction->exchange.source.dtype)) return {};
    bytes += MaxShardElements(result) * SizeBytes(result.dtype);
    values.push_back(spread->destination);
  }
  return bytes <= max_bytes ? values : std::vector<int>();
}

}  // namespace

void SaveWaitsOfSmallSums(Plan& plan, const Topology& topology) {
  const std::vector<int> phases = PhasesOf(plan);
  std::vector<Step> steps;
  for (size_t first = 0; first < plan.steps.size();) {
    const size_t middle = EndOfPhase(phases, first);
    const size_t end = middle < plan.steps.size() ? EndOfPhase(phases, middle) : middle;
    const std::vector<int> values = ReducedByEach(plan, first, middle, end, topology.max_reduced_by_each_bytes);
    for (size_t i = first; i < middle; ++i) {
      auto* exchange = std::get_if<ExchangeStep>(&plan.steps[i]);
      if (exchange != nullptr && std::find(values.begin(), values.end(), exchange->destination) != values.end()) {
        exchange->exchange.role = ExchangeRole::kReduceEach;
        exchange->name = Collective::kAllReduce;
      }
      steps.push_back(std::move(plan.steps[i]));
    }
    first = values.empty() ? middle : end;
  }
  plan.steps = std::move(steps);
}

}  // namespace tessera
