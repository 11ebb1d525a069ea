#include "schemas/types/relabel.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "schemas/types/bounds.h"

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

TEST(RelabelledMesh, IsTheBestOfAllOrders) {
  const char* sources[] = {"f32[7] @ mesh(4; workers=3,1,0,2) [S(0)]",
                           "f32[8,3] @ mesh(2,2) [S(0), S(1)]",
                           "f32[5,6] @ mesh(2,2; workers=1,0,5,4) [S(1), R]",
                           "f32[9] @ mesh(5; workers=4,0,3,1,2) [S(0)]",
                           "f32[7,5] @ mesh(2,2) [S(0), S(0)]",
                           "f32[6,4] @ mesh(2; workers=2,3) [S(0)]"};
  const char* meshes[] = {"mesh(4)", "mesh(2,2; workers=2,0,1,3)", "mesh(x:2,y:2)", "mesh(3; workers=5,1,4)",
                          "mesh(5)"};
  int relabelled = 0;
  for (const char* text : sources) {
    const TensorSpec source = Spec(text);
    for (const char* mesh_text : meshes) {
      const Mesh mesh = *ParseMesh(mesh_text);
      std::vector<Placement> choices = {Placement::Replicate()};
      for (int d = 0; d < source.rank(); ++d) choices.push_back(Placement::Shard(d));
      for (const Placement& first : choices) {
        for (const Placement& second : choices) {
          const Placements placements = mesh.ndim() == 1 ? Placements{first} : Placements{first, second};
          const absl::StatusOr<Mesh> found = RelabelledMesh(source, mesh, placements);
          ASSERT_TRUE(found.ok()) << found.status();
          const auto [bytes, kept] = TryAll(source, mesh, placements);
          EXPECT_EQ(BytesOf(source, *found, placements), bytes) << text << " to " << mesh_text << ToText(placements);
          EXPECT_EQ(CountKept(mesh, *found), kept) << text << " to " << mesh_text << ToText(placements);
          relabelled += *found == mesh ? 0 : 1;
        }
      }
    }
  }
  EXPECT_GT(relabelled, 20);
}

TEST(RelabelledMesh, NeverMovesMoreWithPendingTerms) {
  const TensorSpec source = Spec("f64[6,5] @ mesh(2,3) [P(sum), S(0)]");
  for (const char* mesh_text : {"mesh(6)", "mesh(3,2)", "mesh(2,3; workers=5,4,3,2,1,0)"}) {
    const Mesh mesh = *ParseMesh(mesh_text);
    const Placements placements(static_cast<size_t>(mesh.ndim()), Placement::Shard(0));
    const absl::StatusOr<Mesh> found = RelabelledMesh(source, mesh, placements);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(BytesOf(source, *found, placements), TryAll(source, mesh, placements).first) << mesh_text;
  }
}

TEST(RelabelledMesh, LeavesWhatCannotBeBetter) {
  const TensorSpec source = Spec("f32[8] @ mesh(2) [S(0)]");
  EXPECT_EQ(*RelabelledMesh(source, source.mesh, {Placement::Shard(0)}), source.mesh);
  EXPECT_EQ(*RelabelledMesh(source, *ParseMesh("mesh(2; workers=4,3)"), {Placement::Shard(0)}),
            *ParseMesh("mesh(2; workers=4,3)"));
  const absl::StatusOr<Mesh> large = RelabelledMesh(source, *Mesh::Make({300}, {}, {}), {Placement::Replicate()});
  EXPECT_EQ(large.status().message(),
            "redistribute: relabel is for meshes of up to 256 workers, this one has 300: mesh(300)");
}

}  // namespace
}  // namespace tessera
