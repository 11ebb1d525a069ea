// Plans that widen a value in its own memory: what is allowed is just that.

#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/layout.h"
#include "server/plan/cost.h"
#include "server/plan/lower/program.h"
#include "server/plan/lower/widening.h"
#include "server/plan/reference/interpret.h"
#include "server/plan/verify.h"
#include "server/planner/planner.h"

namespace tessera::testing {
namespace {

// Parts of f32 on two workers, wanted as f64 on both.
constexpr std::string_view kWidened = R"(plan {
  b0 : input 12 bytes on mesh(2)
  b1 : output 48 bytes on mesh(2)
  in  %0 : f32[6] @ mesh(2) [S(0)] in b0
  out %1 : f64[6] @ mesh(2) [R] in b1
  tmp %2 : f32[6] @ mesh(2) [R] in b1 offset 6
  all_gather %0 -> %2 move
    dim 0: [0:3) 0+0 -> 0+0, [3:6) 1+0 -> 0+3
  local map(cast:f64(in0:f32)) %2 -> %1
}
)";

Plan Widened() {
  const absl::StatusOr<Plan> plan = ParsePlan(kWidened);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

ExchangeStep& GatherOf(Plan& plan) { return std::get<ExchangeStep>(plan.steps[0]); }
LocalStep& CastOf(Plan& plan) { return std::get<LocalStep>(plan.steps[1]); }

MapOp CastTo(DType from, DType to) {
  return MapOp{{{{ScalarOp::kInput, from, 0, 0, 0}, {ScalarOp::kCast, to, 0, 0, 0}}}};
}

void ExpectRefused(const Plan& plan, std::string_view why) {
  const absl::Status status = VerifyPlan(plan);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << why << "\n" << ToText(plan);
  EXPECT_NE(std::string(status.message()).find(why), std::string::npos) << why << " is not in " << status;
}

TEST(WideningPlan, IsVerifiedAndGivesTheWhole) {
  const Plan plan = Widened();
  EXPECT_EQ(ToText(plan), kWidened);
  ASSERT_TRUE(VerifyPlan(plan).ok()) << VerifyPlan(plan);
  EXPECT_EQ(PeakBytes(plan), (std::vector<int64_t>{60, 60}));
  EXPECT_TRUE(LiesAtEndOf(plan.values[2], plan.values[1]));
  EXPECT_FALSE(LiesAtEndOf(plan.values[1], plan.values[2]));
  const auto result = Interpret(plan, {{{1, 2, 3}, {4, 5, 6}}}, {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->outputs[0][1], (std::vector<Number>{1, 2, 3, 4, 5, 6}));
}

TEST(WideningPlan, TakesWhatLiesAtTheEndOfTheOutputAlone) {
  for (const int64_t offset : {0, 5}) {
    Plan plan = Widened();
    plan.values[2].offset = offset;
    ExpectRefused(plan, "%2 is no part of output %1");
  }
  Plan reversed = Widened();
  reversed.values[2].offset = 11;
  reversed.values[2].strides = {-1};
  ExpectRefused(reversed, "%2 is no part of output %1");
  Plan as_wide = Widened();
  as_wide.values[2].spec.dtype = DType::kF64;
  as_wide.values[2].offset = 0;
  GatherOf(as_wide).exchange.destination.dtype = DType::kF64;
  CastOf(as_wide).op = CastTo(DType::kF64, DType::kF64);
  ExpectRefused(as_wide, "%1 is written twice");
  Plan later = Widened();  // the output does not begin its buffer
  later.buffers[1].bytes = 56;
  later.values[1].offset = 1;
  later.values[2].offset = 8;
  ExpectRefused(later, "%2 is no part of output %1");
  Plan other_mesh = Widened();
  other_mesh.values[2].spec.mesh = GatherOf(other_mesh).exchange.destination.mesh = *ParseMesh("mesh(2; workers=1,0)");
  ExpectRefused(other_mesh, "%2 is no part of output %1");
}

TEST(WideningPlan, AllowsACastAlone) {
  Plan other_op = Widened();
  CastOf(other_op).op = MapOp{{{{ScalarOp::kInput, DType::kF32, 0, 0, 0},
                                {ScalarOp::kNeg, DType::kF32, 0, 0, 0},
                                {ScalarOp::kCast, DType::kF64, 1, 0, 0}}}};
  ExpectRefused(other_op, "%1 is written twice");
  Plan counted = Widened();
  CastOf(counted).counted_once = {{0}};
  ExpectRefused(counted, "%1 is written twice");
  Plan several = Widened();
  CastOf(several).inputs = {2, 2};
  ExpectRefused(several, "%1 is written twice");
  Plan moved = Widened();
  moved.steps[1] = GatherOf(moved);
  std::get<ExchangeStep>(moved.steps[1]).destination = 1;
  std::get<ExchangeStep>(moved.steps[1]).exchange.destination.dtype = DType::kF64;
  ExpectRefused(moved, "%1 is written twice");
  Plan from_elsewhere = Widened();  // a narrow value of another buffer
  from_elsewhere.buffers.push_back({PlanBuffer::Kind::kTemporary, from_elsewhere.buffers[0].mesh, 24});
  from_elsewhere.values.push_back(from_elsewhere.values[2]);
  from_elsewhere.values[3].buffer = 2;
  from_elsewhere.values[3].offset = 0;
  LocalStep copy;
  copy.op = MapOp{{{{ScalarOp::kInput, DType::kF32, 0, 0, 0}}}};
  copy.inputs = {2};
  copy.output = 3;
  from_elsewhere.steps.insert(from_elsewhere.steps.begin() + 1, copy);
  std::get<LocalStep>(from_elsewhere.steps[2]).inputs = {3};
  ExpectRefused(from_elsewhere, "%1 is written twice");
}

TEST(WideningPlan, WritesTheOutputOnceAndTheNarrowValueBefore) {
  Plan unwritten = Widened();
  unwritten.steps.pop_back();
  ExpectRefused(unwritten, "output %1 is not written");
  Plan first = Widened();
  first.steps.erase(first.steps.begin());
  ExpectRefused(first, "%2 is read before it is written");
  Plan twice = Widened();
  twice.steps.push_back(twice.steps[1]);
  ExpectRefused(twice, "%2 is read after its buffer was written again");
  Plan again = Widened();
  again.steps.push_back(again.steps[0]);
  ExpectRefused(again, "%2 is written twice");
  Plan two = Widened();  // one narrow value after another
  two.values.push_back(NarrowAtEndOf(two.values[1], DType::kF16));
  two.steps.insert(two.steps.begin() + 1, two.steps[0]);
  std::get<ExchangeStep>(two.steps[1]).destination = 3;
  std::get<ExchangeStep>(two.steps[1]).exchange.destination.dtype = DType::kF16;
  ExpectRefused(two, "%3 is written twice");
}

TEST(WideningPlan, ReadsEachValueWhileItIsThere) {
  const auto with_copy = [](int value, size_t at) {
    Plan plan = Widened();
    TensorSpec spec = plan.values[static_cast<size_t>(value)].spec;
    plan.buffers.push_back({PlanBuffer::Kind::kTemporary, spec.mesh, 6 * SizeBytes(spec.dtype)});
    plan.values.push_back({spec, 2, 0, {1}});
    LocalStep copy;
    copy.op = MapOp{{{{ScalarOp::kInput, spec.dtype, 0, 0, 0}}}};
    copy.inputs = {value};
    copy.output = 3;
    plan.steps.insert(plan.steps.begin() + static_cast<ptrdiff_t>(at), copy);
    return plan;
  };
  ExpectRefused(with_copy(2, 2), "%2 is read after its buffer was written again");
  ExpectRefused(with_copy(1, 1), "%1 reaches beyond %2, which its buffer holds");
  for (const Plan& plan : {with_copy(2, 1), with_copy(1, 2)}) {
    EXPECT_TRUE(VerifyPlan(plan).ok()) << VerifyPlan(plan) << ToText(plan);
  }
}

TEST(WideningPlan, IsOfNoTemporaryAndOfNoDonation) {
  Plan temporary = Widened();
  temporary.buffers[1].kind = PlanBuffer::Kind::kTemporary;
  temporary.buffers.push_back({PlanBuffer::Kind::kOutput, temporary.buffers[0].mesh, 48});
  temporary.values.push_back({temporary.values[1].spec, 2, 0, {1}});
  temporary.outputs = {3};
  LocalStep copy;
  copy.op = MapOp{{{{ScalarOp::kInput, DType::kF64, 0, 0, 0}}}};
  copy.inputs = {1};
  copy.output = 3;
  temporary.steps.emplace_back(copy);
  ExpectRefused(temporary, "%1 is written over %2, which is read");
  Plan donated = Widened();
  donated.donations.push_back({0, 0});
  ExpectRefused(donated, "%2 is no part of output %1");
}

// A host's workers share what each took of a far one; the value there is widened when they have read it.
TEST(WideningPlan, WaitsForThoseWhoReadWhatItOverwrites) {
  Topology topology;
  topology.host_of_worker = {0, 0, 1, 1};
  OpCall call;
  call.op = OpId::kRedistribute;
  call.attributes.Set(attribute::dtype, DType::kF64);
  call.attributes.Set(attribute::placements, Placements{Placement::Replicate()});
  const OperandLayout rows = {*ParseTensorSpec("f32[8] @ mesh(4) [S(0)]"), {}};
  const absl::StatusOr<OpPlan> planned = PlanOp(call, {rows}, topology);
  ASSERT_TRUE(planned.ok()) << planned.status();
  const Plan& plan = planned->plan;
  ASSERT_EQ(PhasesOf(plan), (std::vector<int>{1, 2, 3})) << ToText(plan);
  for (int32_t worker = 0; worker < 4; ++worker) {
    const absl::StatusOr<Program> program = LowerPlan(plan, WorkerIndex(worker), MessageLists::kOmit);
    ASSERT_TRUE(program.ok()) << program.status();
    EXPECT_EQ(program->phases[0].overwrites.phase, 0);
    EXPECT_EQ(program->phases[1].overwrites.phase, 0);
    EXPECT_EQ(program->phases[2].overwrites.phase, 2);
    EXPECT_EQ(program->phases[2].overwrites.read_by, std::vector<WorkerIndex>{WorkerIndex(worker ^ 1)});
  }
}

}  // namespace
}  // namespace tessera::testing
