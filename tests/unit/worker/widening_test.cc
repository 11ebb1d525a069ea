// What is widened in its own memory, on real executors: over mapped memory, over messages, and on several hosts.

#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/kernel.h"
#include "schemas/types/str_cat.h"
#include "server/plan/widening.h"
#include "server/planner/planner.h"
#include "tests/support/two_phases.h"
#include "tests/unit/worker/worker_world.h"

namespace tessera::testing {
namespace {

std::vector<double> Numbers(const TensorSpec& spec, int seed) {
  std::vector<double> out(static_cast<size_t>(NumElements(spec.shape)));
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>((i * 7 + static_cast<size_t>(seed)) % 11) - 5;
  return out;
}

Plan PlanWidened(const std::vector<std::string>& sources, DType wide, const Placements& placements,
                 const Topology& topology) {
  OpCall call;
  call.op = OpId::kRedistribute;
  call.attributes.dtype = wide;
  std::vector<PlanOperand> operands;
  for (const std::string& source : sources) {
    operands.emplace_back(OperandLayout{*ParseTensorSpec(source), {}});
    call.attributes.placements_each.push_back(placements);
  }
  const absl::StatusOr<OpPlan> planned = PlanOp(call, operands, topology);
  EXPECT_TRUE(planned.ok()) << planned.status();
  return planned->plan;
}

int CountWidenings(const Plan& plan) {
  int count = 0;
  for (const Step& step : plan.steps) {
    const auto* local = std::get_if<LocalStep>(&step);
    count += local != nullptr && WidensInPlace(plan, *local) ? 1 : 0;
  }
  return count;
}

std::vector<ShardedArray> InputsOf(const Plan& plan) {
  std::vector<ShardedArray> inputs;
  for (const int input : plan.inputs) {
    const TensorSpec& spec = plan.values[static_cast<size_t>(input)].spec;
    inputs.push_back(SplitDense(spec, Numbers(spec, input)));
  }
  return inputs;
}

void ExpectRuns(WorkerWorld& world, const Plan& plan) {
  const std::vector<ShardedArray> inputs = InputsOf(plan);
  auto want = Interpret(plan, inputs, {});
  ASSERT_TRUE(want.ok()) << want.status() << "\n" << ToText(plan);
  const WorkerWorld::Result got = world.RunPlan(plan, inputs, {});
  ASSERT_TRUE(got.status.ok()) << got.status << "\n" << ToText(plan);
  EXPECT_TRUE(got.outputs == want->outputs) << ToText(plan);
  want->received_bytes.resize(static_cast<size_t>(world.size()), 0);
  EXPECT_EQ(got.received_bytes, want->received_bytes) << ToText(plan);
}

// How the workers reach each other, and on how many threads each computes.
struct Way {
  const char* name = "";
  Reach reach = Reach::kMapped;
  std::vector<int32_t> hosts;  // none: all on one, as far as plans know
  int64_t max_chunk_bytes = kMaxChunkBytes;
  int threads = 1;
};

class WideningWorkers : public ::testing::TestWithParam<Way> {
 protected:
  WideningWorkers() { SetKernelThreads(GetParam().threads); }
  ~WideningWorkers() override { SetKernelThreads(1); }

  static WorldOptions World(int64_t arena_bytes) {
    WorldOptions options;
    options.workers = 4;
    options.reach = GetParam().reach;
    options.hosts = GetParam().hosts;
    options.arena_bytes = arena_bytes;
    options.max_chunk_bytes = GetParam().max_chunk_bytes;
    return options;
  }
  static Topology Hosts(Topology topology) {
    topology.host_of_worker = GetParam().hosts;
    return topology;
  }
};

TEST_P(WideningWorkers, OfEveryPlacement) {
  WorkerWorld world(World(16 << 20));
  const std::pair<const char*, DType> kDTypes[] = {
      {"f16", DType::kF32}, {"bf16", DType::kF64}, {"i32", DType::kI64}, {"f32", DType::kF64}};
  int widened = 0;
  for (const char* shape : {"[1,1]", "[1,3]", "[7,5]", "[3,0]", "[37,41]"}) {
    for (const auto& [from, to] : kDTypes) {
      for (const char* source : {"[P(sum), R]", "[P(sum), P(sum)]", "[S(0), P(max)]", "[R, S(1)]", "[S(1), S(0)]"}) {
        for (const char* destination : {"[R, R]", "[R, S(0)]", "[S(1), R]"}) {
          for (const Topology& topology : {Hosts({}), Hosts(InTwoPhases())}) {
            const Plan plan = PlanWidened({StrCat(from, shape, " @ mesh(2,2) ", source)}, to,
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
  WorkerWorld world(World(1 << 20));
  const Plan plan = PlanWidened({"f32[7,5] @ mesh(4) [P(sum)]", "f16[5,9] @ mesh(4) [P(max)]",
                                 "i8[6] @ mesh(4) [P(sum)]", "f32[4,4] @ mesh(4) [S(0)]", "f64[3] @ mesh(4) [P(sum)]"},
                                DType::kF64, {Placement::Replicate()}, Hosts({}));
  EXPECT_GE(CountWidenings(plan), 3);
  ExpectRuns(world, plan);
}

// Large enough for several threads, parts and chunks; and of uneven rows.
TEST_P(WideningWorkers, OfMuch) {
  WorkerWorld world(World(48 << 20));
  const std::pair<const char*, const char*> kCases[] = {{"bf16[1031,500] @ mesh(2,2) [P(sum), P(sum)]", "[R, R]"},
                                                        {"f32[500,1031] @ mesh(2,2) [P(sum), R]", "[R, S(1)]"}};
  for (const auto& [source, destination] : kCases) {
    const Plan plan = PlanWidened({source}, DType::kF64, *ParsePlacements(destination), Hosts({}));
    EXPECT_EQ(CountWidenings(plan), 1) << ToText(plan);
    const WorkerWorld::Result got = world.RunPlan(plan, InputsOf(plan), {});
    ASSERT_TRUE(got.status.ok()) << got.status;
    const TensorSpec& spec = plan.values[static_cast<size_t>(plan.outputs[0])].spec;
    EXPECT_TRUE(got.outputs[0] == SplitDense(spec, Numbers(spec, plan.inputs[0]))) << ToText(plan);
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, WideningWorkers,
                         ::testing::Values(Way{"Mapped", Reach::kMapped, {}},
                                           Way{"OnSeveralThreads", Reach::kMapped, {}, kMaxChunkBytes, 4},
                                           Way{"Messages", Reach::kMessages, {}},
                                           Way{"SmallChunks", Reach::kMessages, {}, 1000},
                                           Way{"TwoHosts", Reach::kMapped, {0, 0, 1, 1}},
                                           Way{"ThreeHosts", Reach::kMapped, {0, 1, 1, 2}, 4096, 2}),
                         [](const auto& way) { return way.param.name; });

TEST(WideningHazards, NothingIsOverwrittenThatIsRead) {
  for (const std::vector<int32_t>& hosts : {std::vector<int32_t>{}, {0, 0, 1, 1}, {0, 1, 0, 1}}) {
    for (const char* source : {"[P(sum)]", "[S(1)]"}) {
      Topology topology = InTwoPhases();
      topology.host_of_worker = hosts;
      const Plan plan = PlanWidened({StrCat("f32[2,8] @ mesh(4) ", source), "f16[6,3] @ mesh(4) [P(max)]"}, DType::kF64,
                                    {Placement::Replicate()}, topology);
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
  const Plan plan = PlanWidened({"f32[2,8] @ mesh(4) [S(1)]"}, DType::kF64, {Placement::Replicate()}, topology);
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
