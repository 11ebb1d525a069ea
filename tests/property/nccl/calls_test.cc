// Exchanges of the small worlds as calls that all their workers make together, on GPU workers, by NCCL's collectives:
// the outputs have the bits that Interpret says, and what workers count is what the plan says. And what happens when a
// worker takes no part, is lost, or doesn't wait.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "schemas/types/bounds.h"
#include "schemas/types/str_cat.h"
#include "tests/emulator/cuda/test_driver.h"
#include "tests/property/nccl/nccl_world.h"
#include "tests/property/planner/small_worlds.h"
#include "tests/support/plan_redistribute.h"
#include "tests/support/two_phases.h"

namespace tessera::testing {
namespace {

using ::testing::HasSubstr;

std::vector<Number> NumbersOf(const TensorSpec& spec) {
  std::vector<Number> numbers;
  for (int64_t i = 0; i < NumElements(spec.shape); ++i) {
    numbers.push_back(CastTo(spec.dtype, static_cast<double>(i * 7 % 23 - 9)));
  }
  return numbers;
}

void ExpectRuns(WorkerWorld& world, const Plan& plan) {
  std::vector<ShardedArray> inputs;
  for (const int input : plan.inputs) {
    const TensorSpec& spec = plan.values[static_cast<size_t>(input)].spec;
    inputs.push_back(SplitDense(spec, NumbersOf(spec)));
    for (auto& shard : inputs.back()) {
      for (Number& number : shard) number = CastTo(spec.dtype, number);
    }
  }
  auto want = Interpret(plan, inputs, {});
  ASSERT_TRUE(want.ok()) << want.status();
  const WorkerWorld::Result got = world.RunPlan(plan, inputs, {});
  ASSERT_TRUE(got.status.ok()) << got.status << "\n" << ToText(plan);
  for (size_t o = 0; o < got.outputs.size(); ++o) {
    for (size_t p = 0; p < got.outputs[o].size(); ++p) {
      ASSERT_TRUE(std::equal(got.outputs[o][p].begin(), got.outputs[o][p].end(), want->outputs[o][p].begin(),
                             want->outputs[o][p].end(), AreAlike))
          << ToText(plan);
    }
  }
  ExpectReceived(world, plan, *want, got.received_bytes);
  world.FreeAll();
}

// So many f32 in shards, to all workers.
absl::StatusOr<Plan> PlanGather(int elements, int workers) {
  const std::string tensor = StrCat("f32[", elements, "] @ mesh(", workers, ") ");
  return PlanRedistribute({*ParseTensorSpec(tensor + "[S(0)]"), {}}, *ParseTensorSpec(tensor + "[R]"));
}

struct World {
  std::vector<int64_t> mesh;
  std::vector<std::vector<int64_t>> shapes;
  DType dtype = DType::kF32;
  size_t stride = 1;
};

TEST(NcclCalls, HaveTheBitsOfInterpret) {
  const std::vector<World> worlds = {
      {{2}, {{4}, {7}, {4, 6}}, DType::kI64}, {{2}, {{4}, {2, 3}}, DType::kBF16}, {{3}, {{6}, {9, 2}}, DType::kU32},
      {{4}, {{8}, {4, 3}}, DType::kI32},      {{4}, {{8}, {1, 8}}, DType::kU64},  {{2, 2}, {{4, 4}}, DType::kI32, 2},
      {{2, 2}, {{8, 2}}, DType::kF32, 3},
  };
  CallCounts entered = {};
  for (const World& param : worlds) {
    const Mesh mesh = MakeMesh(param.mesh);
    WorkerWorld world(NcclCallsOptions(static_cast<int>(mesh.size()), entered));
    size_t number = 0;
    for (const auto& shape : param.shapes) {
      const auto placements = AllPlacements(mesh.ndim(), static_cast<int>(shape.size()), {ReduceOp::kSum});
      for (const Placements& from : placements) {
        for (const Placements& to : placements) {
          const TensorSpec source = MakeSpec(param.dtype, shape, mesh, from);
          const TensorSpec destination = MakeSpec(param.dtype, shape, mesh, to);
          for (const Topology& topology : {Topology::Of(DeviceKind::kCuda), InTwoPhases()}) {
            const auto plan = PlanRedistribute({source, {}}, destination, topology);
            if (!plan.ok() || number++ % param.stride != 0) continue;
            ASSERT_NO_FATAL_FAILURE(ExpectRuns(world, *plan));
          }
        }
      }
    }
  }
  // From one worker to all.
  WorkerWorld world(NcclCallsOptions(4, entered));
  const auto plan = PlanRedistribute({*ParseTensorSpec("f32[6] @ mesh(1; workers=1) [R]"), {}},
                                     *ParseTensorSpec("f32[6] @ mesh(4) [R]"));
  ASSERT_TRUE(plan.ok()) << plan.status();
  ExpectRuns(world, *plan);
  for (const CallKind kind : {CallKind::kAllGather, CallKind::kBroadcast, CallKind::kReduceScatter}) {
    EXPECT_GT(entered[static_cast<size_t>(kind)], 3) << ToText(kind);
  }
  for (const std::string& hazard : TestDriver::Get().Hazards()) ADD_FAILURE() << hazard;
}

// More sets than a leader keeps communicators of.
TEST(NcclCalls, OfMoreSetsThanThereIsRoomForAllPass) {
  CallCounts entered = {};
  WorkerWorld world(NcclCallsOptions(6, entered));
  for (int round = 0; round < 2; ++round) {
    for (int others = 1; others < 32; ++others) {
      std::vector<int32_t> workers = {0};
      for (int w = 1; w < 6; ++w) {
        if ((others >> (w - 1) & 1) != 0) workers.push_back(w);
      }
      const auto count = static_cast<int64_t>(workers.size());
      const Mesh mesh = MakeMesh({count}, workers);
      const auto plan = PlanRedistribute({MakeSpec(DType::kF32, {4 * count}, mesh, {Placement::Shard(0)}), {}},
                                         MakeSpec(DType::kF32, {4 * count}, mesh, {Placement::Replicate()}));
      ASSERT_TRUE(plan.ok()) << plan.status();
      ASSERT_NO_FATAL_FAILURE(ExpectRuns(world, *plan));
    }
  }
}

// Worker `who` can't run the instance: a buffer of it lies outside its arena.
TEST(NcclCalls, WhoTakesNoPartLeavesNobodyInside) {
  for (const int who : {0, 1, 2}) {
    CallCounts entered = {};
    WorkerWorld world(NcclCallsOptions(3, entered));
    const auto plan = PlanGather(6, 3);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const Instance instance = world.Place(*plan);
    for (int w = 0; w < 3; ++w) {
      Instance own = instance;
      if (w == who) own.buffer_offsets[0] = int64_t{1} << 40;
      world.at(w).Run(own);
    }
    const auto reports = world.WaitFor(instance.ordinal);
    ASSERT_EQ(reports.size(), 3u);
    for (const auto& [w, report] : reports) {
      EXPECT_THAT(std::string(report.status.message()),
                  HasSubstr(w == who ? "outside the arena" : StrCat("worker ", who, ": it takes no part")))
          << w;
      EXPECT_TRUE(report.received_bytes.empty());
    }
    world.FreeAll();
    ExpectRuns(world, *plan);  // the next one passes
  }
}

TEST(NcclCalls, ACallThatFailsEndsAtAllRanksAndTheNextOnePasses) {
  for (const char* call : {"ncclGetUniqueId:1", "ncclCommInitRankConfig:1", "ncclCommInitRankConfig:3",
                           "ncclAllGather:1", "ncclAllGather:2"}) {
    CallCounts entered = {};
    WorkerWorld world(NcclCallsOptions(3, entered));
    const auto plan = PlanGather(6, 3);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const Instance instance = world.Place(*plan);
    setenv("TESSERA_NCCL_FAIL", call, 1);
    world.Issue(instance);
    const auto reports = world.WaitFor(instance.ordinal);
    unsetenv("TESSERA_NCCL_FAIL");
    ASSERT_EQ(reports.size(), 3u) << call;
    for (const auto& [w, report] : reports)
      EXPECT_TRUE(absl::IsUnavailable(report.status)) << call << ": " << report.status;
    ASSERT_NO_FATAL_FAILURE(ExpectRuns(world, *plan)) << call;
  }
}

// A worker that reads what a call brings, and doesn't wait for the call, reads what was there before. The host that
// sees the read pass and begins the call then orders the two, so it is the values that tell.
TEST(NcclCalls, AWaitThatIsLeftOutIsFoundInEveryOrder) {
  const TestDriver& driver = TestDriver::Get();
  if (!driver.is_emulated()) GTEST_SKIP() << "a real driver's orders are not drawn";
  for (uint32_t seed = 0; seed < 20; ++seed) {
    for (const bool waits : {true, false}) {
      driver.Seed(seed);
      CallCounts entered = {};
      WorldOptions options = NcclCallsOptions(2, entered);
      options.goes_on = [waits](int worker, int) { return !waits && worker == 1; };
      WorkerWorld world(options);
      const auto plan = PlanGather(64, 2);
      ASSERT_TRUE(plan.ok()) << plan.status();
      const Instance instance = world.Place(*plan);
      const auto base = [&](const PlanValue& value) {
        return instance.buffer_offsets[static_cast<size_t>(value.buffer)];
      };
      const PlanValue& given = plan->values[static_cast<size_t>(plan->inputs[0])];
      const PlanValue& gathered = plan->values[static_cast<size_t>(plan->outputs[0])];
      world.Store(given, base(given), SplitDense(given.spec, NumbersOf(given.spec)));
      const size_t before = driver.Hazards().size();
      // Worker 1 alone comes: what it is to take isn't there when it goes on.
      world.at(1).Run(instance);
      if (!waits) world.WaitFor(instance.ordinal, 1);
      std::byte* const taken = world.arena(1).memory() + base(gathered);
      world.device(1).EnqueueRun(StreamId::kCompute, CopyWork{.extents = {32},
                                                              .source = taken,
                                                              .source_strides = {1},
                                                              .destination = taken + 32 * 4,
                                                              .destination_strides = {1}});
      std::atomic<bool> has_read = false;
      world.device(1).EnqueueReport(StreamId::kCompute, [&](absl::Status, const RunTimes&) { has_read = true; });
      while (!waits && !has_read) std::this_thread::yield();
      world.at(0).Run(instance);
      world.WaitFor(instance.ordinal);
      for (const int w : {0, 1}) world.device(w).Drain();
      while (!has_read) std::this_thread::yield();
      // By then the library's stream has passed, too: it is what worker 0 waits for.
      EXPECT_EQ(driver.Hazards().size(), before) << "seed " << seed;
      const std::vector<Number> got = world.Load(gathered, base(gathered))[1];
      const bool has_taken = std::equal(got.begin(), got.begin() + 32, got.begin() + 32, AreAlike);
      EXPECT_EQ(has_taken, waits) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace tessera::testing
