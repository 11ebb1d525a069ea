#include "server/planner/alternatives.h"

#include <algorithm>

#include "server/plan/exchange.h"

namespace tessera {
namespace {

constexpr double kWorthwhile = 0.8;  // of the seconds of the other way: predictions are no better than that

double SecondsOf(const Plan& plan, const std::vector<Step>& steps, const Topology& reference) {
  Plan priced;
  priced.buffers = plan.buffers;
  priced.values = plan.values;
  priced.steps = steps;
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

std::vector<Step> Direct(const ExchangeStep& step) {
  ExchangeStep taken = step;
  if (!ExchangeWalk(taken.exchange).IsWantedTwiceFromFar()) return {taken};
  taken.exchange.far_takers = FarTakers::kOne;
  return {taken, InPlace(taken, ExchangeRole::kShare, taken.name)};
}

bool IsOnlyValueOfItsBuffer(const Plan& plan, int value) {
  const int buffer = plan.values[static_cast<size_t>(value)].buffer;
  return std::count_if(plan.values.begin(), plan.values.end(),
                       [buffer](const PlanValue& other) { return other.buffer == buffer; }) == 1;
}

Topology ReferenceOf(const Topology& topology) {
  Topology reference;
  reference.host_of_worker = topology.host_of_worker;
  return reference;
}

bool AreWorthwhile(const Plan& plan, const std::vector<Step>& steps, const std::vector<Step>& otherwise,
                   const Topology& reference) {
  return SecondsOf(plan, steps, reference) < kWorthwhile * SecondsOf(plan, otherwise, reference);
}

}  // namespace tessera
