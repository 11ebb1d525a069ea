#pragma once

// Alternatives: what it takes to choose, by the predicted seconds, between ways to do the same exchange.

#include <vector>

#include "server/plan/cost.h"
#include "server/plan/plan.h"

namespace tessera {

// The step by which others take what `step` wrote from where it lies.
ExchangeStep InPlace(const ExchangeStep& step, ExchangeRole role, Collective name);

// Whether nothing else of the plan lies, at any time, in the value's buffer.
bool IsOnlyValueOfItsBuffer(const Plan& plan, int value);

// What was measured chooses nothing: the reference constants, and which hosts the workers are on.
Topology ReferenceOf(const Topology& topology);

// Exchanges of several values that share their phases, and what may replace them.
class PhaseAlternative {
 public:
  // In place of a step of the first phase: steps one of which is in each phase from the first on.
  void Replace(const ExchangeStep& direct, std::vector<ExchangeStep> way);
  // A step of the first or of a later phase that goes away with those.
  void Omit(const ExchangeStep& direct);

  std::vector<Step> Steps() const;
  // What they replace, none by relays or rounds; where several workers of a host want the same from far, once, and
  // shared.
  std::vector<Step> DirectSteps() const;

 private:
  std::vector<std::vector<ExchangeStep>> phases_;
  std::vector<Step> direct_;
  std::vector<ExchangeStep> shares_;
};

// Whether `steps` are worth taking in place of `otherwise`, both on the plan's values.
bool AreWorthwhile(const Plan& plan, const std::vector<Step>& steps, const std::vector<Step>& otherwise,
                   const Topology& reference);

}  // namespace tessera
