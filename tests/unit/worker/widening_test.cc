// Values that are widened in their own memory, on real executors: over mapped memory, over messages, and on several
// hosts.

#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "schemas/types/str_cat.h"
#include "server/plan/lower/widening.h"
#include "tests/support/two_phases.h"
#include "tests/unit/worker/converted_plans.h"

namespace tessera::testing {
namespace {

int CountWidenings(const Plan& plan) {
  int count = 0;
  for (const Step& step : plan.steps) {
    const auto* local = std::get_if<LocalStep>(&step);
    count += local != nullptr && WidensInPlace(plan, *local) ? 1 : 0;
  }
  return count;
}

using WideningWorkers = ConvertedPlans;

TEST_P(WideningWorkers, OfEveryPlacement) {
  WorkerWorld world(World(4, 16 << 20));
  const std::pair<const char*, DType> kDTypes[] = {
      {"f16", DType::kF32}, {"bf16", DType::kF64}, {"i32", DType::kI64}, {"f32", DType::kF64}};
  int widened = 0;
  for (const char* shape : {"[1,1]", "[1,3]", "[7,5]", "[3,0]", "[37,41]"}) {
    for (const auto& [from, to] : kDTypes) {
      for (const char* source : {"[P(sum), R]", "[P(sum), P(sum)]", "[S(0), P(max)]", "[R, S(1)]", "[S(1), S(0)]"}) {
        for (const char* destination : {"[R, R]", "[R, S(0)]", "[S(1), R]"}) {
          for (const Topology& topology : {Hosts({}), Hosts(InTwoPhases())}) {
            const Plan plan = PlanConverted({StrCat(from, shape, " @ mesh(2,2) ", source)}, to,
                                            *ParsePlacements(destination), topology);
            widened += CountWidenings(plan);
            ExpectRuns(world, plan);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
  EXPECT_GT(widened, 100);
}

TEST_P(WideningWorkers, OfSeveralTensorsTogether) {
  WorkerWorld world(World(4, 1 << 20));
  const Plan plan =
      PlanConverted({"f32[7,5] @ mesh(4) [P(sum)]", "f16[5,9] @ mesh(4) [P(max)]", "i8[6] @ mesh(4) [P(sum)]",
                     "f32[4,4] @ mesh(4) [S(0)]", "f64[3] @ mesh(4) [P(sum)]"},
                    DType::kF64, {Placement::Replicate()}, Hosts({}));
  EXPECT_GE(CountWidenings(plan), 3);
  ExpectRuns(world, plan);
}

// Large enough for several threads, parts and chunks; and of uneven rows.
TEST_P(WideningWorkers, OfMuch) {
  WorkerWorld world(World(4, 48 << 20));
  const std::pair<const char*, const char*> kCases[] = {{"bf16[1031,500] @ mesh(2,2) [P(sum), P(sum)]", "[R, R]"},
                                                        {"f32[500,1031] @ mesh(2,2) [P(sum), R]", "[R, S(1)]"}};
  for (const auto& [source, destination] : kCases) {
    const Plan plan = PlanConverted({source}, DType::kF64, *ParsePlacements(destination), Hosts({}));
    EXPECT_EQ(CountWidenings(plan), 1) << ToText(plan);
    ExpectNumbers(world, plan);
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, WideningWorkers, ::testing::ValuesIn(AllWays()),
                         [](const auto& way) { return way.param.name; });

TEST(WideningHazards, NothingIsOverwrittenThatIsRead) {
  for (const std::vector<int32_t>& hosts : {std::vector<int32_t>{}, {0, 0, 1, 1}, {0, 1, 0, 1}}) {
    for (const char* source : {"[P(sum)]", "[S(1)]"}) {
      Topology topology = InTwoPhases();
      topology.host_of_worker = hosts;
      const Plan plan = PlanConverted({StrCat("f32[2,8] @ mesh(4) ", source), "f16[6,3] @ mesh(4) [P(max)]"},
                                      DType::kF64, {Placement::Replicate()}, topology);
      EXPECT_GE(CountWidenings(plan), 1) << ToText(plan);
      const std::vector<ShardedArray> inputs = InputsOf(plan);
      const auto want = Interpret(plan, inputs, {});
      ASSERT_TRUE(want.ok()) << want.status();
      for (uint32_t seed = 0; seed < 20; ++seed) {
        HazardRecorder recorder(seed);
        WorkerWorld world({.workers = 4, .hosts = hosts, .recorder = &recorder});
        const WorkerWorld::Result got = world.RunPlan(plan, inputs, {});
        ASSERT_TRUE(got.status.ok()) << got.status;
        EXPECT_TRUE(recorder.hazards().empty()) << recorder.hazards()[0] << "\n" << ToText(plan);
        EXPECT_EQ(got.outputs, want->outputs);
      }
    }
  }
}

// The recorder sees what happens without the waits for those who read what is widened.
TEST(WideningHazards, WithoutItsWaitsTheCastOverwritesWhatIsRead) {
  const std::vector<int32_t> hosts = {0, 0, 1, 1};
  Topology topology;
  topology.host_of_worker = hosts;
  const Plan plan = PlanConverted({"f32[2,8] @ mesh(4) [S(1)]"}, DType::kF64, {Placement::Replicate()}, topology);
  ASSERT_EQ(PhasesOf(plan), (std::vector<int>{1, 2, 3})) << ToText(plan);
  int hazards = 0;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    HazardRecorder recorder(seed);
    WorkerWorld world({.workers = 4, .hosts = hosts, .recorder = &recorder, .skips = [](int, const CounterWait& wait) {
                         return (wait.value & 0xfff) == 2;  // for what peers read in phase 2
                       }});
    EXPECT_TRUE(world.RunPlan(plan, InputsOf(plan), {}).status.ok());
    hazards += recorder.hazards().empty() ? 0 : 1;
  }
  EXPECT_GT(hazards, 0);
}

}  // namespace
}  // namespace tessera::testing
