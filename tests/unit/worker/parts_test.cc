// Plans that write an output in parts and a temporary again, on real executors.

#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/str_cat.h"
#include "server/device/counters.h"
#include "server/planner/contraction.h"
#include "tests/support/plan_in_parts.h"
#include "tests/unit/worker/worker_world.h"

namespace tessera::testing {
namespace {

class PartsOnWorkers : public ::testing::TestWithParam<Reach> {};

TEST_P(PartsOnWorkers, GiveTheProduct) {
  WorkerWorld world({.workers = 2, .reach = GetParam()});
  for (const Plan& plan : {PlanInParts(), PlanInPanels()}) {
    const auto want = Interpret(plan, Operands(plan), {});
    ASSERT_TRUE(want.ok()) << want.status();
    for (int run = 0; run < 20; ++run) {
      const WorkerWorld::Result got = world.RunPlan(plan, Operands(plan), {});
      ASSERT_TRUE(got.status.ok()) << got.status;
      ASSERT_EQ(got.outputs, want->outputs);
      ASSERT_EQ(got.received_bytes, (std::vector<int64_t>{96, 96}));
    }
  }
}

void RunAsInterpreted(WorkerWorld& world, const Plan& plan, WorkerWorld::Result& got) {
  const auto want = Interpret(plan, Operands(plan), {});
  ASSERT_TRUE(want.ok()) << want.status();
  got = world.RunPlan(plan, Operands(plan), {});
  ASSERT_TRUE(got.status.ok()) << got.status;
  ASSERT_EQ(got.outputs, want->outputs) << ToText(plan);
}

// On sub-meshes, whose parts run side by side.
TEST_P(PartsOnWorkers, GiveTheProductOfLettersThatTheMeshCuts) {
  WorkerWorld world({.workers = 4, .reach = GetParam()});
  for (int run = 0; run < 20; ++run) {
    for (const Plan& plan : {PlanOfCutColumns(), PlanOfCutRows(), PlanOfCutRowsInTurns()}) {
      WorkerWorld::Result got;
      ASSERT_NO_FATAL_FAILURE(RunAsInterpreted(world, plan, got));
      ASSERT_EQ(got.received_bytes, TrafficOf(plan).received_bytes) << ToText(plan);
    }
  }
}

TEST(PartsOnTwoHosts, GiveTheProductOfLettersThatTheMeshCuts) {
  WorkerWorld world({.workers = 4, .hosts = {0, 1, 0, 1}});
  for (const Plan& plan : {PlanOfCutColumns(), PlanOfCutRows(), PlanOfCutRowsInTurns()}) {
    WorkerWorld::Result got;
    ASSERT_NO_FATAL_FAILURE(RunAsInterpreted(world, plan, got));
  }
}

INSTANTIATE_TEST_SUITE_P(Reach, PartsOnWorkers, ::testing::Values(Reach::kMapped, Reach::kMessages),
                         [](const auto& info) { return info.param == Reach::kMapped ? "mapped" : "messages"; });

// A product on workers of these hosts, in four parts, or panels, that come while others are multiplied.
Plan OverlappedPlan(const std::vector<int32_t>& hosts, std::string_view mesh_text, std::string_view left,
                    std::string_view right, std::string_view output, ContractionLimits limits = {}) {
  const std::string mesh = StrCat(" @ ", mesh_text, " ");
  Topology topology;
  topology.host_of_worker = hosts;
  PlanBuilder builder;
  const int a = builder.AddInput({*ParseTensorSpec(StrCat("f64[9,16]", mesh, left)), {}});
  const int b = builder.AddInput({*ParseTensorSpec(StrCat("f64[16,13]", mesh, right)), {}});
  limits.overlap = {.least_extent = 1, .least_parts = 4, .most_parts = 4, .most_panels = 4, .worthwhile = 1e9};
  const auto product =
      AddContraction(builder, {}, a, b, *ParseTensorSpec(StrCat("f64[9,13]", mesh, output)), topology, limits);
  if (!product.ok()) return {};
  builder.AddOutput(*product);
  return std::move(builder).Finish(topology);
}

std::vector<Plan> OverlappedPlans(const std::vector<int32_t>& hosts) {
  std::vector<Plan> plans;
  for (const char* left : {"[S(0)]", "[R]", "[P(sum)]"}) {
    for (const char* right : {"[S(0)]", "[S(1)]", "[P(sum)]"}) {
      Plan plan = OverlappedPlan(hosts, StrCat("mesh(", hosts.size(), ")"), left, right, "[S(0)]");
      if (plan.grid.find("comes while") != std::string::npos) plans.push_back(std::move(plan));
    }
  }
  return plans;
}

// With as much memory as they want, and with less: one after the other, at once, and in parts of the output.
std::vector<Plan> PlansInPanels(const std::vector<int32_t>& hosts) {
  std::vector<Plan> plans;
  const auto add = [&](std::string_view left, std::string_view right, std::string_view output,
                       const ContractionLimits& limits) {
    Plan plan = OverlappedPlan(hosts, "mesh(2,2)", left, right, output, limits);
    if (plan.grid.find(" panels of ") != std::string::npos) plans.push_back(std::move(plan));
  };
  constexpr PieceLimits kAnyPieces = {1, 1, 1 << 20};
  for (const char* left : {"[S(0), S(1)]", "[S(1), S(0)]", "[S(0), R]"}) {
    for (const char* right : {"[S(0), S(1)]", "[S(0), S(0)]"}) {
      for (const char* output : {"[S(0), S(1)]", "[S(1), R]"}) {
        for (const PieceLimits& pieces : {PieceLimits(), kAnyPieces}) {
          for (const int64_t free_bytes : {1 << 20, 1000, 500}) add(left, right, output, {pieces, {free_bytes}, {}});
        }
      }
    }
  }
  return plans;
}

TEST(OverlappedParts, GiveTheProduct) {
  for (const std::vector<int32_t>& hosts :
       {std::vector<int32_t>{0, 0, 1, 1}, std::vector<int32_t>{0, 1, 2, 3}, std::vector<int32_t>{0, 1, 1, 1}}) {
    // Chunks of a few elements, so that there are more of them than a window has.
    WorkerWorld world({.workers = 4, .hosts = hosts, .max_chunk_bytes = 16});
    std::vector<Plan> plans = OverlappedPlans(hosts);
    ASSERT_GE(plans.size(), 3u);
    const std::vector<Plan> panels = PlansInPanels(hosts);
    ASSERT_GE(panels.size(), 10u);
    plans.insert(plans.end(), panels.begin(), panels.end());
    for (const Plan& plan : plans) {
      for (int run = 0; run < 5; ++run) {
        WorkerWorld::Result got;
        ASSERT_NO_FATAL_FAILURE(RunAsInterpreted(world, plan, got));
      }
    }
  }
}

TEST(PartsHazards, WhatComesForAPartIsNotWrittenWhereOthersAreMultipliedOrRead) {
  const std::vector<int32_t> hosts = {0, 0, 1, 1};
  for (uint32_t seed = 0; seed < 5; ++seed) {
    std::vector<Plan> plans = OverlappedPlans(hosts);
    for (const Plan& plan : PlansInPanels(hosts)) plans.push_back(plan);
    for (const Plan& plan : plans) {
      HazardRecorder recorder(seed);
      WorkerWorld world({.workers = 4, .hosts = hosts, .recorder = &recorder});
      const WorkerWorld::Result got = world.RunPlan(plan, Operands(plan), {});
      EXPECT_TRUE(got.status.ok()) << got.status;
      EXPECT_TRUE(recorder.IsDrained());
      ASSERT_TRUE(recorder.hazards().empty()) << recorder.hazards()[0] << ToText(plan);
    }
  }
}

TEST(PartsHazards, AProductWaitsUntilPeersHaveReadTheOneBefore) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    HazardRecorder recorder(seed);
    WorkerWorld world({.workers = 2, .recorder = &recorder});
    const WorkerWorld::Result got = world.RunPlan(PlanInParts(), Operands(PlanInParts()), {});
    EXPECT_TRUE(got.status.ok()) << got.status;
    EXPECT_TRUE(recorder.IsDrained());
    EXPECT_TRUE(recorder.hazards().empty()) << recorder.hazards()[0];
  }
}

TEST(PartsHazards, AProductOnASubMeshWaitsForThoseWhoReadThere) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    for (const Plan& plan : {PlanOfCutColumns(), PlanOfCutRows(), PlanOfCutRowsInTurns()}) {
      HazardRecorder recorder(seed);
      WorkerWorld world({.workers = 4, .recorder = &recorder});
      const WorkerWorld::Result got = world.RunPlan(plan, Operands(plan), {});
      EXPECT_TRUE(got.status.ok()) << got.status;
      EXPECT_TRUE(recorder.IsDrained());
      EXPECT_TRUE(recorder.hazards().empty()) << recorder.hazards()[0] << ToText(plan);
    }
  }
}

// The second product lies where rows 0 and 1 of the first one lay: those that worker 0 reads.
TEST(PartsHazards, AWaitForTheReadersThatIsLeftOutIsFound) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    HazardRecorder recorder(seed);
    const auto is_for_readers = [](int worker, const CounterWait& wait) {
      return worker == 1 && wait.worker == WorkerIndex(0) && wait.value == CounterValue(Ordinal(1), 2);
    };
    WorkerWorld world({.workers = 2, .recorder = &recorder, .skips = is_for_readers});
    world.RunPlan(PlanInParts(), Operands(PlanInParts()), {});
    ASSERT_FALSE(recorder.hazards().empty()) << seed;
    EXPECT_NE(recorder.hazards()[0].find("kernel"), std::string::npos) << recorder.hazards()[0];
    EXPECT_NE(recorder.hazards()[0].find("reduce"), std::string::npos) << recorder.hazards()[0];
  }
}

}  // namespace
}  // namespace tessera::testing
