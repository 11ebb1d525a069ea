#include "schemas/types/relabel.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/bounds.h"
#include "schemas/types/str_cat.h"
#include "tests/property/types/small_worlds.h"

namespace tessera {
namespace {

TensorSpec Spec(std::string_view text) {
  const absl::StatusOr<TensorSpec> spec = ParseTensorSpec(text);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

std::vector<int> Identity(size_t size) {
  std::vector<int> order(size);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

int64_t BytesOf(const TensorSpec& source, const Mesh& mesh, const Placements& placements) {
  TensorSpec destination = source;
  destination.mesh = mesh;
  destination.placements = placements;
  return BoundRedistribute(source, destination)->total_bytes;
}

int CountKept(const Mesh& a, const Mesh& b) {
  int kept = 0;
  for (size_t i = 0; i < a.workers().size(); ++i) kept += a.workers()[i] == b.workers()[i] ? 1 : 0;
  return kept;
}

// The fewest bytes over all orders of the workers, and the most that then stay where they are.
std::pair<int64_t, int> TryAll(const TensorSpec& source, const Mesh& mesh, const Placements& placements) {
  std::pair<int64_t, int> best = {INT64_MAX, 0};
  std::vector<int> order = Identity(mesh.workers().size());
  do {
    std::vector<WorkerIndex> workers;
    for (const int i : order) workers.push_back(mesh.workers()[static_cast<size_t>(i)]);
    const Mesh relabelled = *Mesh::Make(mesh.shape(), mesh.names(), workers);
    const int64_t bytes = BytesOf(source, relabelled, placements);
    const int kept = CountKept(mesh, relabelled);
    if (bytes < best.first || (bytes == best.first && kept > best.second)) best = {bytes, kept};
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

// Whether it is another order than the mesh's own. Expects that no order moves less, nor as little with more workers
// that stay.
bool RelabelsAsTheBest(const TensorSpec& source, const Mesh& mesh, const Placements& placements) {
  const absl::StatusOr<Mesh> found = RelabelledMesh(source, mesh, placements);
  if (!found.ok()) {
    ADD_FAILURE() << found.status();
    return false;
  }
  const auto [bytes, kept] = TryAll(source, mesh, placements);
  const std::string text = StrCat(ToText(source), " to ", ToText(mesh), " ", ToText(placements), ": ", ToText(*found));
  EXPECT_EQ(BytesOf(source, *found, placements), bytes) << text;
  EXPECT_EQ(CountKept(mesh, *found), kept) << text;
  return *found != mesh;
}

// How many of these are relabelled, of each source to each mesh with all Shards and Replicates.
int CountRelabelled(absl::Span<const char* const> sources, absl::Span<const char* const> meshes) {
  int relabelled = 0;
  for (const char* text : sources) {
    const TensorSpec source = Spec(text);
    for (const char* mesh_text : meshes) {
      const Mesh mesh = *ParseMesh(mesh_text);
      for (const Placements& placements : AllPlacements(mesh.ndim(), source.rank(), {})) {
        relabelled += RelabelsAsTheBest(source, mesh, placements) ? 1 : 0;
      }
    }
  }
  return relabelled;
}

TEST(RelabelledMesh, IsTheBestOfAllOrders) {
  const char* sources[] = {"f32[7] @ mesh(4; workers=3,1,0,2) [S(0)]",
                           "f32[8,3] @ mesh(2,2) [S(0), S(1)]",
                           "f32[5,6] @ mesh(2,2; workers=1,0,5,4) [S(1), R]",
                           "f32[9] @ mesh(5; workers=4,0,3,1,2) [S(0)]",
                           "f32[7,5] @ mesh(2,2) [S(0), S(0)]",
                           "f32[6,4] @ mesh(2; workers=2,3) [S(0)]"};
  const char* meshes[] = {"mesh(4)", "mesh(2,2; workers=2,0,1,3)", "mesh(x:2,y:2)", "mesh(3; workers=5,1,4)",
                          "mesh(5)"};
  EXPECT_GT(CountRelabelled(sources, meshes), 20);
}

// 2, 3, 4 and 6 terms of elements that 1 to 6 destinations want, on workers that hold the same term, another term of
// the same box, other boxes, or nothing.
TEST(RelabelledMesh, IsTheBestOfAllOrdersWithPendingTerms) {
  const char* sources[] = {"f32[7] @ mesh(2; workers=3,1) [P(sum)]",
                           "f32[6,5] @ mesh(2,3) [P(sum), S(0)]",
                           "f32[5,7] @ mesh(2,2; workers=3,0,2,1) [S(1), P(max)]",
                           "f32[9] @ mesh(3,2; workers=5,0,4,1,3,2) [P(avg), S(0)]",
                           "f32[4,3] @ mesh(2,2,2) [P(min), S(0), S(1)]",
                           "f32[6] @ mesh(2,2,2; workers=7,0,6,1,5,2,4,3) [R, P(product), S(0)]",
                           "f32[8] @ mesh(4,2) [P(sum), S(0)]",
                           "f32[5,2] @ mesh(2,3; workers=0,9,2,8,4,7) [P(sum), S(0)]",
                           "f32[7] @ mesh(3,2,2) [P(sum), S(0), P(sum)]",
                           "f32[3] @ mesh(1,2,5) [P(sum), P(sum), S(0)]"};
  const char* meshes[] = {
      "mesh(4)",   "mesh(2,2; workers=2,0,1,3)",      "mesh(2,2; workers=7,1,9,0)", "mesh(2,3; workers=5,4,3,2,1,0)",
      "mesh(3,2)", "mesh(3,1,2; workers=0,2,4,1,3,5)"};
  EXPECT_GT(CountRelabelled(sources, meshes), 100);
}

TEST(RelabelledMesh, IsTheBestOfAllOrdersOfEightWorkers) {
  const char* sources[] = {"f32[9] @ mesh(2,4; workers=6,4,2,0,9,7,5,3) [P(sum), S(0)]"};
  const char* meshes[] = {"mesh(2,4)", "mesh(4,2; workers=7,6,5,4,3,2,1,0)"};
  EXPECT_GT(CountRelabelled(sources, meshes), 2);
}

// Numbers that are drawn from one seed.
class Draws {
 public:
  int64_t Below(int64_t bound) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(bound)); }

  // Some of the workers 0..8, in any order.
  Mesh OneMesh(absl::Span<const Shape> shapes) {
    const Shape& shape = shapes[static_cast<size_t>(Below(static_cast<int64_t>(shapes.size())))];
    std::vector<WorkerIndex> workers;
    for (const int worker : Identity(9)) workers.push_back(WorkerIndex(static_cast<uint32_t>(worker)));
    std::shuffle(workers.begin(), workers.end(), engine_);
    workers.resize(static_cast<size_t>(NumElements(shape)));
    return *Mesh::Make(shape, {}, workers);
  }

  Shape OneShape() {
    constexpr int64_t kExtents[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 12};
    Shape shape(static_cast<size_t>(Below(4)));
    for (int64_t& extent : shape) extent = kExtents[Below(10)];
    return shape;
  }

  // Replicate, Shard of each dim, and each of `others`, as often.
  Placements OnePlacements(const Mesh& mesh, size_t rank, const std::vector<Placement>& others) {
    std::vector<Placement> choices = others;
    choices.push_back(Placement::Replicate());
    for (size_t dim = 0; dim < rank; ++dim) choices.push_back(Placement::Shard(static_cast<int>(dim)));
    Placements placements(static_cast<size_t>(mesh.ndim()));
    for (Placement& placement : placements) placement = choices[Below(static_cast<int64_t>(choices.size()))];
    return placements;
  }

 private:
  std::mt19937_64 engine_{19};
};

TEST(RelabelledMesh, IsTheBestOfAllOrdersOfWhatIsDrawn) {
  const Shape source_meshes[] = {{2},    {3},    {4},    {6},       {2, 2},    {2, 3},   {3, 2},
                                 {2, 4}, {4, 2}, {3, 3}, {2, 2, 2}, {2, 1, 3}, {1, 2, 4}};
  const Shape meshes[] = {{2}, {3}, {4}, {5}, {6}, {2, 2}, {2, 3}, {3, 2}, {1, 4}, {2, 1, 2}, {3, 1, 2}, {2, 3, 1}};
  Draws draws;
  int relabelled = 0;
  for (int round = 0; round < 3000; ++round) {
    const Shape shape = draws.OneShape();
    const Mesh source_mesh = draws.OneMesh(source_meshes);
    const Placement pending = Placement::Partial(static_cast<ReduceOp>(draws.Below(5)));
    const TensorSpec source = *TensorSpec::Make("draw", DType::kF64, shape, source_mesh,
                                                draws.OnePlacements(source_mesh, shape.size(), {pending, pending}));
    const Mesh mesh = draws.OneMesh(meshes);
    relabelled += RelabelsAsTheBest(source, mesh, draws.OnePlacements(mesh, shape.size(), {})) ? 1 : 0;
  }
  EXPECT_GT(relabelled, 500);
}

TEST(RelabelledMesh, GivesEachHalfATermThatItHas) {
  const TensorSpec source = Spec("f32[8] @ mesh(2) [P(sum)]");
  const Placements placements = {Placement::Shard(0), Placement::Replicate()};
  const Mesh mesh = *ParseMesh("mesh(2,2)");
  const Mesh relabelled = *RelabelledMesh(source, mesh, placements);
  EXPECT_EQ(ToText(relabelled), "mesh(2,2; workers=0,3,2,1)");
  EXPECT_EQ(BytesOf(source, relabelled, placements), 16 * 4);
  EXPECT_EQ(BytesOf(source, mesh, placements), 20 * 4);
}

TEST(RelabelledMesh, KnowsTheBestOfTheLargestMesh) {
  const TensorSpec source = Spec("f32[1280,3] @ mesh(2,128) [P(sum), S(0)]");
  std::vector<WorkerIndex> workers(source.mesh.workers().begin(), source.mesh.workers().end());
  std::reverse(workers.begin(), workers.end());
  const Placements placements = {Placement::Shard(0), Placement::Replicate()};
  const absl::StatusOr<Mesh> found = RelabelledMesh(source, *Mesh::Make({128, 2}, {}, workers), placements);
  ASSERT_TRUE(found.ok()) << found.status();
  // Two terms for two destinations take two transfers, as each pair of positions has a term of what it wants.
  EXPECT_EQ(BytesOf(source, *found, placements), 2 * 1280 * 3 * 4);
}

TEST(RelabelledMesh, LeavesWhatCannotBeBetter) {
  const TensorSpec source = Spec("f32[8] @ mesh(2) [S(0)]");
  EXPECT_EQ(*RelabelledMesh(source, source.mesh, {Placement::Shard(0)}), source.mesh);
  EXPECT_EQ(*RelabelledMesh(source, *ParseMesh("mesh(2; workers=4,3)"), {Placement::Shard(0)}),
            *ParseMesh("mesh(2; workers=4,3)"));
  const TensorSpec kept_pending = Spec("f32[8] @ mesh(2,2) [P(sum), S(0)]");
  EXPECT_EQ(
      *RelabelledMesh(kept_pending, kept_pending.mesh, {Placement::Partial(ReduceOp::kSum), Placement::Replicate()}),
      kept_pending.mesh);
  const absl::StatusOr<Mesh> large = RelabelledMesh(source, *Mesh::Make({300}, {}, {}), {Placement::Replicate()});
  EXPECT_EQ(large.status().message(),
            "redistribute: relabel is for meshes of up to 256 workers, this one has 300: mesh(300)");
}

}  // namespace
}  // namespace tessera
