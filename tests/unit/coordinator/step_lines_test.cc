// The words in which a plan's steps say how its bytes move.

#include "server/coordinator/rpc/step_lines.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "schemas/types/str_cat.h"
#include "server/planner/contraction.h"
#include "tests/support/plan_redistribute.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::Not;

using Lines = std::vector<std::string>;

Topology OnHosts(const std::vector<int32_t>& hosts) {
  Topology topology = Topology::Of(DeviceKind::kCuda);
  topology.host_of_worker = hosts;
  return topology;
}

Lines LinesOf(const char* from, const char* to, const std::vector<int32_t>& hosts, int without = -1,
              DeviceKind kind = DeviceKind::kCuda) {
  Topology topology = OnHosts(hosts);
  topology.kind = kind;
  const auto plan = PlanRedistribute({*ParseTensorSpec(from), {}}, *ParseTensorSpec(to), topology);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return StepLinesOn(
      topology, [without](WorkerIndex worker) { return worker.value != without; }, *plan);
}

TEST(StepLinesTest, MessagesOfGpusThatHaveItGoByNccl) {
  EXPECT_THAT(LinesOf("f32[9] @ mesh(2) [S(0)]", "f32[9] @ mesh(2) [R]", {0, 1}),
              ElementsAre("all_gather %0 [S(0)] -> %1 [R], by NCCL"));
  EXPECT_THAT(LinesOf("f32[8] @ mesh(2) [S(0)]", "f32[8] @ mesh(2) [R]", {0, 1}, /*without=*/1),
              ElementsAre("all_gather %0 [S(0)] -> %1 [R]"));
  EXPECT_THAT(LinesOf("f32[8] @ mesh(2) [S(0)]", "f32[8] @ mesh(2) [R]", {0, 1}, -1, DeviceKind::kCpu),
              ElementsAre("all_gather %0 [S(0)] -> %1 [R]"));
}

TEST(StepLinesTest, ACallOfAllWorkersSaysWhichOne) {
  EXPECT_THAT(LinesOf("f32[8] @ mesh(2) [S(0)]", "f32[8] @ mesh(2) [R]", {0, 1}),
              ElementsAre("all_gather %0 [S(0)] -> %1 [R], by NCCL's AllGather"));
  EXPECT_THAT(LinesOf("i64[8] @ mesh(2) [P(sum)]", "i64[8] @ mesh(2) [S(0)]", {0, 1})[0],
              EndsWith(", by NCCL's ReduceScatter"));
  EXPECT_THAT(LinesOf("f64[8] @ mesh(2) [P(sum)]", "f64[8] @ mesh(2) [S(0)]", {0, 1})[0], EndsWith(", by NCCL"));
}

TEST(StepLinesTest, WhatIsReadInMappedMemoryIsNot) {
  EXPECT_THAT(LinesOf("f32[8] @ mesh(2) [S(0)]", "f32[8] @ mesh(2) [R]", {}),
              ElementsAre("all_gather %0 [S(0)] -> %1 [R]"));
  EXPECT_THAT(LinesOf("f32[8] @ mesh(4) [S(0)]", "f32[8] @ mesh(4) [R]", {0, 0, 1, 1})[0],
              EndsWith("by NCCL between hosts"));
}

// Both of a host take from the other host what the first step brought there.
TEST(StepLinesTest, AStepWithinHostsIsNot) {
  const Lines lines = LinesOf("f32[64,64] @ mesh(4) [S(0)]", "f32[64,64] @ mesh(4) [R]", {0, 0, 1, 1});
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], EndsWith("by NCCL between hosts"));
  EXPECT_THAT(lines[1], Not(EndsWith("hosts")));
}

TEST(StepLinesTest, AConvolutionSaysWhoseItIs) {
  for (const auto& [dtype, end] : {std::pair("f32", ", by cuDNN where it is"), std::pair("f64", "%2 [R]")}) {
    PlanBuilder builder;
    const auto spec = [dtype = dtype](const char* extents) {
      return *ParseTensorSpec(StrCat(dtype, extents, " @ mesh(1) [R]"));
    };
    const int x = builder.AddInput({spec("[2,3,8,8]"), {}}), w = builder.AddInput({spec("[4,3,3,3]"), {}});
    const ConvOp conv{.windows = {.stride = {1, 1}, .padding = {1, 1}, .dilation = {1, 1}}};
    const int y = builder.AddTemporary(spec("[2,4,8,8]"));
    LocalStep step;
    step.op = conv;
    step.inputs = {x, w};
    step.output = y;
    builder.AddLocal(std::move(step));
    builder.AddOutput(y);
    const Plan plan = std::move(builder).Finish(OnHosts({0}));
    const Lines lines = StepLinesOn(
        OnHosts({0}), [](WorkerIndex) { return true; }, plan);
    EXPECT_THAT(lines.back(), EndsWith(end));
  }
}

TEST(StepLinesTest, SoDoesAGradientOfOne) {
  PlanBuilder builder;
  const auto spec = [](const char* text) { return *ParseTensorSpec(text); };
  const int gradient = builder.AddInput({spec("f32[2,4,8,8] @ mesh(1) [R]"), {}});
  const int w = builder.AddInput({spec("f32[4,3,3,3] @ mesh(1) [R]"), {}});
  const int x = builder.AddTemporary(spec("f32[2,3,8,8] @ mesh(1) [R]"));
  LocalStep step;
  step.op = ConvGradientOp{.of = ConvOperand::kX, .windows = {.stride = {1, 1}, .padding = {1, 1}, .dilation = {1, 1}}};
  step.inputs = {gradient, w};
  step.output = x;
  builder.AddLocal(std::move(step));
  builder.AddOutput(x);
  const Plan plan = std::move(builder).Finish(OnHosts({0}));
  const Lines lines = StepLinesOn(
      OnHosts({0}), [](WorkerIndex) { return true; }, plan);
  EXPECT_THAT(lines.back(), EndsWith(", by cuDNN where it is"));
}

TEST(StepLinesTest, SoDoThePiecesOfAProduct) {
  PlanBuilder builder;
  const int a = builder.AddInput({*ParseTensorSpec("f32[256,256] @ mesh(2) [S(0)]"), {}});
  const int b = builder.AddInput({*ParseTensorSpec("f32[256,256] @ mesh(2) [S(0)]"), {}});
  const auto c = AddContraction(builder, {}, a, b, *ParseTensorSpec("f32[256,256] @ mesh(2) [S(0)]"), {},
                                {{1, 1, 1 << 20}, {}, {}});
  ASSERT_TRUE(c.ok()) << c.status();
  builder.AddOutput(*c);
  const Plan plan = std::move(builder).Finish(OnHosts({0, 1}));
  const Lines lines = StepLinesOn(
      OnHosts({0, 1}), [](WorkerIndex) { return true; }, plan);
  EXPECT_THAT(lines.back(), EndsWith(", by cuBLASLt where it is, pieces by NCCL"));
}

}  // namespace
}  // namespace tessera
