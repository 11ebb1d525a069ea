#include "server/planner/small_sums.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "server/plan/movement/exchange.h"
#include "server/plan/verify.h"
#include "server/planner/builder.h"
#include "tests/property/planner/small_worlds.h"
#include "tests/support/plan_redistribute.h"
#include "tests/support/two_phases.h"

namespace tessera {
namespace {

constexpr int64_t kMost = Topology().max_reduced_by_each_bytes;

Plan PlanOf(const std::string& source, const std::string& destination, const Topology& topology = {}) {
  absl::StatusOr<Plan> plan = PlanRedistribute({*ParseTensorSpec(source), {}}, *ParseTensorSpec(destination), topology);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

int CountReducedByEach(const Plan& plan) {
  int count = 0;
  for (const Step& step : plan.steps) {
    count += std::get<ExchangeStep>(step).exchange.role == ExchangeRole::kReduceEach ? 1 : 0;
  }
  return count;
}

// On every pair of placements: in one phase what needs two in halves, where two terms go to those who hold them; with
// the bytes of the bound, given as evenly, and the same sums in the same order.
TEST(ReduceOnEach, IsAsTheHalvesButForThePhases) {
  int reduced = 0;
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{2}, {2, 2}, {3, 2}, {2, 2, 2}, {1, 2}}) {
    const Mesh mesh = MakeMesh(shape);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
      for (const Placements& from : AllPlacements(mesh.ndim(), 1, {op})) {
        for (const Placements& to : AllPlacements(mesh.ndim(), 1, {op})) {
          const TensorSpec source = MakeSpec(DType::kF64, {24}, mesh, from);
          const TensorSpec destination = MakeSpec(DType::kF64, {24}, mesh, to);
          if (!ValidateRedistribute(source, destination).ok()) continue;
          const Plan each = PlanOf(ToText(source), ToText(destination));
          const Plan halves = PlanOf(ToText(source), ToText(destination), InTwoPhases());
          if (CountReducedByEach(each) == 0) continue;
          ++reduced;
          const std::string text = StrCat(ToText(source), " -> ", ToText(to));
          EXPECT_EQ(CountReducedByEach(each), 1) << text;
          EXPECT_EQ(PhasesOf(each).back(), 1) << text;
          EXPECT_EQ(PhasesOf(halves).back(), 2) << text;
          EXPECT_EQ(TrafficOf(each).received_bytes, TrafficOf(halves).received_bytes) << text;
          EXPECT_EQ(TrafficOf(each).sent_bytes, TrafficOf(halves).sent_bytes) << text;
          const std::vector<double> dense = Numbers(source);
          EXPECT_TRUE(CheckPrograms(each, {dense}).ok()) << CheckPrograms(each, {dense}) << text;
        }
      }
    }
  }
  EXPECT_GE(reduced, 40);
}

TEST(ReduceOnEach, TakesWhatIsSmallAndWhatEachHoldsATermOf) {
  const int64_t most = kMost / 8;  // f64s
  const std::pair<std::pair<std::string, std::string>, int> cases[] = {
      {{StrCat("f64[", most, "] @ mesh(2) [P(sum)]"), StrCat("f64[", most, "] @ mesh(2) [R]")}, 1},
      {{StrCat("f64[", most + 1, "] @ mesh(2) [P(sum)]"), StrCat("f64[", most + 1, "] @ mesh(2) [R]")}, 0},
      {{StrCat("f64[", 2 * most, "] @ mesh(2,2) [P(sum), S(0)]"), StrCat("f64[", 2 * most, "] @ mesh(2,2) [R, S(0)]")},
       1},
      {{"f64[8] @ mesh(2) [P(sum)]", "f64[8] @ mesh(2; workers=1,0) [R]"}, 0},
      {{"f64[8] @ mesh(2) [P(sum)]", "f64[8] @ mesh(2; workers=2,3) [R]"}, 0},
      {{"f64[8] @ mesh(3) [P(sum)]", "f64[8] @ mesh(3) [R]"}, 0},
      {{"f64[8] @ mesh(2,2) [P(sum), P(sum)]", "f64[8] @ mesh(2,2) [R, R]"}, 0},
      {{"f64[8] @ mesh(2,2) [P(sum), P(sum)]", "f64[8] @ mesh(2,2) [R, P(sum)]"}, 1},
      {{"f64[8] @ mesh(2,2) [P(sum), S(0)]", "f64[8] @ mesh(2,2) [R, R]"}, 0},
      {{"f64[8] @ mesh(2,2) [P(sum), R]", "f64[8] @ mesh(2,2) [R, R]"}, 1},
  };
  for (const auto& [specs, expected] : cases) {
    EXPECT_EQ(CountReducedByEach(PlanOf(specs.first, specs.second)), expected) << specs.first << " -> " << specs.second;
  }
}

TEST(ReduceOnEach, IsForOneHostOrOneWorkerOnEach) {
  Topology topology;
  topology.host_of_worker = {0, 1, 0, 1};
  EXPECT_EQ(CountReducedByEach(PlanOf("f64[8] @ mesh(2) [P(sum)]", "f64[8] @ mesh(2) [R]", topology)), 1);
  const Plan shared = PlanOf("f64[8] @ mesh(2,2) [P(sum), S(0)]", "f64[8] @ mesh(2,2) [R, S(0)]", topology);
  EXPECT_EQ(CountReducedByEach(shared), 0);
}

// All that is spread in a phase, or nothing of it.
TEST(ReduceOnEach, SavesAPhaseOfSeveralTensorsOrLeavesThem) {
  const auto together = [](const std::vector<std::pair<std::string, std::string>>& moves) {
    PlanBuilder builder;
    std::vector<ValueMove> values;
    for (const auto& [from, to] : moves) {
      values.push_back({builder.AddInput({*ParseTensorSpec(from), {}}), *ParseTensorSpec(to)});
    }
    const auto moved = builder.AddRedistributes(values);
    EXPECT_TRUE(moved.ok()) << moved.status();
    for (const int value : *moved) builder.AddOutput(value);
    return std::move(builder).Finish();
  };
  const std::pair<std::string, std::string> sum = {"f64[8] @ mesh(2) [P(sum)]", "f64[8] @ mesh(2) [R]"};
  const std::pair<std::string, std::string> move = {"f64[8] @ mesh(2) [S(0)]", "f64[8] @ mesh(2) [R]"};
  const std::pair<std::string, std::string> scatter = {"f64[8] @ mesh(2) [P(sum)]", "f64[8] @ mesh(2) [S(0)]"};
  const std::string half = StrCat("f64[", kMost / 16, "] @ mesh(2) ");
  const std::pair<std::string, std::string> large = {half + "[P(sum)]", half + "[R]"};
  const Plan all = together({sum, move, scatter, sum});
  EXPECT_EQ(CountReducedByEach(all), 2);
  EXPECT_EQ(PhasesOf(all).back(), 1);
  EXPECT_EQ(CountReducedByEach(together({large, large})), 2);
  const Plan too_much = together({large, large, sum});
  EXPECT_EQ(CountReducedByEach(too_much), 0);
  EXPECT_EQ(PhasesOf(too_much).back(), 2);
}

}  // namespace
}  // namespace tessera
