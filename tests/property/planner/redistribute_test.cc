#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/bounds.h"
#include "schemas/types/str_cat.h"
#include "tests/property/planner/small_worlds.h"
#include "tests/support/plan_redistribute.h"

namespace tessera {
namespace {

const std::vector<int64_t>& Extents() {
  static const auto* const extents = new std::vector<int64_t>{0, 1, 2, 3, 5, 7};
  return *extents;
}

std::string PairText(const TensorSpec& source, const Placements& destination) {
  return StrCat(ToText(source), " -> ", ToText(destination));
}

// Every ordered pair that redistribute accepts; every `stride`-th of them.
void CheckPairs(const std::vector<int64_t>& mesh_shape, const std::vector<int64_t>& shape,
                const std::vector<ReduceOp>& partial_ops, DType dtype, size_t stride) {
  const Mesh mesh = MakeMesh(mesh_shape);
  const std::vector<Placements> all = AllPlacements(mesh.ndim(), static_cast<int>(shape.size()), partial_ops);
  size_t number = 0;
  size_t checked = 0;
  for (const Placements& from : all) {
    const TensorSpec source = MakeSpec(dtype, shape, mesh, from);
    for (const Placements& to : all) {
      const TensorSpec destination = MakeSpec(dtype, shape, mesh, to);
      if (!ValidateRedistribute(source, destination).ok()) continue;
      if (number++ % stride != 0) continue;
      ++checked;
      const absl::Status status = CheckRedistribute(source, destination);
      ASSERT_TRUE(status.ok()) << PairText(source, to) << "\n" << status;
    }
  }
  EXPECT_GT(checked, 0u);
}

struct World {
  std::vector<int64_t> mesh;
  std::vector<int64_t> shape;
};

std::string WorldName(const testing::TestParamInfo<World>& info) {
  std::string name = "mesh";
  for (const int64_t size : info.param.mesh) StrAppend(&name, "_", size);
  name += "_shape";
  for (const int64_t extent : info.param.shape) StrAppend(&name, "_", extent);
  return name;
}

std::vector<World> AllWorlds() {
  const std::vector<std::vector<int64_t>> meshes = {{2}, {3}, {2, 3}, {2, 2, 2}};
  std::vector<World> worlds;
  for (const std::vector<int64_t>& mesh : meshes) {
    worlds.push_back({mesh, {}});
    for (const int64_t a : Extents()) {
      worlds.push_back({mesh, {a}});
      for (const int64_t b : Extents()) worlds.push_back({mesh, {a, b}});
    }
  }
  return worlds;
}

class EveryPair : public testing::TestWithParam<World> {};

TEST_P(EveryPair, GivesTheDenseAnswerWithTheFewestBytes) {
  CheckPairs(GetParam().mesh, GetParam().shape, {ReduceOp::kSum}, DType::kF32, 1);
}

INSTANTIATE_TEST_SUITE_P(SmallWorlds, EveryPair, testing::ValuesIn(AllWorlds()), WorldName);

TEST(SampledPairs, ThreeDims) {
  size_t stride = 5;
  for (const std::vector<int64_t>& mesh : std::vector<std::vector<int64_t>>{{3}, {2, 3}, {2, 2, 2}}) {
    for (const std::vector<int64_t>& shape :
         std::vector<std::vector<int64_t>>{{2, 3, 5}, {7, 1, 3}, {5, 0, 2}, {3, 7, 2}, {1, 1, 1}, {5, 5, 5}}) {
      CheckPairs(mesh, shape, {ReduceOp::kSum}, DType::kF32, mesh.size() == 3 ? 31 : stride);
    }
  }
}

TEST(SampledPairs, OtherPartials) {
  for (const ReduceOp op : {ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    CheckPairs({3}, {7}, {op}, DType::kF64, 1);
    CheckPairs({2, 3}, {5, 7}, {op}, DType::kF64, 3);
    CheckPairs({2, 2, 2}, {7, 3}, {op}, DType::kF64, 23);
  }
  CheckPairs({2, 2}, {5, 3}, {ReduceOp::kSum, ReduceOp::kMax}, DType::kI64, 2);
  for (const ReduceOp op : {ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor}) {
    CheckPairs({3}, {7}, {op}, DType::kU8, 1);
    CheckPairs({2, 3}, {5, 7}, {op}, DType::kI64, 3);
    CheckPairs({4}, {5, 3}, {op}, DType::kBool, 1);
  }
}

TEST(OtherMesh, OfOtherShapeAndOrder) {
  const Mesh meshes[] = {MakeMesh({4}), MakeMesh({2, 2}),      MakeMesh({4}, {3, 1, 0, 2}),
                         MakeMesh({2}), MakeMesh({2}, {5, 6}), MakeMesh({3}, {2, 3, 4})};
  for (const Mesh& a : meshes) {
    for (const Mesh& b : meshes) {
      for (const Placements& from : AllPlacements(a.ndim(), 2, {ReduceOp::kSum})) {
        for (const Placements& to : AllPlacements(b.ndim(), 2, {})) {
          const TensorSpec source = MakeSpec(DType::kF32, {5, 3}, a, from);
          const TensorSpec destination = MakeSpec(DType::kF32, {5, 3}, b, to);
          const absl::Status status = CheckRedistribute(source, destination);
          ASSERT_TRUE(status.ok()) << ToText(source) << " -> " << ToText(destination) << "\n" << status;
        }
      }
    }
  }
}

TEST(Programs, MoveWhatInterpretMoves) {
  const std::vector<World> worlds = {{{2}, {5, 3}}, {{2, 3}, {7, 5}}, {{2, 2, 2}, {5, 7}}};
  for (const World& world : worlds) {
    const Mesh mesh = MakeMesh(world.mesh);
    size_t number = 0;
    for (const Placements& from : AllPlacements(mesh.ndim(), 2, {ReduceOp::kSum})) {
      for (const Placements& to : AllPlacements(mesh.ndim(), 2, {ReduceOp::kSum})) {
        const TensorSpec source = MakeSpec(DType::kF64, world.shape, mesh, from);
        const TensorSpec destination = MakeSpec(DType::kF64, world.shape, mesh, to);
        if (!ValidateRedistribute(source, destination).ok() || ++number % (mesh.ndim() == 3 ? 7 : 1) != 0) continue;
        const absl::StatusOr<Plan> plan = PlanRedistribute({source, {}}, destination);
        ASSERT_TRUE(plan.ok()) << plan.status();
        const absl::Status status = CheckPrograms(*plan, {Numbers(source)});
        ASSERT_TRUE(status.ok()) << PairText(source, to) << "\n" << status;
      }
    }
  }
}

TEST(Programs, BetweenMeshes) {
  const TensorSpec source =
      MakeSpec(DType::kF64, {7, 5}, MakeMesh({2, 2}), {Placement::Shard(1), Placement::Partial(ReduceOp::kSum)});
  for (const Placements& to : AllPlacements(1, 2, {})) {
    const TensorSpec destination = MakeSpec(DType::kF64, {7, 5}, MakeMesh({3}, {2, 5, 1}), to);
    const absl::StatusOr<Plan> plan = PlanRedistribute({source, {}}, destination);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const absl::Status status = CheckPrograms(*plan, {Numbers(source)});
    ASSERT_TRUE(status.ok()) << PairText(source, to) << "\n" << status;
  }
}

}  // namespace
}  // namespace tessera
