#include "server/plan/flows.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "schemas/types/layout.h"
#include "server/plan/movement/exchange.h"

namespace tessera {
namespace {

using Bytes = std::map<std::pair<WorkerIndex, WorkerIndex>, int64_t>;  // by receiver and giver

template <typename Workers>
void AddReceived(const Exchange& exchange, const Workers& receivers, Bytes& bytes) {
  const Pieces pieces(exchange);
  for (const WorkerIndex to : receivers) {
    pieces.VisitReceived(to, [&](WorkerIndex from, int64_t elements) {
      if (elements > 0) bytes[{to, from}] += elements * SizeBytes(TakenDType(exchange));
    });
  }
}

// Positions whose shard of the output is empty take nothing of an operand's pieces.
std::vector<WorkerIndex> TakersOf(const TensorSpec& output) {
  std::vector<WorkerIndex> takers;
  for (int64_t flat = 0; flat < output.mesh.size(); ++flat) {
    if (!IsEmpty(LocalBox(output, output.mesh.PositionAt(flat)))) {
      takers.push_back(output.mesh.workers()[static_cast<size_t>(flat)]);
    }
  }
  return takers;
}

std::string TitleOf(const LocalOp& op) {
  const std::string text = ToText(op);
  return text.substr(0, text.find_first_of("( "));
}

// Fills all but the flows, whose bytes it adds up.
struct StepVisitor {
  const Plan& plan;
  StepFlows& out;
  std::set<WorkerIndex>& workers;
  Bytes& bytes;

  const TensorSpec& spec(int value) const { return plan.values[static_cast<size_t>(value)].spec; }
  void Add(absl::Span<const WorkerIndex> more) { workers.insert(more.begin(), more.end()); }

  void operator()(const ExchangeStep& step) {
    out.title = std::string(ToText(step.name));
    out.is_exchange = true;
    out.joins_last = step.start != StepStart::kNewPhase;
    Add(step.exchange.source.mesh.workers());
    Add(step.exchange.destination.mesh.workers());
    AddReceived(step.exchange, workers, bytes);
  }
  void operator()(const LocalStep& step) {
    out.title = TitleOf(step.op);
    out.joins_last = step.start != StepStart::kNewPhase;
    Add(spec(step.output).mesh.workers());
  }
  void operator()(const ContractStep& step) {
    out.title = TitleOf(step.op);
    Add(spec(step.output).mesh.workers());
    for (const ContractOperand& operand : step.operands) {
      if (operand.pieces.has_value()) AddReceived(*operand.pieces, TakersOf(spec(step.output)), bytes);
    }
  }
};

}  // namespace

std::vector<StepFlows> FlowsOf(const Plan& plan) {
  std::set<WorkerIndex> all;
  for (const PlanBuffer& buffer : plan.buffers) {
    all.insert(buffer.mesh.workers().begin(), buffer.mesh.workers().end());
  }
  std::vector<StepFlows> flows;
  if (all.size() > kMaxFlowWorkers) return flows;
  for (const Step& step : plan.steps) {
    StepFlows& out = flows.emplace_back();
    std::set<WorkerIndex> workers;
    Bytes bytes;
    std::visit(StepVisitor{plan, out, workers, bytes}, step);
    out.workers.assign(workers.begin(), workers.end());
    for (const auto& [pair, count] : bytes) out.flows.push_back({pair.second, pair.first, count});
  }
  return flows;
}

}  // namespace tessera
