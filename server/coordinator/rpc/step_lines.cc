#include "server/coordinator/rpc/step_lines.h"

#include <algorithm>
#include <set>
#include <variant>

#include "schemas/ops/gpu_kernels.h"
#include "schemas/types/str_cat.h"
#include "server/plan/lower/collective_calls.h"
#include "server/plan/movement/exchange.h"

namespace tessera {
namespace {

// So many workers of a larger mesh say how all of it is reached: that many take a moment.
constexpr size_t kMaxAsked = 64;

// How the bytes come that workers take from others.
struct Ways {
  bool mapped = false, nccl = false, other = false;

  std::string Text(std::string_view what) const {
    if (!nccl || other) return "";
    return std::string(what) + "by NCCL" + (mapped ? " between hosts" : "");
  }
};

void AddWays(const Exchange& exchange, const Topology& topology, absl::FunctionRef<bool(WorkerIndex)> has_nccl,
             Ways& ways) {
  const Pieces pieces(exchange);
  const absl::Span<const WorkerIndex> workers = exchange.destination.mesh.workers();
  for (size_t w = 0; w < std::min(workers.size(), kMaxAsked); ++w) {
    const WorkerIndex to = workers[w];
    pieces.VisitReceived(to, [&](WorkerIndex from, int64_t elements) {
      if (elements == 0 || from == to) return;
      const bool is_mapped = topology.HostOf(from) == topology.HostOf(to);
      const bool is_nccl = !is_mapped && has_nccl(from) && has_nccl(to);
      (is_mapped ? ways.mapped : is_nccl ? ways.nccl : ways.other) = true;
    });
  }
}

// Where no two of the plan's workers map each other and all have NCCL, an exchange that is calls of all its workers:
// "AllGather"; by step, else "".
std::vector<std::string> CallsBySteps(const Topology& topology, absl::FunctionRef<bool(WorkerIndex)> has_nccl,
                                      const Plan& plan) {
  std::vector<std::string> calls(plan.steps.size());
  std::set<WorkerIndex> workers;
  for (const PlanBuffer& buffer : plan.buffers) {
    workers.insert(buffer.mesh.workers().begin(), buffer.mesh.workers().end());
  }
  const auto host_of = [&](WorkerIndex worker) { return topology.HostOf(worker); };
  if (!MayMakeCalls(std::vector<WorkerIndex>(workers.begin(), workers.end()), has_nccl, host_of)) return calls;
  const std::vector<int> phases = PhasesOf(plan);
  for (size_t first = 0; first < plan.steps.size(); first = EndOfPhase(phases, first)) {
    const size_t end = EndOfPhase(phases, first);
    const std::vector<CollectiveCall> made = CallsOfPhase(plan, first, end);
    if (made.empty()) continue;
    std::set<WorkerIndex> callers;
    for (const CollectiveCall& call : made) callers.insert(call.workers.begin(), call.workers.end());
    // By step, then by group.
    for (size_t s = first; s < end; ++s) {
      const auto& exchange = std::get<ExchangeStep>(plan.steps[s]).exchange;
      bool has_all = true;
      for (const WorkerIndex worker : exchange.destination.mesh.workers()) has_all &= callers.count(worker) != 0;
      if (has_all) calls[s] = std::string(ToText(made[(s - first) * made.size() / (end - first)].kind));
    }
  }
  return calls;
}

std::string TransportOf(const Step& step, const Topology& topology, absl::FunctionRef<bool(WorkerIndex)> has_nccl) {
  Ways ways;
  if (const auto* exchange = std::get_if<ExchangeStep>(&step)) {
    AddWays(exchange->exchange, topology, has_nccl, ways);
    return ways.Text(", ");
  }
  const auto* contract = std::get_if<ContractStep>(&step);
  if (contract == nullptr) return "";
  for (const ContractOperand& operand : contract->operands) {
    if (operand.pieces.has_value()) AddWays(*operand.pieces, topology, has_nccl, ways);
  }
  return ways.Text(", pieces ");
}

bool IsForCudnn(const LocalOp& op, DType dtype) {
  const bool is_half = dtype == DType::kF16 || dtype == DType::kBF16;
  return ((std::holds_alternative<AttentionOp>(op) || std::holds_alternative<AttentionGradientsOp>(op)) && is_half) ||
         ((std::holds_alternative<ConvOp>(op) || std::holds_alternative<ConvGradientOp>(op)) &&
          (is_half || dtype == DType::kF32));
}

}  // namespace

std::vector<std::string> StepLinesOn(const Topology& topology, absl::FunctionRef<bool(WorkerIndex)> has_nccl,
                                     const Plan& plan) {
  std::vector<std::string> lines = StepLines(plan);
  const std::vector<std::string> calls = CallsBySteps(topology, has_nccl, plan);
  for (size_t s = 0; topology.kind == DeviceKind::kCuda && s < lines.size(); ++s) {
    const auto dtype_of = [&plan](int value) { return plan.values[static_cast<size_t>(value)].spec.dtype; };
    const auto* local = std::get_if<LocalStep>(&plan.steps[s]);
    const auto* contract = std::get_if<ContractStep>(&plan.steps[s]);
    bool is_product = contract != nullptr && Kind(dtype_of(contract->output)) == DTypeKind::kFloat;
    if (local != nullptr) {
      if (!HasGpuKernel(local->op, dtype_of(local->output)).ok()) lines[s] += ", on the host";
      is_product = std::holds_alternative<MatmulOp>(local->op) && Kind(dtype_of(local->output)) == DTypeKind::kFloat;
    }
    if (is_product) lines[s] += ", by cuBLASLt where it is";
    // From some size on, and in layouts that it takes: the worker says where it does without.
    if (local != nullptr && IsForCudnn(local->op, dtype_of(local->output))) lines[s] += ", by cuDNN where it is";
    if (local != nullptr && std::holds_alternative<FourierOp>(local->op)) {
      lines[s] += ", by cuFFT where it is, else on the host";
    }
    if (local != nullptr && std::holds_alternative<LinalgOp>(local->op) &&
        HasGpuKernel(local->op, dtype_of(local->output)).ok()) {
      lines[s] += ", by cuSOLVER where it is, else on the host";
    }
    lines[s] += TransportOf(plan.steps[s], topology, has_nccl);
    if (!calls[s].empty()) lines[s] += StrCat("'s ", calls[s]);
  }
  return lines;
}

}  // namespace tessera
