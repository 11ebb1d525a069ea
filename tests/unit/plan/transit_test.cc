// Plans in which what is reduced for others passes on: what is allowed is just that, and what workers do for it.

#include "server/plan/lower/transit.h"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "server/plan/lower/program.h"
#include "server/plan/reference/interpret.h"
#include "server/plan/verify.h"

namespace tessera::testing {
namespace {

// A sum of f64 on workers 0 and 1, wanted as f32 on 2 and 3: by rows where its terms are, by columns where it goes.
constexpr std::string_view kTransit = R"(plan {
  b0 : input 64 bytes on mesh(2)
  b1 : transit 16 bytes on mesh(2)
  b2 : output 16 bytes on mesh(2; workers=2,3)
  in  %0 : f64[4,2] @ mesh(2) [P(sum)] in b0
  tmp %1 : f32[4,2] @ mesh(2) [S(0)] in b1
  out %2 : f32[4,2] @ mesh(2; workers=2,3) [S(1)] in b2
  reduce_scatter %0 -> %1 reduce(sum)
    dim 0: [0:2) 0+0 -> 0+0, [2:4) 0+2 -> 1+0
    dim 1: [0:2) 0+0 -> 0+0
  exchange %1 -> %2 move pushed
    dim 0: [0:2) 0+0 -> 0+0, [2:4) 1+0 -> 0+2
    dim 1: [0:1) 0+0 -> 0+0, [1:2) 0+1 -> 1+0
}
)";

Plan Transit() {
  const absl::StatusOr<Plan> plan = ParsePlan(kTransit);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

ExchangeStep& SumOf(Plan& plan) { return std::get<ExchangeStep>(plan.steps[0]); }
ExchangeStep& MoveOf(Plan& plan) { return std::get<ExchangeStep>(plan.steps[1]); }

void ExpectRefused(std::string_view why, const std::function<void(Plan&)>& change) {
  Plan plan = Transit();
  change(plan);
  const absl::Status status = VerifyPlan(plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << why << "\n" << ToText(plan);
  EXPECT_NE(std::string(status.message()).find(why), std::string::npos) << why << " is not in " << status;
}

TEST(PassingPlan, IsVerifiedAndGivesTheSum) {
  const Plan plan = Transit();
  EXPECT_EQ(ToText(plan), kTransit);
  ASSERT_TRUE(VerifyPlan(plan).ok()) << VerifyPlan(plan);
  EXPECT_EQ(PhasesOf(plan), (std::vector<int>{1, 2}));
  EXPECT_EQ(PeakBytes(plan), (std::vector<int64_t>{64, 64, 16, 16}));
  EXPECT_EQ(TrafficOf(plan).received_bytes, (std::vector<int64_t>{32, 32, 16, 16}));
  EXPECT_EQ(StepLines(plan)[1],
            "exchange %1 [S(0)] @ mesh(2) -> %2 [S(1)] @ mesh(2; workers=2,3), stored as it is reduced");
  const auto result = Interpret(plan, {{{1, 2, 3, 4, 5, 6, 7, 8}, {10, 20, 30, 40, 50, 60, 70, 80}}}, {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->outputs[0][1], (std::vector<Number>{22, 44, 66, 88}));
}

TEST(PassingPlan, HasOneReductionAndOneMove) {
  ExpectRefused("is not alone", [](Plan& plan) { plan.values.push_back(plan.values[1]); });
  ExpectRefused("passes on, and stays", [](Plan& plan) { plan.outputs.push_back(1); });
  ExpectRefused("1 steps have it", [](Plan& plan) { plan.steps.pop_back(); });
  ExpectRefused("3 steps have it", [](Plan& plan) { plan.steps.push_back(plan.steps[1]); });
  ExpectRefused("not in the next phase", [](Plan& plan) {
    plan.steps.insert(plan.steps.begin() + 1, LocalStep{});
    std::get<LocalStep>(plan.steps[1]).output = 2;
  });
  ExpectRefused("is not reduced, each element at one worker",
                [](Plan& plan) { SumOf(plan).exchange.role = ExchangeRole::kMove; });
  ExpectRefused("no pushed move brings it on as it is",
                [](Plan& plan) { MoveOf(plan).exchange.delivery = Delivery::kPull; });
  ExpectRefused("not to an output", [](Plan& plan) { plan.buffers[2].kind = PlanBuffer::Kind::kTemporary; });
}

// Worker 0 adds up rows 0 and 1: one column for each of the others. Nothing of it is in an arena.
TEST(PassingPlan, IsStoredAsItIsReduced) {
  const absl::StatusOr<Program> program = LowerPlan(Transit(), WorkerIndex(0), MessageLists::kBuild);
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(program->transit, (std::vector<TransitBuffer>{{1, 16}}));
  const Phase& sum = program->phases[0];
  ASSERT_EQ(sum.instructions.size(), 2u);
  for (int column = 0; column < 2; ++column) {
    const auto& reduce = std::get<ReduceInstruction>(sum.instructions[static_cast<size_t>(column)]);
    EXPECT_EQ(reduce.extents, (Shape{2, 1}));
    EXPECT_EQ(reduce.terms.size(), 2u);
    EXPECT_EQ(reduce.destination, (Operand{WorkerIndex(0), 1, column * 4, {2, 1}}));
    ASSERT_EQ(reduce.pushes.size(), 1u);
    EXPECT_EQ(reduce.pushes[0], (Operand{WorkerIndex(2 + column), 2, 0, {1, 1}}));
  }
  EXPECT_EQ(sum.peers.pushes_to, (std::vector<WorkerIndex>{WorkerIndex(2), WorkerIndex(3)}));
  const Phase& there = program->phases[1];
  EXPECT_TRUE(there.instructions.empty());
  ASSERT_EQ(there.messages.outgoing.size(), 2u);  // where they don't map each other
  EXPECT_EQ(there.messages.outgoing[0].parts[0].sources[0], (Operand{WorkerIndex(0), 1, 0, {2, 1}}));
}

// Messages are cut where their elements go on, at both ends.
TEST(PassingPlan, MessagesOfTermsAreCutAlike) {
  const absl::StatusOr<Program> giver = LowerPlan(Transit(), WorkerIndex(1), MessageLists::kBuild);
  const absl::StatusOr<Program> reducer = LowerPlan(Transit(), WorkerIndex(0), MessageLists::kBuild);
  ASSERT_TRUE(giver.ok() && reducer.ok());
  ASSERT_EQ(giver->phases[0].messages.outgoing.size(), 1u);
  ASSERT_EQ(reducer->phases[0].messages.incoming.size(), 1u);
  EXPECT_EQ(giver->phases[0].messages.outgoing[0].parts.size(), 2u);
  EXPECT_EQ(giver->phases[0].messages.outgoing[0].chunks, reducer->phases[0].messages.incoming[0].chunks);
  EXPECT_EQ(reducer->phases[0].messages.pieces.size(), 2u);
}

TEST(PassingPlan, ReceiversHaveIt) {
  const absl::StatusOr<Program> program = LowerPlan(Transit(), WorkerIndex(3), MessageLists::kBuild);
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(program->phases[0].peers.pushed_by, (std::vector<WorkerIndex>{WorkerIndex(0), WorkerIndex(1)}));
  EXPECT_EQ(program->phases[1].peers.reads_from, (std::vector<WorkerIndex>{WorkerIndex(0), WorkerIndex(1)}));
  EXPECT_EQ(program->phases[1].peers.phase, 1);
}

}  // namespace
}  // namespace tessera::testing
