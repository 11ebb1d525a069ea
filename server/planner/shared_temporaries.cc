#include "server/planner/shared_temporaries.h"

#include <algorithm>
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
    // The largest first, so that none grows, and what is small and needed long takes no large one's room (Pisarchyk,
    // Lee: "Efficient memory management for deep neural net inference", 2020, greedy by size).
    std::stable_sort(order.begin(), order.end(), [this](size_t x, size_t y) {
      const int64_t a = plan_.buffers[x].bytes, b = plan_.buffers[y].bytes;
      return a != b ? a > b : needs_[x].first < needs_[y].first;
    });
    std::vector<std::vector<size_t>> lying(needs_.size());  // by buffer: those that lie in it
    for (const size_t buffer : order) {
      const size_t in = PlaceFor(buffer, order, lying);
      place[buffer] = static_cast<int>(in);
      lying[in].push_back(buffer);
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

  // The smallest buffer that has room and is free all the while, or its own.
  size_t PlaceFor(size_t buffer, absl::Span<const size_t> order, const std::vector<std::vector<size_t>>& lying) const {
    std::optional<size_t> best;
    const Need& need = needs_[buffer];
    for (const size_t b : order) {
      if (b == buffer) break;
      if (lying[b].empty() || !(plan_.buffers[b].mesh == plan_.buffers[buffer].mesh)) continue;
      const bool is_free = std::all_of(lying[b].begin(), lying[b].end(), [&](size_t other) {
        return needs_[other].last < need.first || need.last < needs_[other].first;
      });
      if (is_free && (!best.has_value() || plan_.buffers[b].bytes < plan_.buffers[*best].bytes)) best = b;
    }
    return best.value_or(buffer);
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
