// 4,096 workers: descriptions stay small and planning stays quick.

#include <chrono>
#include <cstdint>
#include <string>

#include "gtest/gtest.h"
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

struct Case {
  const char* source;
  const char* destination;
};

class ManyWorkers : public testing::TestWithParam<Case> {};

TEST_P(ManyWorkers, ArePlannedInOneMebibyte) {
  const Mesh mesh = MakeMesh({64, 64});
  const TensorSpec source = MakeSpec(DType::kF32, {65536, 49152}, mesh, *ParsePlacements(GetParam().source));
  const TensorSpec destination = MakeSpec(DType::kF32, {65536, 49152}, mesh, *ParsePlacements(GetParam().destination));
  const auto start = std::chrono::steady_clock::now();
  const absl::StatusOr<Plan> plan = PlanRedistribute({source, {}}, destination);
  const auto planned = std::chrono::steady_clock::now() - start;
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LE(DescriptionBytes(*plan), kMaxDescriptionBytes);
  EXPECT_LT(planned, kPlanning);
  const absl::Status verified = VerifyPlan(*plan);
  EXPECT_TRUE(verified.ok()) << verified;
  const absl::StatusOr<Program> program = LowerPlan(*plan, WorkerIndex(65), MessageLists::kOmit);
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_GT(PredictSeconds(*plan, Topology()), 0);
}

INSTANTIATE_TEST_SUITE_P(Redistribute, ManyWorkers,
                         testing::Values(Case{"[S(0), S(1)]", "[S(1), S(0)]"}, Case{"[S(0), S(0)]", "[R, S(1)]"},
                                         Case{"[P(sum), P(sum)]", "[R, R]"}, Case{"[P(sum), S(0)]", "[R, R]"},
                                         Case{"[P(sum), R]", "[R, S(0)]"}, Case{"[S(0), S(0)]", "[S(1), S(1)]"}));

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
