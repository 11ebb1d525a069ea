// The worker's executor on CUDA devices that map each other's memory: with all of its waits the emulated driver finds
// no hazard in any order that it takes, and without one of them it does in every order.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "server/device/cuda/cuda_platform.h"
#include "tests/emulator/cuda/test_driver.h"
#include "tests/support/plan_redistribute.h"
#include "tests/support/two_phases.h"
#include "tests/unit/worker/worker_world.h"

namespace tessera::testing {
namespace {

constexpr uint8_t kCompute = 0, kExchange = 1;
constexpr int kSeeds = 20, kNone = -1;

TensorSpec Spec(std::string_view text) { return *ParseTensorSpec(text); }
Plan ToColumns() {
  return *PlanRedistribute({Spec("f32[8,8] @ mesh(2) [S(0)]"), {}}, Spec("f32[8,8] @ mesh(2) [S(1)]"));
}
Plan ToRows() { return *PlanRedistribute({Spec("f32[8,8] @ mesh(2) [S(1)]"), {}}, Spec("f32[8,8] @ mesh(2) [S(0)]")); }
// Phases: what the first one reduces the second one spreads.
Plan AllReduce() {
  return *PlanRedistribute({Spec("f32[8] @ mesh(2) [P(sum)]"), {}}, Spec("f32[8] @ mesh(2) [R]"), InTwoPhases());
}

Plan Widened() { return *PlanRedistribute({Spec("f32[8] @ mesh(2) [R]"), {}}, Spec("f64[8] @ mesh(2) [R]")); }

ShardedArray Counting(const TensorSpec& spec) {
  std::vector<Number> numbers;
  for (int64_t i = 1; i <= NumElements(spec.shape); ++i) numbers.emplace_back(static_cast<double>(i));
  return SplitDense(spec, numbers);
}

class CudaExecutor : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!TestDriver::Get().is_emulated()) GTEST_SKIP() << "hazards are what the emulated driver finds";
    seen_ = TestDriver::Get().Hazards().size();
  }
  // The options of two workers. Among the waits for counters that `worker` makes, one is left out by its number.
  WorldOptions Options(int worker = kNone, int left_out = kNone) {
    WorldOptions options;
    options.platform = [](int w) -> std::unique_ptr<Platform> {
      auto platform =
          MakeCudaPlatform({.gpu = 0, .worker = w, .lost = [](const absl::Status& why) { ADD_FAILURE() << why; }});
      EXPECT_TRUE(platform.ok()) << platform.status();
      return *std::move(platform);
    };
    for (std::atomic<int>& count : waits_) count = 0;
    options.skips = [this, worker, left_out](int w, const CounterWait&) {
      const int number = waits_[w]++;
      return w == worker && number == left_out;
    };
    return options;
  }
  // The hazards since the last time.
  std::vector<std::string> NewHazards() {
    std::vector<std::string> all = TestDriver::Get().Hazards();
    std::vector<std::string> since(all.begin() + static_cast<std::ptrdiff_t>(seen_), all.end());
    seen_ = all.size();
    return since;
  }
  void ExpectNone(uint32_t seed) {
    for (const std::string& hazard : NewHazards()) ADD_FAILURE() << "seed " << seed << ": " << hazard;
  }

  std::atomic<int> waits_[2] = {};
  size_t seen_ = 0;
};

InstanceWait Own(Ordinal ordinal) { return {1, kCompute, ordinal, WaitScope::kOwn, {}}; }
InstanceWait ReadsFrom(Ordinal ordinal) { return {1, kCompute, ordinal, WaitScope::kReadsFrom, {}}; }

// Nothing runs before all is enqueued: what is enqueued behind a signal that the host has seen is ordered by that.
void IssueHeld(WorkerWorld& world, const std::vector<Instance>& instances, int queued) {
  TestDriver::Get().Hold();
  for (const Instance& instance : instances) world.Issue(instance);
  TestDriver::Get().AwaitQueued(queued);
  TestDriver::Get().Release();
  for (const Instance& instance : instances) {
    for (const auto& [worker, report] : world.WaitFor(instance.ordinal))
      EXPECT_TRUE(report.status.ok()) << report.status;
  }
}

// Rows to columns, and on another stream columns to rows, into the memory that the first one read.
void ThereAndBack(WorkerWorld& world, const std::vector<InstanceWait>& waits) {
  const Plan there = ToColumns(), back = ToRows();
  const PlanValue& input = there.values[static_cast<size_t>(there.inputs[0])];
  const TemplateId there_id = world.Define(there), back_id = world.Define(back);
  const int64_t a = world.Allocate(128), b = world.Allocate(128);
  const ShardedArray rows = Counting(input.spec);
  world.Store(input, a, rows);
  const Ordinal first = world.NextOrdinal(), second = world.NextOrdinal();
  ASSERT_EQ(first, Ordinal(1));
  // Each instance is two copies, a signal and a report on each worker; and three to a wait.
  const int queued = 16 + 6 * static_cast<int>(waits.size());
  IssueHeld(
      world,
      {{.ordinal = first, .plan = there_id, .stream = kCompute, .buffer_offsets = {a, b}, .scalars = {}, .waits = {}},
       {.ordinal = second,
        .plan = back_id,
        .stream = kExchange,
        .buffer_offsets = {b, a},
        .scalars = {},
        .waits = waits}},
      queued);
  if (waits.size() == 2) {
    EXPECT_EQ(world.Load(input, a), rows);
  }
}

TEST_F(CudaExecutor, WaitsOfAnInstanceLeaveNoHazardAndWithoutOneThereIs) {
  const std::vector<InstanceWait> all = {Own(Ordinal(1)), ReadsFrom(Ordinal(1))};
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    TestDriver::Get().Seed(seed);
    {
      WorkerWorld world(Options());
      ThereAndBack(world, all);
    }
    ExpectNone(seed);
    for (const auto& [name, kept] : {std::pair("reads what the peer may still write", std::vector{all[0]}),
                                     std::pair("writes what the own worker may still read", std::vector{all[1]}),
                                     std::pair("waits for nothing", std::vector<InstanceWait>())}) {
      {
        WorkerWorld world(Options());
        ThereAndBack(world, kept);
      }
      EXPECT_FALSE(NewHazards().empty()) << "seed " << seed << ": " << name;
    }
  }
}

TEST_F(CudaExecutor, WaitsBetweenPhasesLeaveNoHazardAndWithoutOneThereIs) {
  const Plan plan = AllReduce();
  ASSERT_EQ(plan.steps.size(), 2u);
  constexpr int kQueued = 38, kMostOfAWait = 3;
  const TensorSpec& spec = plan.values[static_cast<size_t>(plan.inputs[0])].spec;
  const auto run = [&](const WorldOptions& options, int queued) {
    WorkerWorld world(options);
    const PlanValue& input = plan.values[static_cast<size_t>(plan.inputs[0])];
    const PlanValue& output = plan.values[static_cast<size_t>(plan.outputs[0])];
    const TemplateId reduces = world.Define(plan), reads = world.Define(Widened());
    const int64_t a = world.Allocate(64), b = world.Allocate(64), read = world.Allocate(64);
    world.Store(input, a, Counting(spec));
    world.Store(output, b, ShardedArray(2, Counting(Spec("f32[8] @ mesh(1) [R]"))[0]));
    // Others of its stream read the memory that a peer stores into before and behind it.
    std::vector<Instance> instances;
    for (const auto& [id, offsets] : {std::pair(reads, std::vector{b, read}), std::pair(reduces, std::vector{a, b}),
                                      std::pair(reads, std::vector{b, read})}) {
      instances.push_back({.ordinal = world.NextOrdinal(),
                           .plan = id,
                           .stream = kExchange,
                           .buffer_offsets = {offsets[0], offsets[1]},
                           .scalars = {},
                           .waits = {}});
    }
    IssueHeld(world, instances, queued);
    return world.Load(output, b);
  };
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    TestDriver::Get().Seed(seed);
    EXPECT_EQ(run(Options(), kQueued)[0], Counting(Spec("f32[8] @ mesh(1) [R]"))[0]);
    ExpectNone(seed);
    for (int worker = 0; worker < 2; ++worker) {
      const int waits = waits_[worker];
      ASSERT_GT(waits, 0);
      for (int left_out = 0; left_out < waits; ++left_out) {
        (void)run(Options(worker, left_out), kQueued - kMostOfAWait);
        EXPECT_FALSE(NewHazards().empty()) << "seed " << seed << ", wait " << left_out << " of worker " << worker;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::testing
