#include "server/plan/cost.h"

#include <algorithm>
#include <variant>

#include "schemas/types/layout.h"
#include "server/plan/exchange.h"

namespace tessera {
namespace {

// Meshes up to this size are looked at position by position; of larger ones the first position, which
// has the largest shard, and the last stand for all.
constexpr int64_t kPricedPositions = 64;

// What the slowest position pays for reading peers, and for copying what it has itself.
enum class OwnPieces : uint8_t { kCopied, kReadInPlace };

double SecondsOf(const Exchange& exchange, const Topology& topology, OwnPieces own_pieces) {
  const ExchangeWalk walk(exchange);
  const Mesh& mesh = exchange.destination.mesh;
  const int64_t element_bytes = SizeBytes(exchange.destination.dtype);
  const int64_t stride = mesh.size() <= kPricedPositions ? 1 : mesh.size() - 1;
  double slowest_s = 0;
  for (int64_t flat = 0; flat < mesh.size(); flat += stride) {
    const WorkerIndex self = mesh.workers()[static_cast<size_t>(flat)];
    const Position position = mesh.PositionAt(flat);
    double seconds = 0;
    int64_t received = 0;
    walk.VisitReceived(position, [&](WorkerIndex from, int64_t elements) {
      const bool same_host = topology.HostOf(from) == topology.HostOf(self);
      const double bandwidth_bytes_s = same_host ? topology.host_bandwidth_bytes_s : topology.network_bandwidth_bytes_s;
      seconds += static_cast<double>(elements * element_bytes) / bandwidth_bytes_s;
      received += elements;
    });
    const int64_t own = std::max<int64_t>(0, NumElements(LocalBox(exchange.destination, position)) - received);
    if (own_pieces == OwnPieces::kCopied && exchange.role != ExchangeRole::kSpread) {
      seconds += static_cast<double>(own * element_bytes) / topology.local_bandwidth_bytes_s;
    }
    if (received > 0) seconds += topology.step_latency_s;
    slowest_s = std::max(slowest_s, seconds);
  }
  return slowest_s;
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
    if (operand.pieces.has_value()) seconds += SecondsOf(*operand.pieces, topology, OwnPieces::kReadInPlace);
  }
  return seconds;
}

}  // namespace

double PredictSeconds(const Plan& plan, const Topology& topology) {
  double seconds = 0;
  for (const Step& step : plan.steps) {
    if (const auto* exchange = std::get_if<ExchangeStep>(&step)) {
      seconds += SecondsOf(exchange->exchange, topology, OwnPieces::kCopied);
    } else if (const auto* contract = std::get_if<ContractStep>(&step)) {
      seconds += SecondsOf(plan, *contract, topology);
    } else {
      seconds += SecondsOf(plan, std::get<LocalStep>(step), topology);
    }
  }
  return seconds;
}

}  // namespace tessera
