// Plans that write an output in parts and a temporary again.

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/plan/cost.h"
#include "server/plan/lower/program.h"
#include "server/plan/reference/interpret.h"
#include "server/plan/verify.h"
#include "tests/support/plan_in_parts.h"
#include "tests/support/plan_redistribute.h"
#include "tests/support/two_phases.h"

namespace tessera::testing {
namespace {

void ExpectRefused(const Plan& plan, std::string_view why) {
  const absl::Status status = VerifyPlan(plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << why;
  EXPECT_NE(std::string(status.message()).find(why), std::string::npos) << why << " is not in " << status;
}

// The product of operands of 4 rows and columns, and of 4 rows.
void ExpectProduct(const Plan& plan) {
  const absl::Status status = VerifyPlan(plan);
  ASSERT_TRUE(status.ok()) << status;
  const auto result = Interpret(plan, Operands(plan), {});
  ASSERT_TRUE(result.ok()) << result.status();
  const auto dense = JoinDense(plan.values[2].spec, result->outputs[0]);
  ASSERT_TRUE(dense.ok()) << dense.status();
  const int columns = static_cast<int>(plan.values[2].spec.shape[1]);
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < columns; ++j) {
      double sum = 0;
      for (int k = 0; k < 4; ++k) sum += ((i * 4 + k) * 5 % 7 - 3) * (((k * columns + j) * 5 + 1) % 7 - 3);
      EXPECT_EQ((*dense)[static_cast<size_t>(i * columns + j)], sum) << i << ", " << j;
    }
  }
}

TEST(PlanInPartsTest, IsVerifiedAndGivesTheProduct) {
  EXPECT_EQ(ToText(PlanInParts()), kPlanInParts);
  EXPECT_EQ(ToText(PlanOfCutColumns()), kPlanOfCutColumns);
  EXPECT_EQ(ToText(PlanOfCutRows()), kPlanOfCutRows);
  for (const Plan& plan : {PlanInParts(), PlanOfCutColumns(), PlanOfCutRows(), PlanOfCutRowsInTurns()}) {
    ExpectProduct(plan);
  }
}

TEST(PlanInPanelsTest, IsVerifiedAndGivesTheProduct) {
  EXPECT_EQ(ToText(PlanInPanels()), kPlanInPanels);
  ExpectProduct(PlanInPanels());
  EXPECT_EQ(StepLines(PlanInPanels())[1], "local matmul() %5 [S(1)], %6 [S(0)] +-> %7 [P(sum)]");
}

TEST(PlanInPanelsTest, AddsToWhatIsThereAndNobodyReads) {
  Plan first = PlanInPanels();
  std::swap(first.steps[0], first.steps[1]);
  ExpectRefused(first, "%7 is added to, and was not written before");
  Plan late = PlanInPanels();
  std::swap(late.steps[1], late.steps[2]);
  ExpectRefused(late, "%7 is added to, and peers may read it");
  Plan twice = PlanInPanels();
  std::get<LocalStep>(twice.steps[1]).store = KernelStore::kWrite;
  ExpectRefused(twice, "%7 is written twice");
  Plan itself = PlanInPanels();
  itself.values[6].buffer = 3;
  ExpectRefused(itself, "is read");
}

TEST(PlanInPanelsTest, ProductsOfAPhaseAreAddedInTheirOrder) {
  Plan plan = PlanInPanels();
  std::get<LocalStep>(plan.steps[1]).start = StepStart::kWithPrevious;
  EXPECT_EQ(StepLines(plan)[1], "with local matmul() %5 [S(1)], %6 [S(0)] +-> %7 [P(sum)]");
  EXPECT_EQ(*ParsePlan(ToText(plan)), plan);
  ExpectProduct(plan);
  EXPECT_LT(PredictSeconds(plan, {}), PredictSeconds(PlanInPanels(), {}) + 1e-9);
  std::get<LocalStep>(plan.steps[1]).store = KernelStore::kWrite;
  ExpectRefused(plan, "shares a phase with a step that touches the same memory");
}

TEST(PlanInPanelsTest, AddsWhatIsReadInTheShardsOfOthers) {
  // The left operand is replicated, and the right one cut along the inner letter: panels of rows 0 and 2, and 1 and 3.
  constexpr const char* kText = R"(plan {
  b0 : input 128 bytes on mesh(2)
  b1 : input 96 bytes on mesh(2)
  b2 : output 192 bytes on mesh(2)
  in  %0 : f64[4,4] @ mesh(2) [R] in b0
  in  %1 : f64[4,6] @ mesh(2) [S(0)] in b1
  out %2 : f64[4,6] @ mesh(2) [R] in b2
  tmp %3 : f64[2,6] @ mesh(2) [S(0)] in b1
  tmp %4 : f64[4,2] @ mesh(2) [R] in b0 strides [4,2]
  tmp %5 : f64[2,6] @ mesh(2) [S(0)] in b1 offset 6
  tmp %6 : f64[4,2] @ mesh(2) [R] in b0 offset 1 strides [4,2]
  contract matmul() %4, %3 -> %2
    pieces 1 all_gather as f64[2,6] @ mesh(2) [R]
    dim 0: [0:1) 0+0 -> 0+0, [1:2) 1+0 -> 0+1
    dim 1: [0:6) 0+0 -> 0+0
  contract matmul() %6, %5 +-> %2
    pieces 1 all_gather as f64[2,6] @ mesh(2) [R]
    dim 0: [0:1) 0+0 -> 0+0, [1:2) 1+0 -> 0+1
    dim 1: [0:6) 0+0 -> 0+0
}
)";
  const absl::StatusOr<Plan> plan = ParsePlan(kText);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(ToText(*plan), kText);
  ExpectProduct(*plan);
  EXPECT_EQ(StepLines(*plan)[1], "contract matmul() %6 [R], %5 [S(0)] all_gather [R] +-> %2 [R]");
  Plan first = *plan;
  std::swap(first.steps[0], first.steps[1]);
  ExpectRefused(first, "%2 is added to, and was not written before");
}

TEST(PlanInPanelsTest, HasNoMorePhasesThanWorkersCanCount) {
  Plan plan = PlanInPanels();
  const Step added = plan.steps[1];
  plan.steps.insert(plan.steps.begin() + 1, kMaxPlanPhases - 3, added);
  EXPECT_TRUE(VerifyPlan(plan).ok()) << VerifyPlan(plan);
  plan.steps.insert(plan.steps.begin() + 1, added);
  EXPECT_EQ(VerifyPlan(plan).message(), "plan: 4095 phases; 4094 are allowed (max_phases)");
}

TEST(PlanInPanelsTest, AddsProductsThatAreNotRounded) {
  Plan sum = PlanInPanels();
  auto& step = std::get<LocalStep>(sum.steps[1]);
  step.op = FillOp{};
  step.inputs.clear();
  step.scalars = {0};
  sum.scalar_count = 1;
  ExpectRefused(sum, "adds what is no product");
  std::string text = kPlanInPanels;
  for (size_t at = text.find("f64"); at != std::string::npos; at = text.find("f64")) text.replace(at, 3, "f16");
  const absl::StatusOr<Plan> rounded = ParsePlan(text);
  ASSERT_TRUE(rounded.ok()) << rounded.status();
  ExpectRefused(*rounded, "adds to what is rounded to f16");
}

TEST(PlanInPartsTest, WhatWasOverwrittenIsNotRead) {
  Plan plan = PlanInParts();
  std::swap(plan.steps[1], plan.steps[2]);  // both products, then both reductions
  ExpectRefused(plan, "%4 is read after its buffer was written again");
  const auto result = Interpret(plan, Operands(plan), {});
  ASSERT_TRUE(result.ok()) << result.status();
  int unwritten = 0;
  for (const Number& element : result->outputs[0][1]) unwritten += element.is_nan() ? 1 : 0;
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

TEST(PlanInPartsTest, PartsTileTheOutput) {
  Plan missing = PlanInParts();
  missing.steps.resize(2);
  ExpectRefused(missing, "output %2 is not written");
  Plan again = PlanInParts();
  again.values[8].offset = 2;
  ExpectRefused(again, "%8 is no part of output %2: [0:4,2:4] and [0:4,0:4] overlap");
  Plan backwards = PlanInParts();
  std::swap(backwards.steps[0], backwards.steps[2]);
  std::swap(backwards.steps[1], backwards.steps[3]);
  EXPECT_TRUE(VerifyPlan(backwards).ok()) << VerifyPlan(backwards);
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
  ExpectRefused(*plan, "%1 is no part of output %0: other shards than f64[2,3] @ mesh(1) [R]");
}

TEST(PartsOnSubMeshesTest, TileEachShard) {
  Plan twice = PlanOfCutRows();
  twice.values[16].offset = 0;  // the second row of workers 2 and 3 where the first one is
  ExpectRefused(twice, "%16 is no part of output %2: [2:3,0:1] and [2:3,0:1] overlap");
  Plan other_shard = PlanOfCutColumns();
  other_shard.values[8].spec.mesh = other_shard.values[5].spec.mesh;
  std::get<ExchangeStep>(other_shard.steps[3]).exchange.destination.mesh = other_shard.values[5].spec.mesh;
  ExpectRefused(other_shard, "%8 is no part of output %2: [0:4,0:2] and [0:4,0:2] overlap");
  Plan gap = PlanOfCutRows();
  gap.steps.erase(gap.steps.begin() + 3, gap.steps.begin() + 6);
  ExpectRefused(gap, "output %2 is not written");
  Plan late = PlanOfCutRows();
  late.steps.erase(late.steps.begin() + 6, late.steps.begin() + 9);
  ExpectRefused(late, "output %2 is not written");
  Plan backwards = PlanOfCutRows();
  std::rotate(backwards.steps.begin(), backwards.steps.begin() + 3, backwards.steps.begin() + 6);
  EXPECT_TRUE(VerifyPlan(backwards).ok()) << VerifyPlan(backwards);
}

// A box of each worker's shard, and the rest of it in two: cut along both dims, of which the mesh cuts the first.
TEST(PartsOnSubMeshesTest, AreCutAlongSeveralDims) {
  const std::string parts = R"(plan {
  b0 : output 48 bytes on mesh(2)
  out %0 : f64[4,3] @ mesh(2) [S(0)] in b0
  tmp %1 : f64[4,2] @ mesh(2) [S(0)] in b0 strides [3,1]
  tmp %2 : f64[1,1] @ mesh(1) [R] in b0 offset 2 strides [3,1]
  tmp %3 : f64[1,1] @ mesh(1) [R] in b0 offset 5 strides [3,1]
  tmp %4 : f64[2,1] @ mesh(1; workers=1) [R] in b0 offset 2 strides [3,1]
  local fill() -> %4 scalars [0]
  local fill() -> %3 scalars [0]
  local fill() -> %1 scalars [0]
  local fill() -> %2 scalars [0]
  scalars 1
})";
  const auto plan = ParsePlan(parts);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(VerifyPlan(*plan).ok()) << VerifyPlan(*plan);
  Plan missing = *plan;
  missing.steps.pop_back();
  ExpectRefused(missing, "output %0 is not written");
  Plan twice = *plan;
  twice.values[3].offset = 2;
  ExpectRefused(twice, "%2 is no part of output %0: [0:1,2:3] and [0:1,2:3] overlap");
  Plan over = *plan;
  over.values[3].offset = 4;
  ExpectRefused(over, "%1 is no part of output %0: [0:4,0:2] and [1:2,1:2] overlap");
  Plan beyond = *plan;
  beyond.values[2].spec = *ParseTensorSpec("f64[1,2] @ mesh(1) [R]");
  ExpectRefused(beyond, "%2 is no part of output %0: dim 1 of shard 0 has 3 elements");
  Plan elsewhere = *plan;
  elsewhere.values[3].offset = -1;
  ExpectRefused(elsewhere, "%3");
  Plan other_worker = *plan;
  other_worker.values[3].spec.mesh = other_worker.values[4].spec.mesh;
  ExpectRefused(other_worker, "%3 is no part of output %0: [3:4,2:3] and [2:4,2:3] overlap");
}

TEST(PartsOnSubMeshesTest, AreOnJustTheWorkersOfTheirShard) {
  const Mesh crosswise = *Mesh::Make({1, 2}, {}, {WorkerIndex(0), WorkerIndex(3)});
  Plan mixed = PlanOfCutRows();
  for (const size_t value : {3, 4, 5, 6}) mixed.values[value].spec.mesh = crosswise;
  for (const size_t step : {1, 2}) {
    std::get<ExchangeStep>(mixed.steps[step]).exchange.source.mesh = crosswise;
    std::get<ExchangeStep>(mixed.steps[step]).exchange.destination.mesh = crosswise;
  }
  ExpectRefused(mixed, "%6 is no part of output %2: other shards than f64[1,1] @ mesh(1,2) [R, R]");
  // Each worker's part has the elements of the whole, but only two workers write.
  const auto whole_on_some = ParsePlan(R"(plan {
  b0 : output 48 bytes on mesh(4)
  out %0 : f64[2,3] @ mesh(4) [R] in b0
  tmp %1 : f64[2,3] @ mesh(2) [R] in b0
  local fill() -> %1 scalars [0]
  scalars 1
})");
  ASSERT_TRUE(whole_on_some.ok()) << whole_on_some.status();
  ExpectRefused(*whole_on_some, "%1 is no part of output %0: no dim is cut");
}

TEST(PartsOnSubMeshesTest, WhatIsReadWasWrittenOnItsWorkers) {
  Plan overwritten = PlanOfCutRows();
  // The second product before the first one's reduction.
  std::rotate(overwritten.steps.begin() + 1, overwritten.steps.begin() + 3, overwritten.steps.begin() + 4);
  ExpectRefused(overwritten, "%5 is read after its buffer was written again");
  Plan moved = PlanOfCutRows();
  std::rotate(moved.steps.begin() + 1, moved.steps.begin() + 6, moved.steps.begin() + 7);
  ExpectRefused(moved, "%5 is read after its buffer was written again");  // on other workers: refused all the same
  const auto wider = ParsePlan(R"(plan {
  b0 : temporary 48 bytes on mesh(4)
  b1 : output 48 bytes on mesh(4)
  tmp %0 : f64[2,3] @ mesh(2) [R] in b0
  tmp %1 : f64[2,3] @ mesh(4) [R] in b0
  out %2 : f64[2,3] @ mesh(4) [R] in b1
  local fill() -> %0 scalars [0]
  local map(neg:f64(in0:f64)) %1 -> %2
  scalars 1
})");
  ASSERT_TRUE(wider.ok()) << wider.status();
  ExpectRefused(*wider, "%1 reaches beyond %0, which its buffer holds");
}

TEST(PartsOnSubMeshesTest, RunSideBySide) {
  const Plan plan = PlanOfCutRows();
  Plan half = plan;
  half.steps.resize(plan.steps.size() / 2);  // the parts of workers 0 and 1
  const double half_s = PredictSeconds(half, Topology());
  EXPECT_GT(half_s, 0);
  EXPECT_DOUBLE_EQ(PredictSeconds(plan, Topology()), half_s);
  Plan quarter = plan;
  quarter.steps.resize(plan.steps.size() / 4);
  EXPECT_GT(half_s, 1.5 * PredictSeconds(quarter, Topology())) << "one part after another on the same workers";
}

TEST(PartsOnSubMeshesTest, InputsAndOutputsAreOnAllWorkersOfTheirBuffers) {
  Plan input = PlanOfCutRows();
  input.values[0].spec = input.values[3].spec;
  ExpectRefused(input, "%0 is not on all workers of its buffer");
  Plan output = PlanOfCutRows();
  output.outputs[0] = 6;
  ExpectRefused(output, "%6 is not on all workers of its buffer");
  Plan stranger = PlanOfCutRows();
  stranger.values[6].spec.mesh = *Mesh::Make({1, 2}, {}, {WorkerIndex(1), WorkerIndex(4)});
  ExpectRefused(stranger, "%6 is on other workers than its buffer");
}

// Peers read a temporary when it is spread by pulling; then it is reduced again.
Plan ReducedTwice(Delivery second) {
  Plan plan = *PlanRedistribute({*ParseTensorSpec("f32[4,4] @ mesh(2) [P(sum)]"), {}},
                                *ParseTensorSpec("f32[4,4] @ mesh(2) [R]"), InTwoPhases());
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
      if (exchange.exchange.role == ExchangeRole::kGatherReduced) {
        exchange.source = id;
        exchange.exchange.delivery = id == 2 ? Delivery::kPull : second;
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

TEST(PartsOnSubMeshesTest, NothingIsPushedWherePeersReadWhatOthersHaveWrittenOver) {
  // Peers read %2 on both workers; %4 takes its place on worker 0, and %5 is pushed to worker 1's.
  Plan plan = ReducedTwice(Delivery::kPush);
  const Mesh first = *Mesh::Make({1}, {}, {WorkerIndex(0)});
  plan.values.push_back(plan.values[3]);
  plan.values[4].spec.mesh = first;
  LocalStep fill;
  fill.op = FillOp{};
  fill.scalars = {0};
  fill.output = 4;
  plan.scalar_count = 1;
  plan.steps.insert(plan.steps.begin() + 2, fill);
  ExpectRefused(plan, "pushes into memory that peers may still read");
}

TEST(PlanInPartsTest, APhaseThatOverwritesWaitsForTheReaders) {
  const absl::StatusOr<Program> program = LowerPlan(PlanInParts(), WorkerIndex(1), MessageLists::kOmit);
  ASSERT_TRUE(program.ok()) << program.status();
  ASSERT_EQ(program->phases.size(), 4u);
  for (const size_t other : {0, 1, 3}) {
    EXPECT_EQ(program->phases[other].overwrites.phase, 0) << other;
    EXPECT_TRUE(program->phases[other].overwrites.read_by.empty()) << other;
  }
  EXPECT_EQ(program->phases[2].overwrites.phase, 2);
  EXPECT_EQ(program->phases[2].overwrites.read_by, std::vector<WorkerIndex>{WorkerIndex(0)});
  EXPECT_EQ(program->phases[3].peers.phase, 3) << "the part's own product, not the first one's";
  const absl::StatusOr<Program> spread = LowerPlan(ReducedTwice(Delivery::kPull), WorkerIndex(1), MessageLists::kOmit);
  ASSERT_TRUE(spread.ok()) << spread.status();
  EXPECT_EQ(spread->phases[2].overwrites.phase, 2);
  EXPECT_EQ(spread->phases[3].overwrites.phase, 0);
}

TEST(PartsOnSubMeshesTest, APhaseThatOverwritesWaitsForThoseWhoReadThere) {
  // Phases 1 and 2 are the first part of workers 0 and 1, 3 and 4 that of 2 and 3, 5 and 6 the second one of 0 and 1.
  for (int worker = 0; worker < 4; ++worker) {
    const auto program = LowerPlan(PlanOfCutRowsInTurns(), WorkerIndex(worker), MessageLists::kOmit);
    ASSERT_TRUE(program.ok()) << program.status();
    EXPECT_EQ(program->phases[2].overwrites.phase, 0) << "nobody read workers 2 and 3 before";
    EXPECT_EQ(program->phases[4].overwrites.phase, 2) << "the same on all workers, who publish it";
    EXPECT_EQ(program->phases[6].overwrites.phase, 4);
    using Workers = std::vector<WorkerIndex>;
    EXPECT_EQ(program->phases[4].overwrites.read_by, worker == 1 ? Workers{WorkerIndex(0)} : Workers{}) << worker;
    EXPECT_EQ(program->phases[6].overwrites.read_by, worker == 3 ? Workers{WorkerIndex(2)} : Workers{}) << worker;
  }
}

}  // namespace
}  // namespace tessera::testing
