#include "server/planner/shared_temporaries.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "schemas/types/mesh.h"

namespace tessera {
namespace {

// When a buffer is needed, in phases.
struct Need {
  int first = 0;  // 0: never
  int last = 0;
  int written = -1;  // the one value that is written there
  bool stays = false;
};

class Sharer {
 public:
  explicit Sharer(Plan& plan) : plan_(plan), needs_(plan.buffers.size()), phases_(PhasesOf(plan)) {}

  void Run() {
    for (size_t b = 0; b < needs_.size(); ++b) {
      needs_[b].stays = plan_.buffers[b].kind != PlanBuffer::Kind::kTemporary;
    }
    for (const PlanValue& value : plan_.values) {
      // A value on some of the workers leaves what others have.
      const auto b = static_cast<size_t>(value.buffer);
      if (!HaveSameWorkers(value.spec.mesh, plan_.buffers[b].mesh)) needs_[b].stays = true;
    }
    for (size_t s = 0; s < plan_.steps.size(); ++s) Note(plan_.steps[s], phases_[s]);
    std::vector<int> place(needs_.size());  // by buffer: the one that it lies in
    for (size_t b = 0; b < place.size(); ++b) place[b] = static_cast<int>(b);
    std::vector<size_t> order;
    for (size_t b = 0; b < needs_.size(); ++b) {
      if (!needs_[b].stays && needs_[b].first > 0) order.push_back(b);
    }
    std::stable_sort(order.begin(), order.end(),
                     [this](size_t x, size_t y) { return needs_[x].first < needs_[y].first; });
    for (size_t i = 0; i < order.size(); ++i) {
      const std::optional<size_t> in = PlaceFor(order[i], {order.data(), i}, place);
      if (!in.has_value()) continue;
      place[order[i]] = static_cast<int>(*in);
      plan_.buffers[*in].bytes = std::max(plan_.buffers[*in].bytes, plan_.buffers[order[i]].bytes);
      needs_[*in].last = needs_[order[i]].last;
    }
    Renumber(place);
  }

 private:
  Need& NeedOf(int value) { return needs_[static_cast<size_t>(plan_.values[static_cast<size_t>(value)].buffer)]; }

  void Touch(int value, int phase) {
    Need& need = NeedOf(value);
    if (need.first == 0 || phase < need.first) need.first = phase;
    need.last = std::max(need.last, phase);
  }
  void Write(int value, int phase) {
    Touch(value, phase);
    Need& need = NeedOf(value);
    if (need.written >= 0 && need.written != value) need.stays = true;
    need.written = value;
  }

  void Note(const Step& step, int phase) {
    if (const auto* exchange = std::get_if<ExchangeStep>(&step)) {
      // A pushed value is stored a phase earlier, by others.
      const bool is_pushed = exchange->exchange.delivery == Delivery::kPush;
      if (is_pushed) NeedOf(exchange->source).stays = NeedOf(exchange->destination).stays = true;
      Touch(exchange->source, phase);
      Write(exchange->destination, phase);
    } else if (const auto* contract = std::get_if<ContractStep>(&step)) {
      for (const ContractOperand& operand : contract->operands) Touch(operand.value, phase);
      Write(contract->output, phase);
    } else {
      const auto& local = std::get<LocalStep>(step);
      for (const int input : local.inputs) Touch(input, phase);
      Write(local.output, phase);
    }
  }

  // The buffer, of those that are placed, that is free by then and needs the fewest bytes more, or has the fewest over.
  std::optional<size_t> PlaceFor(size_t buffer, absl::Span<const size_t> placed, const std::vector<int>& place) const {
    std::optional<size_t> best;
    const auto distance = [&](size_t b) { return std::abs(plan_.buffers[b].bytes - plan_.buffers[buffer].bytes); };
    for (const size_t b : placed) {
      if (place[b] != static_cast<int>(b) || needs_[b].last >= needs_[buffer].first) continue;
      if (!(plan_.buffers[b].mesh == plan_.buffers[buffer].mesh)) continue;
      if (!best.has_value() || distance(b) < distance(*best)) best = b;
    }
    return best;
  }

  void Renumber(const std::vector<int>& place) {
    std::vector<PlanBuffer> kept;
    std::vector<int> number(place.size());
    for (size_t b = 0; b < place.size(); ++b) {
      if (place[b] != static_cast<int>(b)) continue;
      number[b] = static_cast<int>(kept.size());
      kept.push_back(plan_.buffers[b]);
    }
    for (PlanValue& value : plan_.values) {
      value.buffer = number[static_cast<size_t>(place[static_cast<size_t>(value.buffer)])];
    }
    plan_.buffers = std::move(kept);
  }

  Plan& plan_;
  std::vector<Need> needs_;  // by buffer
  const std::vector<int> phases_;
};

}  // namespace

void ShareTemporaries(Plan& plan) { Sharer(plan).Run(); }

}  // namespace tessera
