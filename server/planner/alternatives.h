#pragma once

// Alternatives: what it takes to choose, by the predicted seconds, between ways to do the same exchange.

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "server/plan/cost.h"
#include "server/plan/plan.h"

namespace tessera {

// A way is taken if it is below this share of the other's predicted seconds: predictions are no better than that.
inline constexpr double kWorthwhile = 0.8;

// The step by which others take what `step` wrote from where it lies.
ExchangeStep InPlace(const ExchangeStep& step, ExchangeRole role, Collective name);

// Lets one worker of each host take what several want from far, and gives the step by which they share it; none where
// nobody wants such a thing. `step` is a move or a spread.
std::optional<ExchangeStep> TakeOnce(ExchangeStep& step);

// Appends steps that share a phase.
void AddPhase(const std::vector<ExchangeStep>& phase, std::vector<Step>& steps);

// Whether nothing else of the plan lies in the value's buffer, at any time or until the value is widened in its place.
bool IsOnlyValueOfItsBuffer(const Plan& plan, int value);

// The topology with reference constants, as measurements choose nothing: only the hosts of the workers are kept.
Topology ReferenceOf(const Topology& topology);

// Exchanges of several values that share their phases, and what may replace them.
class PhaseAlternative {
 public:
  // In place of a step of the first phase: steps one of which is in each phase from the first on.
  void Replace(const ExchangeStep& direct, std::vector<ExchangeStep> way);
  // A step of the first or of a later phase that goes away with those.
  void Omit(const ExchangeStep& direct);

  // How many steps it replaces.
  size_t size() const { return direct_.size(); }
  std::vector<Step> Steps() const;
  // The steps that they replace, none by relays or rounds; several workers of a host that want the same from far take
  // it once, and share it.
  std::vector<Step> DirectSteps() const;

 private:
  std::vector<std::vector<ExchangeStep>> phases_;
  std::vector<Step> direct_;
  std::vector<ExchangeStep> shares_;
};

// Takes what `find(first, end)` says may replace steps [first, end), a phase, and perhaps some after them, wherever it
// is faster by a fifth.
void TakeAlternatives(Plan& plan, const Topology& reference,
                      absl::FunctionRef<std::optional<PhaseAlternative>(size_t, size_t)> find);

}  // namespace tessera
