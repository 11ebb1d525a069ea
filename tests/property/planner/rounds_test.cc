// Sums and gathers by rounds: the answer, the bytes and the laws of the direct way, and fewer messages.

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "server/plan/verify.h"
#include "server/planner/builder.h"
#include "server/planner/rounds.h"
#include "tests/property/planner/crossing.h"
#include "tests/property/planner/host_worlds.h"
#include "tests/property/planner/plan_checks.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

std::vector<int32_t> OwnHosts(int64_t count) {
  std::vector<int32_t> hosts(static_cast<size_t>(count));
  std::iota(hosts.begin(), hosts.end(), 0);
  return hosts;
}

std::vector<int> PrimeFactors(int64_t number) {
  std::vector<int> factors;
  for (int factor = 2; number > 1; ++factor) {
    for (; number % factor == 0; number /= factor) factors.push_back(factor);
  }
  return factors;
}

// The plan with its move or sum by rounds, whatever that takes; none when it can't go by rounds.
std::optional<Plan> PlanByRounds(const TensorSpec& source, const TensorSpec& destination,
                                 const std::vector<int32_t>& hosts) {
  PlanBuilder builder;
  const int input = builder.AddInput({source, {}});
  const absl::StatusOr<int> output = builder.AddRedistribute(input, destination);
  if (!output.ok() || builder.plan().steps.empty()) return std::nullopt;
  builder.AddOutput(*output);
  Plan plan = builder.plan();  // nothing is chosen yet
  plan.hosts = std::move(builder).Finish(TopologyOf(hosts)).hosts;
  ExchangeStep first = std::get<ExchangeStep>(plan.steps[0]);
  first.exchange.hosts = HostsAmong(plan.hosts, source.mesh, destination.mesh);
  if (first.exchange.reduces() && plan.steps.size() == 1) return std::nullopt;
  std::vector<ExchangeStep> rounds = ByRounds(first, PrimeFactors(CountHostsOfGroup(first.exchange)));
  if (rounds.empty()) return std::nullopt;
  plan.steps.assign(rounds.begin(), rounds.end());
  return plan;
}

struct World : HostWorld {
  int64_t messages = 0;  // to each worker, in a sum over the whole mesh
};

class RoundWorlds : public testing::TestWithParam<World> {
 protected:
  int32_t HostOf(WorkerIndex worker) const { return GetParam().hosts[static_cast<size_t>(worker.value)]; }

  void Check(const TensorSpec& source, const TensorSpec& destination, double tolerance) {
    const std::optional<Plan> plan = PlanByRounds(source, destination, GetParam().hosts);
    if (!plan.has_value()) return;
    ++checked_;
    const absl::Status checked = CheckPlan(*plan, source, destination, tolerance);
    ASSERT_TRUE(checked.ok()) << checked;
    CheckCrossing(*plan, source, destination);
    const int64_t most_bytes = (MaxShardElements(source) + MaxShardElements(destination)) * SizeBytes(source.dtype);
    for (const int64_t peak_bytes : PeakBytes(*plan)) EXPECT_LE(peak_bytes, most_bytes) << ToText(*plan);
  }

  void CheckCrossing(const Plan& plan, const TensorSpec& source, const TensorSpec& destination) {
    int64_t crossing = 0;
    for (const Step& step : plan.steps) {
      const Exchange& exchange = std::get<ExchangeStep>(step).exchange;
      const Pieces walk(exchange);
      for (const WorkerIndex self : exchange.destination.mesh.workers()) {
        walk.VisitReceived(self, [&](WorkerIndex from, int64_t elements) {
          const bool crosses = HostOf(from) != HostOf(self);
          EXPECT_FALSE(crosses && exchange.role == ExchangeRole::kHostGather) << ToText(plan);
          crossing += crosses ? elements : 0;
        });
      }
    }
    const Crossing least = CountLeastCrossing(source, destination, GetParam().hosts);
    EXPECT_EQ(crossing, least.moves + least.sums + least.spreads) << ToText(plan);
  }

  int checked_ = 0;
};

TEST_P(RoundWorlds, AreRightAndTakeTheFewestBytes) {
  const Mesh mesh = MakeMesh(GetParam().mesh);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {1}, {17}, {5, 4}, {3, 0}}) {
    const int rank = static_cast<int>(shape.size());
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin}) {
      if (op != ReduceOp::kSum && rank != 2) continue;
      for (const Placements& from : AllPlacements(mesh.ndim(), rank, {op})) {
        for (const Placements& to : AllPlacements(mesh.ndim(), rank, {op})) {
          const TensorSpec source = MakeSpec(DType::kF64, shape, mesh, from);
          const TensorSpec destination = MakeSpec(DType::kF64, shape, mesh, to);
          if (!ValidateRedistribute(source, destination).ok()) continue;
          ASSERT_NO_FATAL_FAILURE(Check(source, destination, op == ReduceOp::kAvg ? 1e-12 : 0));
        }
      }
    }
  }
  EXPECT_EQ(checked_ > 2, GetParam().messages > 0);
}

// Messages from other hosts that the busiest worker gets.
int64_t CountMessages(const Plan& plan, const std::vector<int32_t>& hosts) {
  std::map<WorkerIndex, int64_t> messages;
  const auto host_of = [&hosts](WorkerIndex worker) { return hosts[static_cast<size_t>(worker.value)]; };
  for (const Step& step : plan.steps) {
    const Exchange& exchange = std::get<ExchangeStep>(step).exchange;
    const Pieces walk(exchange);
    for (const WorkerIndex self : exchange.destination.mesh.workers()) {
      std::set<WorkerIndex> senders;
      walk.VisitReceived(self, [&](WorkerIndex from, int64_t) {
        if (host_of(from) != host_of(self)) senders.insert(from);
      });
      messages[self] += static_cast<int64_t>(senders.size());
    }
  }
  int64_t most = 0;
  for (const auto& [worker, count] : messages) most = std::max(most, count);
  return most;
}

TEST_P(RoundWorlds, TakeFewMessages) {
  const Mesh mesh = MakeMesh(GetParam().mesh);
  const size_t dims = static_cast<size_t>(mesh.ndim());
  const TensorSpec pending = MakeSpec(DType::kF64, {96}, mesh, Placements(dims, Placement::Partial(ReduceOp::kSum)));
  const TensorSpec whole = MakeSpec(DType::kF64, {96}, mesh, Placements(dims, Placement::Replicate()));
  const std::optional<Plan> plan = PlanByRounds(pending, whole, GetParam().hosts);
  if (GetParam().messages == 0) {
    EXPECT_FALSE(plan.has_value());
    return;
  }
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(CountMessages(*plan, GetParam().hosts), GetParam().messages) << ToText(*plan);
  // All send as much.
  const PlanTraffic traffic = TrafficOf(*plan);
  const auto [least, most] = std::minmax_element(traffic.sent_bytes.begin(), traffic.sent_bytes.end());
  EXPECT_EQ(*least, *most) << ToText(*plan);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, RoundWorlds,
    testing::Values(World{{{4}, {0, 1, 2, 3}}, 2 * 2}, World{{{8}, {0, 1, 2, 3, 4, 5, 6, 7}}, 2 * 3},
                    World{{{6}, {5, 3, 4, 2, 1, 0}}, 2 * 3}, World{{{2, 3}, {0, 1, 2, 3, 4, 5}}, 2 * 3},
                    World{{{8}, {0, 0, 1, 1, 2, 2, 3, 3}}, 2 * 2}, World{{{8}, {0, 1, 2, 3, 0, 1, 2, 3}}, 2 * 2},
                    World{{{4, 2}, {0, 0, 1, 1, 2, 2, 3, 3}}, 2 * 2}, World{{{2, 4}, {0, 0, 0, 0, 1, 2, 3, 4}}, 0},
                    World{{{2, 4}, {0, 1, 2, 3, 3, 2, 1, 0}}, 2 * 2}));

// Not by rounds: a prime number of hosts, hosts with more workers than others, replicas, what is kept in parts.
TEST(Rounds, AreRefusedWhereTheyDoNotFit) {
  const auto fit = [](const std::string& source, const std::string& destination, const std::vector<int32_t>& hosts) {
    return PlanByRounds(*ParseTensorSpec(source), *ParseTensorSpec(destination), hosts).has_value();
  };
  EXPECT_TRUE(fit("f32[64] @ mesh(8) [P(sum)]", "f32[64] @ mesh(8) [R]", OwnHosts(8)));
  EXPECT_FALSE(fit("f32[64] @ mesh(7) [P(sum)]", "f32[64] @ mesh(7) [R]", OwnHosts(7)));
  EXPECT_FALSE(fit("f32[64] @ mesh(8) [P(sum)]", "f32[64] @ mesh(8) [R]", {0, 0, 0, 1, 2, 2, 3, 3}));
  EXPECT_FALSE(fit("f32[64] @ mesh(8) [P(sum)]", "f32[64] @ mesh(8) [S(0)]", OwnHosts(8)));
  EXPECT_FALSE(fit("f32[64] @ mesh(2,4) [R, P(sum)]", "f32[64] @ mesh(2,4) [R, R]", OwnHosts(8)));
  EXPECT_FALSE(fit("f32[64] @ mesh(2,4) [S(0), P(sum)]", "f32[64] @ mesh(2,4) [R, R]", OwnHosts(8)));
  EXPECT_TRUE(fit("f32[64] @ mesh(2,4) [S(0), P(sum)]", "f32[64] @ mesh(2,4) [S(0), R]", OwnHosts(8)));
  EXPECT_FALSE(fit("f32[64] @ mesh(8) [R]", "f32[64] @ mesh(8) [S(0)]", OwnHosts(8)));
  EXPECT_FALSE(fit("f32[64] @ mesh(4) [S(0)]", "f32[64] @ mesh(8) [R]", OwnHosts(8)));
}

bool IsByRounds(const Plan& plan) { return std::get<ExchangeStep>(plan.steps[0]).exchange.is_by_rounds(); }

TEST(Rounds, AreChosenWhereTheyAreFaster) {
  EXPECT_TRUE(IsByRounds(PlanOf("f32[64] @ mesh(16) [P(sum)]", "f32[64] @ mesh(16) [R]", OwnHosts(16))));
  EXPECT_TRUE(IsByRounds(PlanOf("f32[64] @ mesh(16) [S(0)]", "f32[64] @ mesh(16) [R]", OwnHosts(16))));
  // Each round takes a wait: as few as pay.
  const Plan many = PlanOf("f32[96] @ mesh(96) [P(sum)]", "f32[96] @ mesh(96) [R]", OwnHosts(96));
  EXPECT_EQ(std::get<ExchangeStep>(many.steps[0]).exchange.rounds.factors, (std::vector<int>{4, 4, 6})) << ToText(many);
  EXPECT_FALSE(IsByRounds(PlanOf("f32[97] @ mesh(97) [P(sum)]", "f32[97] @ mesh(97) [R]", OwnHosts(97))));
  // Few hosts, or much to send: as many bytes in fewer phases.
  EXPECT_FALSE(IsByRounds(PlanOf("f32[64] @ mesh(8) [P(sum)]", "f32[64] @ mesh(8) [R]", OwnHosts(8))));
  EXPECT_FALSE(IsByRounds(PlanOf("f32[16777216] @ mesh(16) [P(sum)]", "f32[16777216] @ mesh(16) [R]", OwnHosts(16))));
  EXPECT_FALSE(IsByRounds(PlanOf("f32[16777216] @ mesh(16) [S(0)]", "f32[16777216] @ mesh(16) [R]", OwnHosts(16))));
  // On one host there are no messages.
  EXPECT_FALSE(IsByRounds(PlanOf("f32[64] @ mesh(16) [P(sum)]", "f32[64] @ mesh(16) [R]", {})));
}

// Sums and gathers of one plan share their rounds, also where there are more rounds of one than of the other.
TEST(Rounds, OfSeveralTensorsShareTheirPhases) {
  PlanBuilder builder;
  const TensorSpec pending = *ParseTensorSpec("f64[128] @ mesh(64) [P(avg)]");
  const TensorSpec rows = *ParseTensorSpec("f64[100] @ mesh(64) [S(0)]");
  const TensorSpec whole_sum = *ParseTensorSpec("f64[128] @ mesh(64) [R]");
  const TensorSpec whole_rows = *ParseTensorSpec("f64[100] @ mesh(64) [R]");
  const int first = builder.AddInput({pending, {}}), second = builder.AddInput({rows, {}});
  const absl::StatusOr<std::vector<int>> outputs = builder.AddRedistributes({{first, whole_sum}, {second, whole_rows}});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  for (const int output : *outputs) builder.AddOutput(output);
  const Plan plan = std::move(builder).Finish(TopologyOf(OwnHosts(64)));
  EXPECT_TRUE(IsByRounds(plan)) << ToText(plan);
  EXPECT_EQ(PhasesOf(plan).back(), 3 + 3) << ToText(plan);
  EXPECT_EQ(CountMessages(plan, OwnHosts(64)), 9 + 9 + 9) << ToText(plan);
  const std::vector<std::vector<double>> inputs = {Numbers(pending), Numbers(rows, 3)};
  const auto results = RunPlanOutputs(plan, inputs, {});
  ASSERT_TRUE(results.ok()) << results.status();
  EXPECT_TRUE(Agree((*results)[0], inputs[0], 1e-12));
  EXPECT_EQ((*results)[1], inputs[1]);
  const absl::Status programs = CheckPrograms(plan, inputs);
  EXPECT_TRUE(programs.ok()) << programs;
}

TEST(Rounds, AreVerified) {
  const Plan right = *PlanByRounds(*ParseTensorSpec("f64[6] @ mesh(6) [P(sum)]"),
                                   *ParseTensorSpec("f64[6] @ mesh(6) [R]"), OwnHosts(6));
  ASSERT_EQ(right.steps.size(), 4U) << ToText(right);
  ASSERT_TRUE(VerifyPlan(right).ok());
  const auto rounds_of = [](Plan& plan, size_t step) -> Exchange& {
    return std::get<ExchangeStep>(plan.steps[step]).exchange;
  };
  for (size_t missing = 0; missing < right.steps.size(); ++missing) {
    Plan plan = right;
    plan.steps.erase(plan.steps.begin() + static_cast<ptrdiff_t>(missing));
    EXPECT_FALSE(VerifyPlan(plan).ok()) << ToText(plan);
  }
  for (const std::vector<int>& factors :
       std::vector<std::vector<int>>{{3, 2}, {2, 2}, {6, 1}, {1 << 20, 1 << 20}, {0}}) {
    Plan plan = right;
    rounds_of(plan, 0).rounds.factors = factors;
    EXPECT_FALSE(VerifyPlan(plan).ok()) << ToText(plan);
  }
  for (const int digit : {-1, 1, 2}) {
    Plan plan = right;
    rounds_of(plan, 0).rounds.digit = digit;
    EXPECT_FALSE(VerifyPlan(plan).ok()) << ToText(plan);
  }
  Plan swapped = right;
  std::swap(rounds_of(swapped, 2).rounds.digit, rounds_of(swapped, 3).rounds.digit);
  EXPECT_FALSE(VerifyPlan(swapped).ok()) << ToText(swapped);
  Plan pushed = right;
  std::get<ExchangeStep>(pushed.steps[2]).exchange.delivery = Delivery::kPush;
  EXPECT_FALSE(VerifyPlan(pushed).ok()) << ToText(pushed);
}

}  // namespace
}  // namespace tessera
