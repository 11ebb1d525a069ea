// The worth of each mode of movement in the cost model of a real network: links of 25 GB/s, messages of 5 us, 8 to 64
// hosts. A plan as the planner makes it is priced beside one that moves the same tensor without the mode. One JSON
// object on stdout: by mode, a row for each movement and size for which the planner takes the mode, with both predicted
// seconds and the bytes that all workers receive. "gain" is the share of the seconds without the mode that it saves.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_join.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/cost.h"
#include "server/plan/verify.h"
#include "server/planner/alternatives.h"
#include "server/planner/builder.h"
#include "server/planner/planner.h"

namespace tessera::bench {
namespace {

constexpr int64_t kHostCounts[] = {8, 16, 32, 64};
constexpr int64_t kWorkersOfAHost[] = {1, 4};
constexpr int64_t kSmallestBytes = int64_t{4} << 10;
constexpr int64_t kLargestBytes = int64_t{1} << 30;
constexpr int64_t kSizeStep = 8;

struct World {
  int64_t hosts = 0;
  int64_t workers_of_a_host = 0;
  int64_t bytes = 0;
  int64_t workers() const { return hosts * workers_of_a_host; }
};

// The network whose figures are asked for. The share of a message that costs processor time is that of the measured
// network (15 of 50 us).
Topology NetworkOf(const World& world) {
  Topology topology;
  topology.network_bandwidth_bytes_s = 25e9;
  topology.message_latency_s = 5e-6;
  topology.message_overhead_s = 1.5e-6;
  for (int64_t worker = 0; worker < world.workers(); ++worker) {
    topology.host_of_worker.push_back(static_cast<int32_t>(worker / world.workers_of_a_host));
  }
  return topology;
}

struct Movement {
  std::string name;
  std::string source;  // mesh and placements
  std::string destination;
};

TensorSpec SpecOf(const World& world, DType dtype, const std::string& place) {
  const absl::StatusOr<TensorSpec> spec =
      ParseTensorSpec(StrCat(ToText(dtype), "[", world.bytes / SizeBytes(dtype), "] @ ", place));
  TESSERA_CHECK(spec.ok());
  return *spec;
}

int64_t ReceivedBytes(const Plan& plan) {
  const std::vector<int64_t> received = TrafficOf(plan).received_bytes;
  return std::accumulate(received.begin(), received.end(), int64_t{0});
}

Plan PlanMove(const TensorSpec& source, const TensorSpec& destination, const Topology& topology) {
  PlanBuilder builder;
  const ValueMove move = {builder.AddInput({source, {}}), destination};
  const absl::StatusOr<std::vector<int>> outputs = builder.AddRedistributes({move});
  TESSERA_CHECK(outputs.ok());
  builder.AddOutput((*outputs)[0]);
  Plan plan = std::move(builder).Finish(topology);
  TESSERA_CHECK(VerifyPlan(plan).ok());
  return plan;
}

// The plan on the same hosts with neither rounds nor relays: holders give to all, and the workers of a host share.
Plan PlanDirectly(const TensorSpec& source, const TensorSpec& destination, const WorkerHosts& hosts) {
  PlanBuilder builder;
  const ValueMove move = {builder.AddInput({source, {}}), destination};
  const absl::StatusOr<std::vector<int>> outputs = builder.AddRedistributes({move});
  TESSERA_CHECK(outputs.ok());
  builder.AddOutput((*outputs)[0]);
  Plan plan = builder.plan();
  plan.hosts = hosts;
  std::vector<ExchangeStep> shares;
  for (Step& step : plan.steps) {
    ExchangeStep& exchange = std::get<ExchangeStep>(step);
    exchange.exchange.hosts = HostsAmong(hosts, source.mesh, destination.mesh);
    if (!hosts.several() || exchange.exchange.reduces()) continue;
    if (std::optional<ExchangeStep> share = TakeOnce(exchange); share.has_value()) shares.push_back(*std::move(share));
  }
  AddPhase(shares, plan.steps);
  TESSERA_CHECK(VerifyPlan(plan).ok());
  return plan;
}

bool Any(const Plan& plan, const std::function<bool(const Exchange&)>& is) {
  for (const Step& step : plan.steps) {
    const auto* exchange = std::get_if<ExchangeStep>(&step);
    if (exchange != nullptr && is(exchange->exchange)) return true;
  }
  return false;
}

class Rows {
 public:
  // `with`, `without`: plans that follow each other.
  void Add(const std::string& mode, const World& world, const std::string& movement, const std::vector<Plan>& with,
           const std::vector<Plan>& without) {
    const auto [with_s, with_bytes] = Price(with, world);
    const auto [without_s, without_bytes] = Price(without, world);
    json_[mode].push_back({{"movement", movement},
                           {"hosts", world.hosts},
                           {"workers_of_a_host", world.workers_of_a_host},
                           {"bytes", world.bytes},
                           {"seconds_with", with_s},
                           {"seconds_without", without_s},
                           {"received_bytes_with", with_bytes},
                           {"received_bytes_without", without_bytes},
                           {"gain", 1 - with_s / without_s}});
  }
  const nlohmann::json& json() const { return json_; }

 private:
  static std::pair<double, int64_t> Price(const std::vector<Plan>& plans, const World& world) {
    std::pair<double, int64_t> price = {0, 0};
    for (const Plan& plan : plans) {
      price.first += PredictSeconds(plan, NetworkOf(world));
      price.second += ReceivedBytes(plan);
    }
    return price;
  }

  nlohmann::json json_ = nlohmann::json::object();
};

std::string MeshOf(const World& world) { return StrCat("mesh(", world.workers(), ")"); }

void MeasureWays(const World& world, Rows& rows) {
  const std::string all = MeshOf(world);
  const std::string pairs = StrCat("mesh(", world.workers() / 2, ",2)");
  const std::string one_host = StrCat("mesh(", world.workers_of_a_host, ")");
  const Movement movements[] = {{"all: P(sum) -> R", all + " [P(sum)]", all + " [R]"},
                                {"all: P(sum) -> S(0)", all + " [P(sum)]", all + " [S(0)]"},
                                {"all: S(0) -> R", all + " [S(0)]", all + " [R]"},
                                {"one worker: R -> all: R", "mesh(1) [R]", all + " [R]"},
                                {"one host: S(0) -> all: R", one_host + " [S(0)]", all + " [R]"},
                                {"pairs: P(sum) -> R", pairs + " [S(0), P(sum)]", pairs + " [S(0), R]"}};
  for (const auto& [name, from, to] : movements) {
    const TensorSpec source = SpecOf(world, DType::kF32, from);
    const TensorSpec destination = SpecOf(world, DType::kF32, to);
    const Plan made = PlanMove(source, destination, NetworkOf(world));
    const Plan direct = PlanDirectly(source, destination, made.hosts);
    if (Any(made, [](const Exchange& e) { return e.is_by_rounds(); }))
      rows.Add("rounds", world, name, {made}, {direct});
    if (Any(made, [](const Exchange& e) { return e.far_takers == FarTakers::kRelays; })) {
      rows.Add("relays", world, name, {made}, {direct});
    }
    if (direct.hosts.several()) {
      rows.Add("host_sums_and_shares", world, name, {direct}, {PlanDirectly(source, destination, WorkerHosts())});
    }
  }
}

OpCall Redistribute(const TensorSpec& destination) {
  OpCall call;
  call.op = OpId::kRedistribute;
  call.attributes.Set(attribute::placements, destination.placements);
  call.attributes.Set(attribute::mesh, destination.mesh);
  return call;
}

Plan PlanCall(const OpCall& call, const TensorSpec& source, const Topology& topology) {
  OperandLayout layout;
  layout.spec = source;
  layout.strides = RowMajorStrides(MaxShardShape(source));
  const std::vector<PlanOperand> operands = {layout};
  absl::StatusOr<OpPlan> planned = PlanOp(call, operands, topology);
  TESSERA_CHECK(planned.ok());
  return std::move(planned->plan);
}

// Converted on the way; and brought as it is, with a cast of what came.
void MeasureConversions(const World& world, Rows& rows) {
  std::vector<std::string> others;
  for (int64_t i = world.workers() / 2; i < world.workers(); ++i) others.push_back(StrCat(i));
  const std::string first = StrCat("mesh(", world.workers() / 2, ")");
  const std::string second = StrCat("mesh(", world.workers() / 2, "; workers=", absl::StrJoin(others, ","), ")");
  const std::string all = MeshOf(world);
  const Movement movements[] = {{"all: S(0) -> R", all + " [S(0)]", all + " [R]"},
                                {"all: P(sum) -> R", all + " [P(sum)]", all + " [R]"},
                                {"all: P(sum) -> S(0)", all + " [P(sum)]", all + " [S(0)]"},
                                {"a half: P(sum) -> other half: R", first + " [P(sum)]", second + " [R]"}};
  const Topology topology = NetworkOf(world);
  for (const auto& [from, to] : {std::pair(DType::kF64, DType::kF32), std::pair(DType::kF32, DType::kF64)}) {
    for (const Movement& movement : movements) {
      const TensorSpec source = SpecOf(world, from, movement.source);
      const TensorSpec moved = SpecOf(world, from, movement.destination);
      OpCall converting = Redistribute(moved);
      converting.attributes.Set(attribute::dtype, to);
      OpCall cast;
      cast.op = OpId::kAsType;
      cast.attributes.Set(attribute::dtype, to);
      rows.Add("converted_on_the_way", world, StrCat(ToText(from), " as ", ToText(to), ", ", movement.name),
               {PlanCall(converting, source, topology)},
               {PlanCall(Redistribute(moved), source, topology), PlanCall(cast, moved, topology)});
    }
  }
}

int Run() {
  Rows rows;
  for (const int64_t hosts : kHostCounts) {
    for (const int64_t workers : kWorkersOfAHost) {
      for (int64_t bytes = kSmallestBytes; bytes <= kLargestBytes; bytes *= kSizeStep) {
        const World world = {hosts, workers, bytes};
        MeasureWays(world, rows);
        MeasureConversions(world, rows);
      }
    }
  }
  std::printf("%s\n", rows.json().dump(1).c_str());
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace tessera::bench

int main() { return tessera::bench::Run(); }
