// Plans of several hosts on real executors: mapped memory on a host, messages between hosts.

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "schemas/types/str_cat.h"
#include "server/planner/relays.h"
#include "server/planner/rounds.h"
#include "tests/support/plan_redistribute.h"
#include "tests/support/two_phases.h"
#include "tests/unit/worker/worker_world.h"

namespace tessera::testing {
namespace {

constexpr uint8_t kCompute = 0, kExchange = 1;

using Hosts = std::vector<int32_t>;

TensorSpec Spec(std::string_view text) { return *ParseTensorSpec(text); }

std::vector<double> Numbers(const TensorSpec& spec) {
  std::vector<double> out(static_cast<size_t>(NumElements(spec.shape)));
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(i * 7 % 11) - 5;
  return out;
}

Plan PlanOn(const Hosts& hosts, const TensorSpec& source, const TensorSpec& destination, Topology topology = {}) {
  topology.host_of_worker = hosts;
  auto plan = PlanRedistribute({source, {}}, destination, topology);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

WorldOptions OptionsOf(const Hosts& hosts) {
  WorldOptions options;
  options.workers = static_cast<int>(hosts.size());
  options.hosts = hosts;
  return options;
}

void ExpectRuns(WorkerWorld& world, const Plan& plan) {
  const TensorSpec& spec = plan.values[static_cast<size_t>(plan.inputs[0])].spec;
  const std::vector<ShardedArray> inputs = {SplitDense(spec, Numbers(spec))};
  auto want = Interpret(plan, inputs, {});
  ASSERT_TRUE(want.ok()) << want.status() << "\n" << ToText(plan);
  const WorkerWorld::Result got = world.RunPlan(plan, inputs, {});
  ASSERT_TRUE(got.status.ok()) << got.status << "\n" << ToText(plan);
  EXPECT_EQ(got.outputs[0], want->outputs[0]) << ToText(plan);
  ExpectReceived(world, plan, *want, got.received_bytes);
}

class HostPlans : public ::testing::TestWithParam<Hosts> {};

// By way of relays, whatever the prediction says: own and other workers of the mesh as the source, views of pairs.
TEST(RelayedPlans, AreRunByRealExecutors) {
  for (const Hosts& hosts : {Hosts{0, 1, 2, 3}, Hosts{0, 0, 1, 2}, Hosts{0, 1, 1, 1}}) {
    WorldOptions options = OptionsOf(hosts);
    options.arena_bytes = 4 << 20;
    WorkerWorld world(options);
    for (const char* from : {"mesh(1; workers=0) [R]", "mesh(1; workers=3) [R]", "mesh(2; workers=0,3) [S(0)]",
                             "mesh(2,2) [S(0), R]", "mesh(2,2) [S(1), S(0)]"}) {
      for (const char* to : {"mesh(2,2) [R, R]", "mesh(2,2) [S(1), R]", "mesh(4) [R]"}) {
        Plan plan = PlanOn(hosts, Spec(StrCat("f32[300,70] @ ", from)), Spec(StrCat("f32[300,70] @ ", to)));
        ASSERT_FALSE(plan.steps.empty());
        const ExchangeStep& move = std::get<ExchangeStep>(plan.steps[0]);
        if (move.exchange.role != ExchangeRole::kMove) continue;
        const std::vector<ExchangeStep> relayed = Relayed(move);
        plan.steps.assign(relayed.begin(), relayed.end());
        ExpectRuns(world, plan);
        if (HasFailure()) return;
      }
    }
  }
}

// By rounds, whatever the prediction says; also where all map each other, though nobody plans it there.
TEST(PlansByRounds, AreRunByRealExecutors) {
  for (const Hosts& hosts :
       {Hosts{0, 1, 2, 3}, Hosts{0, 0, 1, 1, 2, 2, 3, 3}, Hosts{0, 1, 2, 3, 0, 1, 2, 3}, Hosts{0, 0, 0, 0}}) {
    WorldOptions options = OptionsOf(hosts);
    options.arena_bytes = 4 << 20;
    WorkerWorld world(options);
    const std::string mesh = StrCat(" @ mesh(", hosts.size(), ") ");
    for (const char* shape : {"f32[]", "f32[3]", "f32[37,5]", "f32[300,70]"}) {
      for (const char* from : {"[P(sum)]", "[P(avg)]", "[P(max)]", "[S(0)]"}) {
        if (std::string_view(shape) == "f32[]" && std::string_view(from) == "[S(0)]") continue;
        Plan plan = PlanOn(hosts, Spec(StrCat(shape, mesh, from)), Spec(StrCat(shape, mesh, "[R]")));
        ASSERT_FALSE(plan.steps.empty());
        ExchangeStep first = std::get<ExchangeStep>(plan.steps[0]);
        first.exchange.far_takers = FarTakers::kEach;
        const std::vector<ExchangeStep> rounds = ByRounds(first, {2, 2});
        ASSERT_FALSE(rounds.empty()) << ToText(plan);
        plan.steps.assign(rounds.begin(), rounds.end());
        for (int again = 0; again < 3; ++again) ExpectRuns(world, plan);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(HostPlans, EveryRedistributionOnTwoByTwo) {
  std::vector<Placement> kinds = {Placement::Replicate(), Placement::Shard(0), Placement::Shard(1)};
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
    WorldOptions options = OptionsOf(GetParam());
    options.arena_bytes = 4 << 20;
    WorkerWorld world(options);
    const Mesh mesh = *Mesh::Make({2, 2}, {}, {});
    kinds.push_back(Placement::Partial(op));
    for (size_t source = 0; source < 16; ++source) {
      for (size_t destination = 0; destination < 9; ++destination) {
        const Placements from = {kinds[source / 4], kinds[source % 4]};
        const Placements to = {kinds[destination / 3], kinds[destination % 3]};
        for (const DType to_dtype : {DType::kF32, DType::kF64, DType::kI16}) {  // the same, or converted on the way
          auto a = TensorSpec::Make("test", DType::kF32, {7, 5}, mesh, from);
          auto b = TensorSpec::Make("test", to_dtype, {7, 5}, mesh, to);
          ASSERT_TRUE(a.ok() && b.ok());
          const Plan plan = PlanOn(GetParam(), *a, *b), large = PlanOn(GetParam(), *a, *b, InTwoPhases());
          ExpectRuns(world, plan);
          if (!(large == plan)) ExpectRuns(world, large);
        }
        if (HasFailure()) return;
      }
    }
    kinds.pop_back();
  }
}

INSTANTIATE_TEST_SUITE_P(Hosts, HostPlans,
                         ::testing::Values(Hosts{0, 0, 1, 1}, Hosts{0, 1, 0, 1}, Hosts{0, 0, 0, 1}, Hosts{0, 1, 1, 2}));

TEST(HostPlans, LongRowsOfThreeHosts) {
  const Hosts hosts = {0, 1, 2, 0, 1, 2};
  WorldOptions options = OptionsOf(hosts);
  options.arena_bytes = 8 << 20;
  WorkerWorld world(options);
  for (const char* to : {"R", "S(0)", "S(1)"}) {
    for (const Topology& topology : {Topology(), InTwoPhases()}) {
      ExpectRuns(world, PlanOn(hosts, Spec("i64[130,96] @ mesh(6) [P(product)]"),
                               Spec(StrCat("i64[130,96] @ mesh(6) [", to, "]")), topology));
    }
  }
}

// Where the plan's hosts are not those that are reached so, nobody gets a wrong answer.
TEST(HostPlans, APeerOfTheOwnHostThatIsNotMappedIsNamed) {
  const Hosts hosts = {0, 0, 1, 1};
  WorkerWorld world(OptionsOf(hosts));
  world.Unmap(2, 3);
  world.Unmap(3, 2);
  const Plan plan = PlanOn(hosts, Spec("f64[8] @ mesh(4) [P(sum)]"), Spec("f64[8] @ mesh(2) [R]"));
  const TensorSpec& spec = plan.values[static_cast<size_t>(plan.inputs[0])].spec;
  const WorkerWorld::Result got = world.RunPlan(plan, {SplitDense(spec, Numbers(spec))}, {});
  EXPECT_EQ(got.status.code(), absl::StatusCode::kInvalidArgument);  // of a receiver: the message has another size
  const auto reports = world.WaitFor(Ordinal(1));
  for (const int worker : {2, 3}) {
    const absl::Status& status = reports.at(worker).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_NE(status.message().find(StrCat("worker ", 5 - worker, ": its memory is not mapped")), std::string::npos)
        << status;
  }
}

TEST(HostPlans, APeerOfAnotherHostThatIsMappedIsNamed) {
  WorkerWorld world({.workers = 4});
  const Plan plan = PlanOn({0, 0, 1, 1}, Spec("f64[8] @ mesh(4) [P(sum)]"), Spec("f64[8] @ mesh(2) [R]"));
  const TensorSpec& spec = plan.values[static_cast<size_t>(plan.inputs[0])].spec;
  const WorkerWorld::Result got = world.RunPlan(plan, {SplitDense(spec, Numbers(spec))}, {});
  EXPECT_EQ(got.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(got.status.message().find("worker 2: its memory is mapped"), std::string::npos) << got.status;
}

// A worker that shares what a mate took waits until the mate has it; one that writes the result again waits for its
// readers.
TEST(HostHazards, WhoSharesWaitsForTheTaker) {
  const Hosts hosts = {0, 0, 1, 1};
  // Columns: messages are copied to their place, where the recorder sees it.
  const Plan gather = PlanOn(hosts, Spec("f64[2,8] @ mesh(4) [S(1)]"), Spec("f64[2,8] @ mesh(4) [R]"));
  ASSERT_EQ(gather.steps.size(), 2u) << ToText(gather);
  for (uint32_t seed = 0; seed < 10; ++seed) {
    for (const bool waits : {true, false}) {
      HazardRecorder recorder(seed);
      WorldOptions options = OptionsOf(hosts);
      options.recorder = &recorder;
      WorkerWorld world(options);
      const TemplateId id = world.Define(gather);
      const int64_t a = world.Allocate(32), b = world.Allocate(128);
      const Ordinal first = world.NextOrdinal(), second = world.NextOrdinal();
      world.Issue(
          {.ordinal = first, .plan = id, .stream = kCompute, .buffer_offsets = {a, b}, .scalars = {}, .waits = {}});
      Instance run{.ordinal = second,
                   .plan = id,
                   .stream = kExchange,
                   .buffer_offsets = {a, b},
                   .scalars = {},
                   .waits = {{1, kCompute, first, WaitScope::kOwn, {}}}};
      std::vector<WorkerIndex> all;
      for (int w = 0; w < 4; ++w) all.emplace_back(w);
      if (waits) run.waits.push_back({1, kCompute, first, WaitScope::kWorkers, all});
      world.Issue(run);
      world.WaitFor(second);
      EXPECT_EQ(recorder.hazards().empty(), waits) << (waits ? recorder.hazards()[0] : "");
    }
  }
}

// A sum whose terms were written by another stream's redistribution.
TEST(HostHazards, WhoAddsUpForOthersWaitsForItsHost) {
  const Hosts hosts = {0, 0, 1, 1};
  const Plan write = PlanOn(hosts, Spec("f64[8] @ mesh(4) [S(0)]"), Spec("f64[8] @ mesh(4) [R]"));
  Plan sum = PlanOn(hosts, Spec("f64[8] @ mesh(4) [P(sum)]"), Spec("f64[8] @ mesh(2) [S(0)]"));
  for (uint32_t seed = 0; seed < 10; ++seed) {
    for (const bool waits : {true, false}) {
      HazardRecorder recorder(seed);
      WorldOptions options = OptionsOf(hosts);
      options.recorder = &recorder;
      WorkerWorld world(options);
      const TemplateId written = world.Define(write), summed = world.Define(sum);
      const int64_t a = world.Allocate(64), b = world.Allocate(64), c = world.Allocate(64);
      const Ordinal first = world.NextOrdinal(), second = world.NextOrdinal();
      world.Issue({.ordinal = first,
                   .plan = written,
                   .stream = kCompute,
                   .buffer_offsets = {a, b},
                   .scalars = {},
                   .waits = {}});
      Instance run{.ordinal = second,
                   .plan = summed,
                   .stream = kExchange,
                   .buffer_offsets = {b, c},
                   .scalars = {},
                   .waits = {{1, kCompute, first, WaitScope::kOwn, {}}}};
      if (waits) run.waits.push_back({1, kCompute, first, WaitScope::kReadsFrom, {}});
      world.Issue(run);
      world.WaitFor(second);
      int hazards = 0;
      for (const std::string& hazard : recorder.hazards()) {
        hazards += hazard.find("worker 2 exchange reduce") != std::string::npos ||
                   hazard.find("worker 3 exchange reduce") != std::string::npos;
      }
      EXPECT_EQ(recorder.hazards().empty(), waits) << (waits ? recorder.hazards()[0] : "");
      EXPECT_EQ(hazards > 0, !waits);
    }
  }
}

}  // namespace
}  // namespace tessera::testing
