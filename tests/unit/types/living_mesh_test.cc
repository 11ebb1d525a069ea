#include "schemas/types/living_mesh.h"

#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "schemas/types/layout.h"

namespace tessera {
namespace {

std::string LivingOf(const std::string& text, const std::set<int32_t>& lost) {
  const TensorSpec spec = *ParseTensorSpec(text);
  const auto living = LivingMesh(spec, [&](WorkerIndex worker) { return lost.contains(worker.value); });
  return living.has_value() ? ToText(*living) : "none";
}

TEST(LivingMeshTest, LeavesOutCoordinatesOfTheReplicatedDimThatKeepsMost) {
  EXPECT_EQ(LivingOf("f32[8] @ mesh(3) [R]", {}), "mesh(3)");
  EXPECT_EQ(LivingOf("f32[8] @ mesh(3) [R]", {7}), "mesh(3)");
  EXPECT_EQ(LivingOf("f32[8] @ mesh(3) [R]", {1}), "mesh(2; workers=0,2)");
  EXPECT_EQ(LivingOf("f32[8] @ mesh(3) [R]", {0, 2}), "mesh(1; workers=1)");
  EXPECT_EQ(LivingOf("f32[8] @ mesh(dp:3,tp:2) [R, S(0)]", {2}), "mesh(dp:2,tp:2; workers=0,1,4,5)");
  EXPECT_EQ(LivingOf("f32[8] @ mesh(dp:2,tp:3) [R, R]", {4}), "mesh(dp:2,tp:2; workers=0,2,3,5)");
}

TEST(LivingMeshTest, TakesOneHolderOfEachShardWhereEveryCoordinateHasLostWorkers) {
  EXPECT_EQ(LivingOf("f32[8] @ mesh(dp:2,tp:2) [R, S(0)]", {0, 3}), "mesh(dp:1,tp:2; workers=2,1)");
  EXPECT_EQ(LivingOf("f32[8] @ mesh(2,2,2) [R, P(sum), S(0)]", {0, 5}), "mesh(1,2,2; workers=4,1,2,3)");
}

TEST(LivingMeshTest, IsNoneWhereAShardOrATermHadOneHolder) {
  EXPECT_EQ(LivingOf("f32[8] @ mesh(3) [S(0)]", {1}), "none");
  EXPECT_EQ(LivingOf("f32[8] @ mesh(3) [P(sum)]", {1}), "none");
  EXPECT_EQ(LivingOf("f32[8] @ mesh(2) [R]", {0, 1}), "none");
  EXPECT_EQ(LivingOf("f32[8] @ mesh(2,2) [R, S(0)]", {1, 3}), "none");
}

TEST(LivingMeshTest, AWorkerWhoseShardIsEmptyIsMissedByNobody) {
  EXPECT_EQ(LivingOf("f32[2] @ mesh(3) [S(0)]", {2}), "mesh(3)");
  EXPECT_EQ(LivingOf("f32[2] @ mesh(2,3) [R, S(0)]", {2}), "mesh(1,3; workers=3,4,5)");
  EXPECT_EQ(LivingOf("f32[2] @ mesh(2,3) [R, S(0)]", {2, 5, 3}), "mesh(1,3)");
}

// Every placement and every set of lost workers of small meshes: a mesh of living workers, each with the shard that it
// had, or a shard that nobody has.
TEST(LivingMeshTest, EachWorkerKeepsItsShard) {
  for (const std::string mesh : {"mesh(4)", "mesh(2,2)", "mesh(3,2)", "mesh(2,1,2)"}) {
    const Mesh whole = *ParseMesh(mesh);
    std::vector<std::string> lists = {""};
    for (int d = 0; d < whole.ndim(); ++d) {
      std::vector<std::string> longer;
      for (const std::string& list : lists) {
        for (const std::string one : {"R", "S(0)", "S(1)", "P(sum)"}) {
          longer.push_back(list.empty() ? one : list + ", " + one);
        }
      }
      lists = longer;
    }
    for (const std::string& list : lists) {
      const TensorSpec spec = *ParseTensorSpec("f32[3,4] @ " + mesh + " [" + list + "]");
      for (int64_t set = 0; set < int64_t{1} << whole.size(); ++set) {
        const auto is_lost = [&](WorkerIndex worker) { return ((set >> worker.value) & 1) != 0; };
        const std::optional<Mesh> living = LivingMesh(spec, is_lost);
        if (!living.has_value()) continue;
        TensorSpec moved = spec;
        moved.mesh = *living;
        for (int64_t flat = 0; flat < living->size(); ++flat) {
          const WorkerIndex worker = living->workers()[static_cast<size_t>(flat)];
          const Box before = LocalBox(spec, whole.PositionAt(*whole.FindWorker(worker)));
          EXPECT_EQ(LocalBox(moved, living->PositionAt(flat)), before) << ToText(spec) << " lost " << set;
          EXPECT_TRUE(!is_lost(worker) || IsEmpty(before)) << ToText(spec) << " lost " << set;
        }
        // All elements are there: one of these has whatever any worker had.
        for (int64_t flat = 0; flat < whole.size(); ++flat) {
          const Box box = LocalBox(spec, whole.PositionAt(flat));
          bool is_there = IsEmpty(box);
          for (int64_t at = 0; at < living->size(); ++at) is_there |= LocalBox(moved, living->PositionAt(at)) == box;
          EXPECT_TRUE(is_there) << ToText(spec) << " lost " << set;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera
