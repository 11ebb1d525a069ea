#include "server/plan/cost.h"

#include <algorithm>
#include <map>
#include <variant>

#include "schemas/types/layout.h"
#include "server/plan/exchange.h"

namespace tessera {
namespace {

// Meshes up to this size are looked at position by position; of larger ones the first position, which
// has the largest shard, and the last stand for all.
constexpr int64_t kPricedPositions = 64;

// Reading peers is paid, and copying what a worker has itself.
enum class OwnPieces : uint8_t { kCopied, kReadInPlace };

// What a worker pays in a phase.
struct Paid {
  double seconds = 0;
  bool waits = false;
};
using PaidByWorker = std::map<WorkerIndex, Paid>;

// The workers of a phase wait for each other once, however many exchanges share it.
double SlowestOf(const PaidByWorker& paid, const Topology& topology) {
  double slowest_s = 0;
  for (const auto& [worker, one] : paid) {
    slowest_s = std::max(slowest_s, one.seconds + (one.waits ? topology.step_latency_s : 0));
  }
  return slowest_s;
}

void AddExchange(const Exchange& exchange, const Topology& topology, OwnPieces own_pieces, PaidByWorker& paid) {
  const ExchangeWalk walk(exchange);
  const Mesh& mesh = exchange.destination.mesh;
  const int64_t element_bytes = SizeBytes(exchange.destination.dtype);
  const int64_t stride = mesh.size() <= kPricedPositions ? 1 : mesh.size() - 1;
  for (int64_t flat = 0; flat < mesh.size(); flat += stride) {
    const WorkerIndex self = mesh.workers()[static_cast<size_t>(flat)];
    const Position position = mesh.PositionAt(flat);
    Paid& own_paid = paid[self];
    int64_t received = 0;
    walk.VisitReceived(self, [&](WorkerIndex from, int64_t elements) {
      const bool same_host = topology.HostOf(from) == topology.HostOf(self);
      const double bandwidth_bytes_s = same_host ? topology.host_bandwidth_bytes_s : topology.network_bandwidth_bytes_s;
      own_paid.seconds += static_cast<double>(elements * element_bytes) / bandwidth_bytes_s;
      received += elements;
    });
    const int64_t own = std::max<int64_t>(0, NumElements(LocalBox(exchange.destination, position)) - received);
    if (own_pieces == OwnPieces::kCopied && exchange.role != ExchangeRole::kSpread &&
        exchange.role != ExchangeRole::kShare) {
      own_paid.seconds += static_cast<double>(own * element_bytes) / topology.local_bandwidth_bytes_s;
    }
    own_paid.waits = own_paid.waits || received > 0;
  }
}

// Reading the operands and writing the result, or multiplying, whichever takes longer.
double ProductSeconds(const Contraction& notation, const TensorSpec& left, const TensorSpec& right,
                      const TensorSpec& output, const Topology& topology) {
  double bytes = 0;
  for (const TensorSpec* spec : {&left, &right, &output}) {
    bytes += static_cast<double>(MaxShardElements(*spec) * SizeBytes(spec->dtype));
  }
  const int64_t inner = ExtentOf(notation, LetterRole::kInner, MaxShardShape(left), MaxShardShape(right));
  const double flops = 2.0 * static_cast<double>(MaxShardElements(output)) * static_cast<double>(inner);
  return std::max(bytes / topology.local_bandwidth_bytes_s, flops / topology.flops_per_s);
}

double SecondsOf(const Plan& plan, const LocalStep& step, const Topology& topology) {
  const auto spec_of = [&plan](int value) -> const TensorSpec& { return plan.values[static_cast<size_t>(value)].spec; };
  const TensorSpec& output = spec_of(step.output);
  if (const auto* matmul = std::get_if<MatmulOp>(&step.op)) {
    return ProductSeconds(matmul->notation, spec_of(step.inputs[0]), spec_of(step.inputs[1]), output, topology);
  }
  double bytes = static_cast<double>(MaxShardElements(output) * SizeBytes(output.dtype));
  for (const int input : step.inputs) {
    bytes += static_cast<double>(MaxShardElements(spec_of(input)) * SizeBytes(spec_of(input).dtype));
  }
  return std::max(bytes / topology.local_bandwidth_bytes_s,
                  static_cast<double>(MaxShardElements(output)) / topology.flops_per_s);
}

double SecondsOf(const Plan& plan, const ContractStep& step, const Topology& topology) {
  double seconds =
      ProductSeconds(step.op.notation, SpecOnGrid(plan, step.operands[0]), SpecOnGrid(plan, step.operands[1]),
                     plan.values[static_cast<size_t>(step.output)].spec, topology);
  for (const ContractOperand& operand : step.operands) {
    if (!operand.pieces.has_value()) continue;
    PaidByWorker paid;
    AddExchange(*operand.pieces, topology, OwnPieces::kReadInPlace, paid);
    seconds += SlowestOf(paid, topology);
  }
  return seconds;
}

}  // namespace

double PredictSeconds(const Plan& plan, const Topology& topology) {
  double seconds = 0;
  PaidByWorker paid;  // in the exchanges of the phase at hand
  for (const Step& step : plan.steps) {
    const auto* exchange = std::get_if<ExchangeStep>(&step);
    if (exchange == nullptr || exchange->start == StepStart::kNewPhase) {
      seconds += SlowestOf(paid, topology);
      paid.clear();
    }
    if (exchange != nullptr) {
      AddExchange(exchange->exchange, topology, OwnPieces::kCopied, paid);
    } else if (const auto* contract = std::get_if<ContractStep>(&step)) {
      seconds += SecondsOf(plan, *contract, topology);
    } else {
      seconds += SecondsOf(plan, std::get<LocalStep>(step), topology);
    }
  }
  return seconds + SlowestOf(paid, topology);
}

}  // namespace tessera
