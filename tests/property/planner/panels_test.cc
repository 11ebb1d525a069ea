// Contractions whose operands come in panels of an inner letter: the answer and the bytes received are those of the
// whole, and the sums are the same with little memory.

#include "server/planner/inner_panels.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/str_cat.h"
#include "server/plan/verify.h"
#include "tests/property/planner/contraction_case.h"
#include "tests/property/planner/small_worlds.h"

namespace tessera {
namespace {

using Case = ContractionCase;

bool IsInPanels(const Plan& plan) { return plan.grid.find(" panels of ") != std::string::npos; }
bool IsInParts(const Plan& plan) { return plan.grid.find(" parts over ") != std::string::npos; }

// Numbers whose sums are rounded, so that they differ with their order.
std::vector<double> Fractions(const TensorSpec& spec, int64_t seed) {
  std::vector<double> numbers = Numbers(spec, seed);
  for (double& number : numbers) number /= 7;
  return numbers;
}

struct Tally {
  int panels = 0;
  int with_two_letters = 0;
  int in_cuts = 0;
  int at_once = 0;
  int in_turns = 0;
  int in_parts = 0;
  int refused = 0;
};

// Panels with less memory: the sums are the same, to the last bit, and nothing is refused that fits without panels.
void CheckLimit(const Case& c, const Plan& plan, int64_t limit_bytes, Tally& tally) {
  const absl::StatusOr<Plan> limited = PlanCase(c, {limit_bytes});
  Case without = c;
  without.overlap = {.worthwhile = 0};
  const absl::StatusOr<Plan> otherwise = PlanCase(without, {limit_bytes});
  ASSERT_TRUE(limited.ok() || !otherwise.ok()) << ToText(c) << limited.status();
  if (!limited.ok()) {
    ASSERT_EQ(limited.status(), otherwise.status());
    ++tally.refused;
    return;
  }
  const std::string text = StrCat(ToText(c), " within ", limit_bytes, "\n", ToText(*limited), "\n", ToText(plan));
  ASSERT_LE(TemporariesOf(*limited), limit_bytes) << text;
  ASSERT_TRUE(IsInPanels(*limited)) << text;
  ASSERT_EQ(CountBesideProducts(*limited), 0) << text;
  ASSERT_TRUE(!otherwise.ok() || ReceivedBy(*limited) <= ReceivedBy(*otherwise)) << text;
  const bool is_in_turns = limited->grid.find(", one after the other: ") != std::string::npos;
  ++(IsInParts(*limited) ? tally.in_parts : is_in_turns ? tally.in_turns : tally.at_once);
  // Interpret adds up what is read in pieces in the order of the letters; workers do so within a piece.
  const bool has_one_order = LettersOf(c.notation, LetterRole::kInner).size() == 1;
  const auto numbers = has_one_order ? &Fractions : &Numbers;
  const std::vector<std::vector<double>> operands = {numbers(c.left, 1), numbers(c.right, 2)};
  const auto got = RunPlan(*limited, operands, {});
  const auto want = RunPlan(plan, operands, {});
  ASSERT_TRUE(got.ok() && want.ok()) << got.status() << text;
  ASSERT_EQ(*got, *want) << text;
  ASSERT_EQ(*ParsePlan(ToText(*limited)), *limited) << text;
  if (c.left.dtype != DType::kF64 || c.right.dtype != DType::kF64) return;
  const absl::Status programs = CheckPrograms(*limited, operands);
  ASSERT_TRUE(programs.ok()) << programs << text;
}

// A plan in panels, if there is one, does what the whole one does.
void CheckPanels(Case c, int64_t count, Tally& tally) {
  const absl::StatusOr<Plan> whole = PlanCase(c, {});
  if (!whole.ok()) return;
  c.overlap = {.least_extent = 1, .least_parts = count, .most_parts = count, .worthwhile = 1e9};
  const absl::StatusOr<Plan> plan = PlanCase(c, {});
  ASSERT_TRUE(plan.ok()) << plan.status();

  if (!IsInPanels(*plan)) return;
  ++tally.panels;
  tally.with_two_letters += plan->grid.find(" in all of its ") != std::string::npos ? 1 : 0;
  const std::string text = StrCat(ToText(c), "\n", ToText(*plan), "\nwhole ", ToText(*whole));
  const int panels = CountBesideProducts(*plan) + 1;
  ASSERT_GT(panels, 1) << text;
  ASSERT_LE(panels, count) << text;
  ASSERT_EQ(CountProducts(*plan) % panels, 0) << text;
  tally.in_cuts += CountProducts(*plan) > panels ? 1 : 0;
  ASSERT_TRUE(VerifyPlan(*plan).ok()) << VerifyPlan(*plan) << text;
  ASSERT_EQ(*ParsePlan(ToText(*plan)), *plan) << text;
  ASSERT_EQ(plan->implicit, whole->implicit) << text;
  const std::vector<std::vector<double>> operands = {Numbers(c.left, 1), Numbers(c.right, 2)};
  const auto got = RunPlan(*plan, operands, {});
  const auto want = RunPlan(*whole, operands, {});
  ASSERT_TRUE(got.ok() && want.ok()) << got.status() << text;
  ASSERT_EQ(*got, *want) << text;
  ASSERT_EQ(TrafficOf(*plan).received_bytes, TrafficOf(*whole).received_bytes) << text;
  if (c.left.dtype == DType::kF64 && c.right.dtype == DType::kF64) {
    const absl::Status programs = CheckPrograms(*plan, operands);
    ASSERT_TRUE(programs.ok()) << programs << text;
  }
  const int64_t bytes = TemporariesOf(*plan);
  const int64_t whole_bytes = TemporariesOf(*whole);
  const absl::StatusOr<Plan> as_much = PlanCase(c, {bytes});
  ASSERT_TRUE(as_much.ok() && *as_much == *plan) << text;
  for (const int64_t limit_bytes : {bytes - 1, whole_bytes, whole_bytes - 1, whole_bytes / 2, whole_bytes / 5}) {
    if (limit_bytes >= bytes) continue;
    CheckLimit(c, *plan, limit_bytes, tally);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

void CheckPlacements(const Mesh& mesh, const Case& shapes, const std::vector<int32_t>& hosts, size_t stride,
                     Tally& tally) {
  ForPlacements(mesh, shapes, stride, [&](Case c) {
    c.topology.host_of_worker = hosts;
    for (const PieceLimits& pieces : {PieceLimits(), PieceLimits{1, 1, 1 << 20}}) {
      c.pieces = pieces;
      CheckPanels(c, pieces.pieces > 1000 ? 2 : 3, tally);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST(Panels, EveryPlacementOnTwoByTwo) {
  Tally tally;
  for (const std::vector<int32_t>& hosts : {std::vector<int32_t>{0, 0, 1, 1}, {0, 1, 1, 0}, {0, 1, 2, 3}}) {
    CheckPlacements(MakeMesh({2, 2}), ShapesOf({}, "f64[6,8]", "f64[8,4]", "f64[6,4]"), hosts, 3, tally);
    if (HasFatalFailure()) return;
  }
  EXPECT_GE(tally.panels, 150);
  EXPECT_GE(tally.in_turns, 50);
  EXPECT_GE(tally.with_two_letters, 100);
  EXPECT_GE(tally.in_parts, 50);
}

TEST(Panels, UnevenShards) {
  Tally tally;
  CheckPlacements(MakeMesh({2, 2}), ShapesOf({}, "f64[5,7]", "f64[7,6]", "f64[5,6]"), {0, 0, 1, 1}, 5, tally);
  EXPECT_GE(tally.panels, 50);
}

TEST(Panels, SampledPlacementsOnThreeMeshDims) {
  Tally tally;
  CheckPlacements(MakeMesh({2, 2, 2}), ShapesOf({}, "f64[4,8]", "f64[8,6]", "f64[4,6]"), {0, 0, 0, 0, 1, 1, 1, 1}, 307,
                  tally);
  CheckPlacements(MakeMesh({2, 4}), ShapesOf({}, "f64[4,16]", "f64[16,6]", "f64[4,6]"), {0, 0, 1, 1, 2, 2, 3, 3}, 5,
                  tally);
  EXPECT_GE(tally.panels, 90);
  EXPECT_GE(tally.with_two_letters, 50);
  EXPECT_GE(tally.in_cuts, 5);
  EXPECT_GE(tally.at_once, 10);
  EXPECT_GE(tally.in_parts, 20);
}

// An inner letter that the grid cuts in another number of shards than an operand that is read in pieces.
TEST(Panels, LettersThatGridAndOperandsCutDifferently) {
  Tally tally;
  for (const std::vector<int64_t>& extents : {std::vector<int64_t>{2, 3}, {3, 2}, {2, 4}, {4, 2}}) {
    const Mesh mesh = MakeMesh(extents);
    std::vector<int32_t> hosts;
    for (int64_t worker = 0; worker < mesh.size(); ++worker) hosts.push_back(worker < mesh.size() / 2 ? 0 : 1);
    for (const char* right : {"[S(0), S(1)]", "[S(0), S(0)]"}) {
      for (const int64_t inner : {12, 24}) {
        const std::string on = StrCat(" @ ", ToText(mesh), " ");
        Case c = ShapesOf({}, "f64[12,1]", "f64[1,8]", "f64[12,8]");
        c.left = *ParseTensorSpec(StrCat("f64[12,", inner, "]", on, "[S(0), S(1)]"));
        c.right = *ParseTensorSpec(StrCat("f64[", inner, ",8]", on, right));
        c.output = *ParseTensorSpec(StrCat("f64[12,8]", on, "[S(0), P(sum)]"));
        c.topology.host_of_worker = hosts;
        c.pieces = {1, 1, 1 << 20};
        CheckPanels(c, 3, tally);
        if (HasFatalFailure()) return;
      }
    }
  }
  EXPECT_GE(tally.panels, 2);
}

TEST(Panels, BatchesConversionsAndPermutedLetters) {
  Tally tally;
  const std::vector<int32_t> hosts = {0, 0, 1, 1};
  CheckPlacements(MakeMesh({2, 2}), ShapesOf({"bmk", "bkn", "bmn"}, "f64[2,3,8]", "f64[2,8,2]", "f64[2,3,2]"), hosts,
                  61, tally);
  CheckPlacements(MakeMesh({2, 2}), ShapesOf({"km", "nk", "nm"}, "f64[8,6]", "f64[5,8]", "f64[5,6]"), hosts, 11, tally);
  CheckPlacements(MakeMesh({2, 2}), ShapesOf({"mjk", "kjn", "mn"}, "f64[4,2,8]", "f64[8,2,6]", "f64[4,6]"), hosts, 61,
                  tally);
  CheckPlacements(MakeMesh({2, 2}), ShapesOf({}, "f32[6,8]", "f64[8,4]", "f64[6,4]"), hosts, 11, tally);
  CheckPlacements(MakeMesh({2, 2}), ShapesOf({}, "i32[6,8]", "i32[8,4]", "i32[6,4]"), hosts, 11, tally);
  EXPECT_GE(tally.panels, 100);
}

Case SquareOnHosts(DType dtype, int64_t extent, const std::vector<int64_t>& mesh_shape, int32_t workers_per_host) {
  const Mesh mesh = MakeMesh(mesh_shape);
  const TensorSpec blocks = MakeSpec(dtype, {extent, extent}, mesh, {Placement::Shard(0), Placement::Shard(1)});
  Case c = {{}, blocks, blocks, blocks};
  for (int32_t worker = 0; worker < mesh.size(); ++worker) {
    c.topology.host_of_worker.push_back(worker / workers_per_host);
  }
  c.overlap = {};
  return c;
}

TEST(Panels, SaysWhatItDoes) {
  const Case c = SquareOnHosts(DType::kF64, 2048, {4, 2}, 4);
  const absl::StatusOr<Plan> plan = PlanCase(c, {});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::vector<std::string> lines = StepLines(*plan);
  ASSERT_EQ(lines.size(), 20u) << ToText(*plan);
  EXPECT_EQ(lines[3], "local matmul(mak,akn->mn) %7 [S(0), R], %8 [R, S(2)] -> %4 [S(0), S(1)]");
  EXPECT_EQ(lines[4], "with local matmul(mak,akn->mn) %9 [S(0), R], %10 [R, S(2)] +-> %4 [S(0), S(1)]");
  EXPECT_NE(plan->grid.find("; in 4 panels of k, of 128 each in all of its 4 shards (in the steps k is ak), each panel "
                            "of which comes while the one before is multiplied: temporaries of 12,582,912 bytes in "
                            "place of 16,777,216"),
            std::string::npos)
      << plan->grid;
  const absl::StatusOr<Plan> less = PlanCase(c, {8 << 20});
  ASSERT_TRUE(less.ok()) << less.status();
  EXPECT_NE(less->grid.find(", one after the other: temporaries of 6,291,456 bytes"), std::string::npos) << less->grid;
  const absl::StatusOr<Plan> parts = PlanCase(c, {2 << 20});
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_NE(parts->grid.find(" in 4 panels of k, of 128 each in all of its 4 shards (in the steps k is ak); in 22 "
                             "parts over n, of 96 and the rest"),
            std::string::npos)
      << parts->grid;
}

TEST(Panels, NoneWhereTheyAreNotWorthwhile) {
  for (const Case& c : {SquareOnHosts(DType::kF64, 64, {4, 2}, 4), SquareOnHosts(DType::kF64, 2048, {4, 2}, 8)}) {
    const absl::StatusOr<Plan> plan = PlanCase(c, {});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_FALSE(IsInPanels(*plan)) << ToText(c);
  }
}

TEST(Panels, NoneThatWouldBeRoundedOrOnLargeMeshes) {
  const auto is_in_panels = [](Case c) {
    c.overlap = {.least_extent = 1, .least_parts = 2, .most_parts = 2, .worthwhile = 1e9};
    const absl::StatusOr<Plan> plan = PlanCase(c, {});
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() && IsInPanels(*plan);
  };
  EXPECT_TRUE(is_in_panels(SquareOnHosts(DType::kF32, 256, {4, 2}, 4)));
  EXPECT_FALSE(is_in_panels(SquareOnHosts(DType::kBF16, 256, {4, 2}, 4)));
  const auto on_mesh = [](int64_t rows) {
    const int64_t extent = 4 * rows;
    const Mesh mesh = MakeMesh({rows, 2});
    const TensorSpec blocks = MakeSpec(DType::kF64, {extent, extent}, mesh, {Placement::Shard(0), Placement::Shard(1)});
    Case c = {{}, blocks, blocks, blocks};
    for (int32_t worker = 0; worker < mesh.size(); ++worker) {
      c.topology.host_of_worker.push_back(worker / static_cast<int32_t>(rows));
    }
    return c;
  };
  EXPECT_TRUE(is_in_panels(on_mesh(kMaxOverlappedPositions / 2)));
  EXPECT_FALSE(is_in_panels(on_mesh(kMaxOverlappedPositions)));
}

}  // namespace
}  // namespace tessera
