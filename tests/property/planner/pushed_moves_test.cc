// Moves that holders store to all who want them: the answer, the bytes and the evenness of those that are taken.

#include "server/planner/pushed_moves.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/bounds.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "server/plan/movement/exchange.h"
#include "tests/property/planner/plan_checks.h"
#include "tests/property/planner/small_worlds.h"
#include "tests/support/plan_redistribute.h"
#include "tests/support/two_phases.h"

namespace tessera {
namespace {

Plan PlanOf(const TensorSpec& source, const TensorSpec& destination, const Topology& topology = {}) {
  absl::StatusOr<Plan> plan = PlanRedistribute({source, {}}, destination, topology);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

int CountPushedMoves(const Plan& plan) {
  return static_cast<int>(std::count_if(plan.steps.begin(), plan.steps.end(), [](const Step& step) {
    return std::get<ExchangeStep>(step).exchange.is_pushed_move();
  }));
}

int64_t BusiestSender(const Plan& plan) {
  const std::vector<int64_t> sent = TrafficOf(plan).sent_bytes;
  return *std::max_element(sent.begin(), sent.end());
}

class PushedMoves : public testing::TestWithParam<std::vector<int64_t>> {};

// Checks every pair of placements.
TEST_P(PushedMoves, AreAsThoseThatAreTaken) {
  const Mesh mesh = MakeMesh(GetParam());
  int pushed = 0;
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{24}, {8, 6}, {7, 5}}) {
    for (const auto& [source, destination] : AllRedistributions(mesh, shape)) {
      const Plan plan = PlanOf(source, destination, InTwoPhases());
      if (CountPushedMoves(plan) == 0) continue;
      ++pushed;
      const absl::Status checked = CheckPlan(plan, source, destination);
      ASSERT_TRUE(checked.ok()) << checked;
      const Plan taken = PlanOf(source, destination);
      EXPECT_EQ(CountPushedMoves(taken), 0);
      EXPECT_EQ(TrafficOf(plan).received_bytes, TrafficOf(taken).received_bytes) << ToText(plan);
      EXPECT_LE(10 * BusiestSender(plan), 11 * BusiestSender(taken)) << ToText(plan);
      EXPECT_EQ(PhasesOf(plan).back(), 2) << ToText(plan);
    }
  }
  EXPECT_GE(pushed, GetParam().size() == 1 ? 2 : 12);
}

INSTANTIATE_TEST_SUITE_P(Meshes, PushedMoves,
                         testing::Values(std::vector<int64_t>{2}, std::vector<int64_t>{4}, std::vector<int64_t>{2, 2},
                                         std::vector<int64_t>{3, 2}, std::vector<int64_t>{2, 2, 2}));

bool IsPushed(const std::string& source, const std::string& destination, const Topology& topology = InTwoPhases()) {
  return CountPushedMoves(PlanOf(*ParseTensorSpec(source), *ParseTensorSpec(destination), topology)) > 0;
}

TEST(PushMoves, TakesWhatEachHoldsAsMuchOf) {
  EXPECT_TRUE(IsPushed("f32[8] @ mesh(4) [S(0)]", "f32[8] @ mesh(4) [R]"));
  EXPECT_TRUE(IsPushed("f32[4,8] @ mesh(2,2) [S(0), S(1)]", "f32[4,8] @ mesh(2,2) [R, S(1)]"));
  EXPECT_TRUE(IsPushed("f32[8] @ mesh(4) [S(0)]", "f32[8] @ mesh(4; workers=3,2,1,0) [R]"));
  // One alone would store everything, or more than the others.
  EXPECT_FALSE(IsPushed("f32[8] @ mesh(1) [R]", "f32[8] @ mesh(4) [R]"));
  EXPECT_FALSE(IsPushed("f32[3] @ mesh(4) [S(0)]", "f32[3] @ mesh(4) [R]"));
  EXPECT_TRUE(IsPushed("f32[8] @ mesh(2; workers=0,1) [S(0)]", "f32[8] @ mesh(2; workers=2,3) [R]"));
  // Nobody wants the same, or what others have.
  EXPECT_FALSE(IsPushed("f32[8,8] @ mesh(4) [S(0)]", "f32[8,8] @ mesh(4) [S(1)]"));
  EXPECT_FALSE(IsPushed("f32[8,8] @ mesh(4) [R]", "f32[8,8] @ mesh(4) [S(1)]"));
}

TEST(PushMoves, TakesWhatIsLargeAndOnOneHost) {
  const int64_t least = Topology().min_pushed_bytes / 4;  // f32s
  const auto gather = [](int64_t elements, const Topology& topology) {
    return IsPushed(StrCat("f32[", elements, "] @ mesh(4) [S(0)]"), StrCat("f32[", elements, "] @ mesh(4) [R]"),
                    topology);
  };
  EXPECT_TRUE(gather(least, {}));
  EXPECT_FALSE(gather(least - 4, {}));
  Topology two_hosts = InTwoPhases();
  two_hosts.host_of_worker = {0, 0, 1, 1};
  EXPECT_FALSE(gather(least, two_hosts));
  Topology own_hosts = InTwoPhases();
  own_hosts.host_of_worker = {0, 1, 2, 3};
  EXPECT_FALSE(gather(least, own_hosts));
  EXPECT_FALSE(IsPushed(StrCat("u8[", 2 * kMaxPushedPositions, "] @ mesh(", 2 * kMaxPushedPositions, ") [S(0)]"),
                        StrCat("u8[", 2 * kMaxPushedPositions, "] @ mesh(", 2 * kMaxPushedPositions, ") [R]")));
}

// Converted by who holds it: the narrow bytes move, and nothing has them but the output.
TEST(PushMoves, TakesWhatBecomesNarrower) {
  const std::pair<const char*, const char*> moves[] = {
      {"f64[8,6] @ mesh(4) [S(0)]", "f32[8,6] @ mesh(4) [R]"},
      {"f64[8,6] @ mesh(4) [S(0)]", "f32[8,6] @ mesh(4) [S(1)]"},
      {"f64[7,6] @ mesh(2,2) [S(0), R]", "f32[7,6] @ mesh(2,2) [S(1), S(0)]"},
      {"f64[8,6] @ mesh(1) [R]", "f32[8,6] @ mesh(3) [R]"},
      {"f64[8,6] @ mesh(2; workers=0,1) [S(0)]", "f32[8,6] @ mesh(3; workers=1,2,3) [S(1)]"},
      {"f64[] @ mesh(1; workers=2) [R]", "f32[] @ mesh(2) [R]"}};
  Topology pairs, own_hosts;
  pairs.host_of_worker = {0, 0, 1, 1};
  own_hosts.host_of_worker = {0, 1, 2, 3};
  for (const auto& [from, to] : moves) {
    const TensorSpec source = *ParseTensorSpec(from), destination = *ParseTensorSpec(to);
    for (const Topology& topology : {Topology(), pairs, own_hosts}) {
      const Plan plan = PlanOf(source, destination, topology);
      EXPECT_EQ(CountPushedMoves(plan), 1) << ToText(plan);
      EXPECT_EQ(plan.buffers.size(), 2u) << ToText(plan);
      const RedistributeBound bound = *BoundRedistribute(WithDType(source, DType::kF32), destination);
      const std::vector<int64_t> received = TrafficOf(plan).received_bytes;
      EXPECT_EQ(std::accumulate(received.begin(), received.end(), int64_t{0}), bound.total_bytes) << ToText(plan);
      const std::vector<double> dense = Numbers(source);
      EXPECT_EQ(*RunPlan(plan, {dense}, {}), dense) << ToText(plan);
      EXPECT_EQ(ParsePlan(ToText(plan)).value(), plan);
    }
  }
  EXPECT_FALSE(IsPushed("f32[8] @ mesh(4) [S(0)]", "f64[8] @ mesh(4) [R]"));
  EXPECT_FALSE(IsPushed("f64[8] @ mesh(4) [R]", "f32[8] @ mesh(4) [S(0)]"));
}

// In a list moves and reductions share one phase, and both are spread in the next.
TEST(PushMoves, ShareThePhasesOfSums) {
  PlanBuilder builder;
  std::vector<ValueMove> moves;
  std::vector<std::vector<double>> values;
  for (const char* from : {"[P(sum)]", "[S(0)]", "[R]"}) {
    const TensorSpec source = *ParseTensorSpec(StrCat("f64[12,3] @ mesh(3) ", from));
    values.push_back(Numbers(source, static_cast<int64_t>(moves.size())));
    const char* const to = moves.size() < 2 ? "f64[12,3] @ mesh(3) [R]" : "f64[12,3] @ mesh(3) [S(1)]";
    moves.push_back({builder.AddInput({source, {}}), *ParseTensorSpec(to)});
  }
  const absl::StatusOr<std::vector<int>> outputs = builder.AddRedistributes(moves);
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  for (const int output : *outputs) builder.AddOutput(output);
  const Plan plan = std::move(builder).Finish(InTwoPhases());
  EXPECT_EQ(CountPushedMoves(plan), 1) << ToText(plan);
  EXPECT_EQ(PhasesOf(plan).back(), 2) << ToText(plan);
  const absl::Status programs = CheckPrograms(plan, values);
  EXPECT_TRUE(programs.ok()) << programs;
}

}  // namespace
}  // namespace tessera
