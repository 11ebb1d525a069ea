#include "server/planner/donations.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "schemas/types/layout.h"
#include "server/plan/merged_runs.h"
#include "server/plan/movement/same_shards.h"

namespace tessera {
namespace {

// Whether the shard lies as the default strides would have it; dims of extent 1 don't matter.
bool HasDefaultStrides(const PlanValue& value) {
  const Shape extents = MaxShardShape(value.spec);
  const Strides strides = RowMajorStrides(extents);
  for (size_t d = 0; d < extents.size(); ++d) {
    if (extents[d] > 1 && value.strides[d] != strides[d]) return false;
  }
  return true;
}

class Donor {
 public:
  explicit Donor(Plan& plan) : plan_(plan), phases_(PhasesOf(plan)) {}

  void Run() {
    for (size_t output = 0; output < plan_.outputs.size(); ++output) {
      const std::optional<size_t> step = WriterOf(plan_.outputs[output]);
      if (!step.has_value()) continue;
      for (size_t input = 0; input < plan_.inputs.size(); ++input) {
        if (MayTake(*step, plan_.inputs[input])) {
          plan_.donations.push_back({static_cast<int>(input), static_cast<int>(output)});
        }
      }
    }
  }

 private:
  const PlanValue& Value(int id) const { return plan_.values[static_cast<size_t>(id)]; }
  bool IsIn(int id, int buffer) const { return Value(id).buffer == buffer; }

  // The local step that alone writes to the output's memory, all of it and at its beginning.
  std::optional<size_t> WriterOf(int output) const {
    const int buffer = Value(output).buffer;
    if (plan_.buffers[static_cast<size_t>(buffer)].kind != PlanBuffer::Kind::kOutput) return std::nullopt;
    std::optional<size_t> writer;
    for (size_t s = 0; s < plan_.steps.size(); ++s) {
      const Step& step = plan_.steps[s];
      const auto* local = std::get_if<LocalStep>(&step);
      const auto* exchange = std::get_if<ExchangeStep>(&step);
      if (local == nullptr) {
        const int written = exchange != nullptr ? exchange->destination : std::get<ContractStep>(step).output;
        if (IsIn(written, buffer)) return std::nullopt;
      } else if (IsIn(local->output, buffer)) {
        if (writer.has_value() || local->output != output || local->store != KernelStore::kWrite) return std::nullopt;
        writer = s;
      }
    }
    const PlanValue& value = Value(output);
    return value.offset == 0 && HasDefaultStrides(value) ? writer : std::nullopt;
  }

  bool MayTake(size_t writer, int input) const {
    const int buffer = Value(input).buffer;
    for (size_t s = 0; s < plan_.steps.size(); ++s) {
      const Step& step = plan_.steps[s];
      if (const auto* exchange = std::get_if<ExchangeStep>(&step)) {
        if (IsIn(exchange->source, buffer)) return false;
      } else if (const auto* contract = std::get_if<ContractStep>(&step)) {
        for (const ContractOperand& operand : contract->operands) {
          if (IsIn(operand.value, buffer)) return false;
        }
      } else if (s != writer &&
                 (phases_[s] >= phases_[writer] || InputsAtPeers(plan_, std::get<LocalStep>(step)) > 0)) {
        const auto& inputs = std::get<LocalStep>(step).inputs;
        if (std::any_of(inputs.begin(), inputs.end(), [&](int value) { return IsIn(value, buffer); })) return false;
      }
    }
    return ReadsInPlace(std::get<LocalStep>(plan_.steps[writer]), input);
  }

  // Whether the step reads of the input's memory, at each place, just the element that it writes there.
  bool ReadsInPlace(const LocalStep& step, int input) const {
    const auto* place = std::get_if<PlaceOp>(&step.op);
    if (!std::holds_alternative<MapOp>(step.op) && (place == nullptr || place->base != PlaceBase::kInput)) return false;
    const TensorSpec& to = Value(step.output).spec;
    bool reads = false;
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      const PlanValue& value = Value(step.inputs[i]);
      if (value.buffer != Value(input).buffer) continue;
      const bool is_base = place == nullptr || i == 0;
      const bool is_counted = i >= step.counted_once.size() || step.counted_once[i].empty();
      const bool has_same_bytes = SizeBytes(value.spec.dtype) == SizeBytes(to.dtype) && value.spec.shape == to.shape &&
                                  value.spec.placements == to.placements &&
                                  HaveSameArrangement(value.spec.mesh, to.mesh);
      if (!is_base || !is_counted || !has_same_bytes || value.offset != 0 || !HasDefaultStrides(value)) return false;
      reads = true;
    }
    return reads;
  }

  Plan& plan_;
  const std::vector<int> phases_;
};

}  // namespace

void AddDonations(Plan& plan) { Donor(plan).Run(); }

}  // namespace tessera
