#pragma once

// Alternatives: what it takes to choose, by the predicted seconds, between ways to do the same exchange.

#include <vector>

#include "server/plan/cost.h"
#include "server/plan/plan.h"

namespace tessera {

// The step by which others take what `step` wrote from where it lies.
ExchangeStep InPlace(const ExchangeStep& step, ExchangeRole role, Collective name);

// A move or a spread, not by relays or rounds; where several workers of a host want the same from far, once, and
// shared.
std::vector<Step> Direct(const ExchangeStep& step);

// Whether nothing else of the plan lies, at any time, in the value's buffer.
bool IsOnlyValueOfItsBuffer(const Plan& plan, int value);

// What was measured chooses nothing: the reference constants, and which hosts the workers are on.
Topology ReferenceOf(const Topology& topology);

// Whether `steps` are worth taking in place of `otherwise`, both on the plan's values.
bool AreWorthwhile(const Plan& plan, const std::vector<Step>& steps, const std::vector<Step>& otherwise,
                   const Topology& reference);

}  // namespace tessera
