// Plans that write an output in parts and a temporary again.

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/plan/interpret.h"
#include "server/plan/program.h"
#include "server/plan/verify.h"
#include "server/planner/redistribute.h"
#include "tests/support/plan_in_parts.h"

namespace tessera::testing {
namespace {

void ExpectRefused(const Plan& plan, std::string_view why) {
  const absl::Status status = VerifyPlan(plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << why;
  EXPECT_NE(std::string(status.message()).find(why), std::string::npos) << why << " is not in " << status;
}

TEST(PlanInPartsTest, IsVerifiedAndGivesTheProduct) {
  const Plan plan = PlanInParts();
  EXPECT_EQ(ToText(plan), kPlanInParts);
  const absl::Status status = VerifyPlan(plan);
  ASSERT_TRUE(status.ok()) << status;
  const auto result = Interpret(plan, Operands(plan), {});
  ASSERT_TRUE(result.ok()) << result.status();
  const auto dense = JoinDense(plan.values[2].spec, result->outputs[0]);
  ASSERT_TRUE(dense.ok()) << dense.status();
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 6; ++j) {
      double sum = 0;
      for (int k = 0; k < 4; ++k) sum += ((i * 4 + k) * 5 % 7 - 3) * (((k * 6 + j) * 5 + 1) % 7 - 3);
      EXPECT_EQ((*dense)[static_cast<size_t>(i * 6 + j)], sum) << i << ", " << j;
    }
  }
}

TEST(PlanInPartsTest, WhatWasOverwrittenIsNotRead) {
  Plan plan = PlanInParts();
  std::swap(plan.steps[1], plan.steps[2]);  // both products, then both reductions
  ExpectRefused(plan, "%4 is read after its buffer was written again");
  const auto result = Interpret(plan, Operands(plan), {});
  ASSERT_TRUE(result.ok()) << result.status();
  int unwritten = 0;
  for (const double element : result->outputs[0][1]) unwritten += std::isnan(element) ? 1 : 0;
  EXPECT_GT(unwritten, 0) << "what the second product left of the first is no number";
}

TEST(PlanInPartsTest, AViewDoesNotReachBeyondWhatItsBufferHolds) {
  Plan plan = PlanInParts();
  plan.values.push_back(plan.values[4]);  // another name for the first part's product
  std::get<ExchangeStep>(plan.steps[3]).source = 9;
  ExpectRefused(plan, "%9 reaches beyond %7");
}

TEST(PlanInPartsTest, NoStepReadsTheBufferThatItWrites) {
  Plan plan = PlanInParts();
  plan.values[6].buffer = 3;
  plan.values[6].offset = 0;
  ExpectRefused(plan, "%7 is written over %6, which is read");
}

TEST(PlanInPartsTest, PartsTileTheOutputInOrder) {
  Plan missing = PlanInParts();
  missing.steps.resize(2);
  ExpectRefused(missing, "output %2 is not written");
  Plan again = PlanInParts();
  again.values[8].offset = 2;
  ExpectRefused(again, "the one that follows starts at element 4");
  Plan backwards = PlanInParts();
  std::swap(backwards.steps[0], backwards.steps[2]);
  std::swap(backwards.steps[1], backwards.steps[3]);
  ExpectRefused(backwards, "the one that follows starts at element 0");
  Plan dense = PlanInParts();
  dense.values[5].strides = {4, 1};
  ExpectRefused(dense, "%5 is no part of output %2: other strides");
  Plan whole = PlanInParts();
  whole.steps.push_back(whole.steps[3]);
  whole.values.push_back(whole.values[2]);
  std::get<ExchangeStep>(whole.steps[4]).destination = 9;
  ExpectRefused(whole, "%9 is written twice");
}

TEST(PlanInPartsTest, APartIsNoRangeOfADimThatTheMeshCuts) {
  // One row of each shard, and the other one: no ranges of the rows.
  const auto plan = ParsePlan(R"(plan {
  b0 : output 48 bytes on mesh(2)
  out %0 : f64[4,3] @ mesh(2) [S(0)] in b0
  tmp %1 : f64[2,3] @ mesh(2) [S(0)] in b0
  tmp %2 : f64[2,3] @ mesh(2) [S(0)] in b0 offset 3
  local fill() -> %1 scalars [0]
  local fill() -> %2 scalars [0]
  scalars 1
})");
  ASSERT_TRUE(plan.ok()) << plan.status();
  ExpectRefused(*plan, "it is cut along a dim that the mesh cuts");
}

// Peers read a temporary when it is spread by pulling; then it is reduced again.
Plan ReducedTwice(Delivery second) {
  Plan plan = *PlanRedistribute({*ParseTensorSpec("f32[4,4] @ mesh(2) [P(sum)]"), {}},
                                *ParseTensorSpec("f32[4,4] @ mesh(2) [R]"));
  PlanBuffer buffer = plan.buffers[1];
  buffer.kind = PlanBuffer::Kind::kTemporary;
  plan.buffers.push_back(buffer);
  PlanValue value = plan.values[1];
  value.buffer = 2;
  plan.values.push_back(value);
  plan.values.push_back(value);
  const std::vector<Step> own = std::exchange(plan.steps, {});
  for (int id = 2; id <= 3; ++id) {
    for (Step step : own) {
      auto& exchange = std::get<ExchangeStep>(step);
      if (exchange.exchange.role == ExchangeRole::kSpread) {
        exchange.source = id;
        exchange.delivery = id == 2 ? Delivery::kPull : second;
      }
      exchange.destination = id;
      plan.steps.push_back(step);
    }
  }
  plan.steps.insert(plan.steps.end(), own.begin(), own.end());
  return plan;
}

TEST(PlanInPartsTest, NothingIsPushedWherePeersMayStillRead) {
  const absl::Status pulled = VerifyPlan(ReducedTwice(Delivery::kPull));
  EXPECT_TRUE(pulled.ok()) << pulled;
  ExpectRefused(ReducedTwice(Delivery::kPush), "pushes into memory that peers may still read");
}

TEST(PlanInPartsTest, APhaseThatOverwritesWaitsForTheReaders) {
  const absl::StatusOr<Program> program = LowerPlan(PlanInParts(), WorkerIndex(1), MessageLists::kOmit);
  ASSERT_TRUE(program.ok()) << program.status();
  ASSERT_EQ(program->phases.size(), 4u);
  for (const size_t other : {0, 1, 3}) {
    EXPECT_EQ(program->phases[other].overwrites_phase, 0) << other;
    EXPECT_TRUE(program->phases[other].overwrites_read_by.empty()) << other;
  }
  EXPECT_EQ(program->phases[2].overwrites_phase, 2);
  EXPECT_EQ(program->phases[2].overwrites_read_by, std::vector<WorkerIndex>{WorkerIndex(0)});
  EXPECT_EQ(program->phases[3].peer_phase, 3) << "the part's own product, not the first one's";
  const absl::StatusOr<Program> spread = LowerPlan(ReducedTwice(Delivery::kPull), WorkerIndex(1), MessageLists::kOmit);
  ASSERT_TRUE(spread.ok()) << spread.status();
  EXPECT_EQ(spread->phases[2].overwrites_phase, 2);
  EXPECT_EQ(spread->phases[3].overwrites_phase, 0);
}

}  // namespace
}  // namespace tessera::testing
