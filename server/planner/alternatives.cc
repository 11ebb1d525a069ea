#include "server/planner/alternatives.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "server/plan/lower/widening.h"
#include "server/plan/movement/exchange.h"

namespace tessera {
namespace {

double SecondsOf(const Plan& plan, const std::vector<Step>& steps, const Topology& reference) {
  Plan priced;
  priced.buffers = plan.buffers;
  priced.values = plan.values;
  priced.steps = steps;
  return PredictSeconds(priced, reference);
}

// Both on the plan's values.
bool AreWorthwhile(const Plan& plan, const std::vector<Step>& steps, const std::vector<Step>& otherwise,
                   const Topology& reference) {
  return SecondsOf(plan, steps, reference) < kWorthwhile * SecondsOf(plan, otherwise, reference);
}

}  // namespace

ExchangeStep InPlace(const ExchangeStep& step, ExchangeRole role, Collective name) {
  ExchangeStep added = step;
  added.source = step.destination;
  added.exchange.role = role;
  added.name = name;
  added.exchange.delivery = Delivery::kPull;
  return added;
}

std::optional<ExchangeStep> TakeOnce(ExchangeStep& step) {
  if (!Pieces(step.exchange).IsWantedTwiceFromFar()) return std::nullopt;
  step.exchange.far_takers = FarTakers::kOne;
  return InPlace(step, ExchangeRole::kHostGather, step.name);
}

void AddPhase(const std::vector<ExchangeStep>& phase, std::vector<Step>& steps) {
  for (size_t i = 0; i < phase.size(); ++i) {
    ExchangeStep step = phase[i];
    step.start = i == 0 ? StepStart::kNewPhase : StepStart::kWithPrevious;
    steps.emplace_back(std::move(step));
  }
}

bool IsOnlyValueOfItsBuffer(const Plan& plan, int value) {
  const int buffer = plan.values[static_cast<size_t>(value)].buffer;
  const auto values = std::count_if(plan.values.begin(), plan.values.end(),
                                    [buffer](const PlanValue& other) { return other.buffer == buffer; });
  const bool is_widened = std::any_of(plan.steps.begin(), plan.steps.end(), [&](const Step& step) {
    const auto* local = std::get_if<LocalStep>(&step);
    return local != nullptr && WidensInPlace(plan, *local) && local->inputs[0] == value;
  });
  return values == (is_widened ? 2 : 1);
}

void PhaseAlternative::Replace(const ExchangeStep& direct, std::vector<ExchangeStep> way) {
  if (phases_.size() < way.size()) phases_.resize(way.size());
  for (size_t i = 0; i < way.size(); ++i) phases_[i].push_back(std::move(way[i]));
  Omit(direct);
}

void PhaseAlternative::Omit(const ExchangeStep& direct) {
  ExchangeStep step = direct;
  if (!step.exchange.reduces()) {
    if (std::optional<ExchangeStep> share = TakeOnce(step); share.has_value()) shares_.push_back(*std::move(share));
  }
  direct_.emplace_back(std::move(step));
}

std::vector<Step> PhaseAlternative::Steps() const {
  std::vector<Step> steps;
  for (const std::vector<ExchangeStep>& phase : phases_) AddPhase(phase, steps);
  return steps;
}

std::vector<Step> PhaseAlternative::DirectSteps() const {
  std::vector<Step> steps = direct_;
  AddPhase(shares_, steps);
  return steps;
}

Topology ReferenceOf(const Topology& topology) {
  Topology reference = Topology::Of(topology.kind);
  reference.host_of_worker = topology.host_of_worker;
  return reference;
}

void TakeAlternatives(Plan& plan, const Topology& reference,
                      absl::FunctionRef<std::optional<PhaseAlternative>(size_t, size_t)> find) {
  const std::vector<int> phases = PhasesOf(plan);
  std::vector<Step> steps;
  for (size_t first = 0; first < plan.steps.size();) {
    const size_t end = EndOfPhase(phases, first);
    if (const std::optional<PhaseAlternative> found = find(first, end); found.has_value()) {
      std::vector<Step> made = found->Steps();
      if (AreWorthwhile(plan, made, found->DirectSteps(), reference)) {
        std::move(made.begin(), made.end(), std::back_inserter(steps));
        first += found->size();
        continue;
      }
    }
    for (; first < end; ++first) steps.push_back(plan.steps[first]);
  }
  plan.steps = std::move(steps);
}

}  // namespace tessera
