// 4,096 workers: descriptions stay small and planning stays quick.

#include <chrono>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/host/thread_clock.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/bounds.h"
#include "schemas/types/str_cat.h"
#include "server/plan/lower/program.h"
#include "server/plan/verify.h"
#include "server/planner/planner.h"
#include "tests/property/planner/small_worlds.h"
#include "tests/support/plan_redistribute.h"

namespace tessera {
namespace {

constexpr int64_t kMaxDescriptionBytes = int64_t{1} << 20;
// A fraction of a second on an idle machine; the tests share theirs.
constexpr std::chrono::milliseconds kPlanning(1000);  // of a core: what others do on it is not the planner's

std::chrono::nanoseconds CpuTime() { return std::chrono::nanoseconds(ThreadCpuNs()); }

Topology HostsOf(int64_t workers_of_a_host) {
  Topology topology;
  for (int64_t worker = 0; worker < 4096; ++worker) {
    topology.host_of_worker.push_back(static_cast<int32_t>(worker / workers_of_a_host));
  }
  return topology;
}

struct World {
  std::vector<int64_t> shape;
  int64_t workers_of_a_host = 4096;
};

class ManyWorkers : public testing::TestWithParam<World> {};

// Every ordered pair of placements: planned, verified, lowered and weighed in a fraction of a second, and the traffic
// is the bound's.
TEST_P(ManyWorkers, ArePlannedInOneMebibyte) {
  const Mesh mesh = MakeMesh({64, 64});
  const Topology topology = HostsOf(GetParam().workers_of_a_host);
  for (const Placements& from : AllPlacements(2, 2, {ReduceOp::kSum})) {
    for (const Placements& to : AllPlacements(2, 2, {ReduceOp::kSum})) {
      const TensorSpec source = MakeSpec(DType::kF32, GetParam().shape, mesh, from);
      const TensorSpec destination = MakeSpec(DType::kF32, GetParam().shape, mesh, to);
      const absl::StatusOr<RedistributeBound> bound = BoundRedistribute(source, destination);
      if (!bound.ok()) continue;
      SCOPED_TRACE(StrCat(ToText(from), " -> ", ToText(to)));
      const auto start = CpuTime();
      const absl::StatusOr<Plan> plan = PlanRedistribute({source, {}}, destination, topology);
      EXPECT_LT(CpuTime() - start, kPlanning);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_LE(DescriptionBytes(*plan), kMaxDescriptionBytes);
      const absl::Status verified = VerifyPlan(*plan);
      EXPECT_TRUE(verified.ok()) << verified;
      const absl::StatusOr<Program> program = LowerPlan(*plan, WorkerIndex(65), MessageLists::kBuild);
      ASSERT_TRUE(program.ok()) << program.status();
      EXPECT_GE(PredictSeconds(*plan, topology), 0);
      const PlanTraffic traffic = TrafficOf(*plan);
      const auto sum = [](const std::vector<int64_t>& bytes) {
        return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
      };
      EXPECT_EQ(sum(traffic.received_bytes), bound->total_bytes);
      EXPECT_EQ(sum(traffic.sent_bytes), bound->total_bytes);
      EXPECT_LT(CpuTime() - start, 4 * kPlanning);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Redistribute, ManyWorkers,
                         testing::Values(World{{65536, 49152}}, World{{65537, 4999}}, World{{65537, 4999}, 8},
                                         World{{65536, 49152}, 1}));

class ManyWorkersMatmul : public testing::TestWithParam<int64_t> {};

TEST_P(ManyWorkersMatmul, IsPlannedInOneMebibyte) {
  const Mesh mesh = MakeMesh({64, 64});
  const OperandLayout a = {MakeSpec(DType::kF32, {65536, 65536}, mesh, {Placement::Shard(0), Placement::Shard(1)}), {}};
  OpCall call;
  call.op = OpId::kMatmul;
  const auto start = CpuTime();
  const PlanOperand operands[] = {a, a};
  const absl::StatusOr<OpPlan> planned = PlanOp(call, operands, HostsOf(GetParam()));
  const auto elapsed = CpuTime() - start;
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_LE(DescriptionBytes(planned->plan), kMaxDescriptionBytes);
  EXPECT_LT(elapsed, 4 * kPlanning);
}

INSTANTIATE_TEST_SUITE_P(WorkersOfAHost, ManyWorkersMatmul, testing::Values(4096, 8, 1));

}  // namespace
}  // namespace tessera
