#include "server/plan/lower/output_readers.h"

#include <algorithm>
#include <variant>

#include "server/plan/merged_runs.h"

namespace tessera {
namespace {

struct Reading {
  int of_value = 0;        // inputs that are the value, of a local step that reads its own worker's memory
  bool of_others = false;  // another reader, or another value of the buffer
  bool overwrites = false;
};

class Readers {
 public:
  Readers(const Plan& plan, int value) : plan_(plan), value_(value), buffer_(BufferOf(value)) {}

  Reading Of(const Step& step) const {
    Reading reading;
    if (const auto* local = std::get_if<LocalStep>(&step)) {
      const size_t at_peers = InputsAtPeers(plan_, *local);
      for (size_t i = 0; i < local->inputs.size(); ++i) {
        const int input = local->inputs[i];
        if (input == value_ && i >= at_peers) ++reading.of_value;
        if ((input != value_ || i < at_peers) && IsHere(input)) reading.of_others = true;
      }
      if (local->store == KernelStore::kAdd && IsHere(local->output)) reading.of_others = true;
      reading.overwrites = IsHere(local->output);
    } else if (const auto* contract = std::get_if<ContractStep>(&step)) {
      reading.of_others = std::any_of(contract->operands.begin(), contract->operands.end(),
                                      [this](const ContractOperand& operand) { return IsHere(operand.value); });
      if (contract->store == KernelStore::kAdd && IsHere(contract->output)) reading.of_others = true;
      reading.overwrites = IsHere(contract->output);
    } else {
      const auto& exchange = std::get<ExchangeStep>(step);
      reading.of_others = IsHere(exchange.source);
      reading.overwrites = IsHere(exchange.destination);
    }
    return reading;
  }

 private:
  int BufferOf(int value) const { return plan_.values[static_cast<size_t>(value)].buffer; }
  bool IsHere(int value) const { return BufferOf(value) == buffer_; }

  const Plan& plan_;
  const int value_;
  const int buffer_;
};

}  // namespace

int CountOutputReaders(const Plan& plan, size_t step) {
  const auto& written = std::get<LocalStep>(plan.steps[step]);
  const int buffer = plan.values[static_cast<size_t>(written.output)].buffer;
  if (plan.buffers[static_cast<size_t>(buffer)].kind != PlanBuffer::Kind::kTemporary) return 0;
  const Readers readers(plan, written.output);
  int count = 0;
  for (size_t s = step + 1; s < plan.steps.size(); ++s) {
    const Reading reading = readers.Of(plan.steps[s]);
    if (reading.of_others) return 0;
    count += reading.of_value;
    if (reading.overwrites) break;
  }
  return count;
}

}  // namespace tessera
