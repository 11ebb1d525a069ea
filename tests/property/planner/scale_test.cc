// 4,096 workers: descriptions stay small and planning stays quick.

#include <chrono>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/bounds.h"
#include "schemas/types/str_cat.h"
#include "server/plan/program.h"
#include "server/plan/verify.h"
#include "server/planner/planner.h"
#include "server/planner/redistribute.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

constexpr int64_t kMaxDescriptionBytes = int64_t{1} << 20;
// A fraction of a second on an idle machine; the tests share theirs.
constexpr std::chrono::milliseconds kPlanning(1000);

class ManyWorkers : public testing::TestWithParam<std::vector<int64_t>> {};

// Every ordered pair of placements: planned, verified, lowered and weighed in a fraction of a second, and the traffic
// is the bound's.
TEST_P(ManyWorkers, ArePlannedInOneMebibyte) {
  const Mesh mesh = MakeMesh({64, 64});
  for (const Placements& from : AllPlacements(2, 2, {ReduceOp::kSum})) {
    for (const Placements& to : AllPlacements(2, 2, {ReduceOp::kSum})) {
      const TensorSpec source = MakeSpec(DType::kF32, GetParam(), mesh, from);
      const TensorSpec destination = MakeSpec(DType::kF32, GetParam(), mesh, to);
      const absl::StatusOr<RedistributeBound> bound = BoundRedistribute(source, destination);
      if (!bound.ok()) continue;
      SCOPED_TRACE(StrCat(ToText(from), " -> ", ToText(to)));
      const auto start = std::chrono::steady_clock::now();
      const absl::StatusOr<Plan> plan = PlanRedistribute({source, {}}, destination);
      EXPECT_LT(std::chrono::steady_clock::now() - start, kPlanning);
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_LE(DescriptionBytes(*plan), kMaxDescriptionBytes);
      const absl::Status verified = VerifyPlan(*plan);
      EXPECT_TRUE(verified.ok()) << verified;
      const absl::StatusOr<Program> program = LowerPlan(*plan, WorkerIndex(65), MessageLists::kBuild);
      ASSERT_TRUE(program.ok()) << program.status();
      EXPECT_GE(PredictSeconds(*plan, Topology()), 0);
      const PlanTraffic traffic = TrafficOf(*plan);
      const auto sum = [](const std::vector<int64_t>& bytes) {
        return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
      };
      EXPECT_EQ(sum(traffic.received_bytes), bound->total_bytes);
      EXPECT_EQ(sum(traffic.sent_bytes), bound->total_bytes);
      EXPECT_LT(std::chrono::steady_clock::now() - start, 4 * kPlanning);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Redistribute, ManyWorkers,
                         testing::Values(std::vector<int64_t>{65536, 49152}, std::vector<int64_t>{65537, 4999}));

TEST(ManyWorkersMatmul, IsPlannedInOneMebibyte) {
  const Mesh mesh = MakeMesh({64, 64});
  const OperandLayout a = {MakeSpec(DType::kF32, {65536, 65536}, mesh, {Placement::Shard(0), Placement::Shard(1)}), {}};
  OpCall call;
  call.op = OpId::kMatmul;
  const auto start = std::chrono::steady_clock::now();
  const PlanOperand operands[] = {a, a};
  const absl::StatusOr<OpPlan> planned = PlanOp(call, operands, Topology());
  const auto elapsed = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_LE(DescriptionBytes(planned->plan), kMaxDescriptionBytes);
  EXPECT_LT(elapsed, 4 * kPlanning);
}

}  // namespace
}  // namespace tessera
