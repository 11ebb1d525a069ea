#include "schemas/types/mesh.h"

#include "absl/hash/hash.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(Mesh, PositionsAreRowMajor) {
  const Mesh mesh = *Mesh::Make({2, 4}, {"dp", "tp"}, {});
  EXPECT_EQ(mesh.WorkerAt(Position{1, 2}), WorkerIndex(6));
  EXPECT_EQ(ToText(mesh), "mesh(dp:2,tp:4)");
  for (int64_t flat = 0; flat < mesh.size(); ++flat) EXPECT_EQ(mesh.FlatPosition(mesh.PositionAt(flat)), flat);
  EXPECT_EQ(*mesh.DimByName("tp"), 1);
  EXPECT_FALSE(mesh.DimByName("pp").ok());
}

TEST(Mesh, FindsWorkers) {
  const Mesh chosen = *ParseMesh("mesh(2,2; workers=7,3,5,0)");
  EXPECT_EQ(*chosen.FindWorker(WorkerIndex(5)), 2);
  EXPECT_FALSE(chosen.FindWorker(WorkerIndex(1)).has_value());
  const Mesh plain = *ParseMesh("mesh(2,2)");
  EXPECT_EQ(*plain.FindWorker(WorkerIndex(3)), 3);
  EXPECT_FALSE(plain.FindWorker(WorkerIndex(4)).has_value());
  EXPECT_FALSE(plain.FindWorker(WorkerIndex(-1)).has_value());
}

TEST(Mesh, EqualityAndHashAreByValue) {
  const Mesh a = *ParseMesh("mesh(x:2,y:3)");
  const Mesh b = *ParseMesh("mesh(x:2,y:3; workers=0,1,2,3,4,5)");
  EXPECT_EQ(a, b);
  EXPECT_EQ(absl::HashOf(a), absl::HashOf(b));
  EXPECT_FALSE(a == *ParseMesh("mesh(2,3)"));
  EXPECT_TRUE(HaveSameArrangement(a, *ParseMesh("mesh(2,3)")));
  EXPECT_FALSE(HaveSameArrangement(a, *ParseMesh("mesh(3,2)")));
  EXPECT_TRUE(HaveSameWorkers(a, *ParseMesh("mesh(6; workers=5,4,3,2,1,0)")));
  EXPECT_FALSE(HaveSameWorkers(a, *ParseMesh("mesh(6; workers=6,4,3,2,1,0)")));
  EXPECT_EQ(Mesh(), Mesh());
  EXPECT_FALSE(a == Mesh());
  EXPECT_EQ(Mesh().size(), 0);
  EXPECT_EQ(Mesh().ndim(), 0);
}

TEST(Mesh, SubMeshesAndFlattening) {
  const Mesh mesh = *ParseMesh("mesh(dp:2,tp:3)");
  EXPECT_EQ(ToText(*mesh.Select(0, 1)), "mesh(tp:3; workers=3,4,5)");
  EXPECT_EQ(ToText(*mesh.Select(1, 2)), "mesh(dp:2; workers=2,5)");
  EXPECT_FALSE(mesh.Select(2, 0).ok());
  EXPECT_FALSE(mesh.Select(0, 2).ok());
  EXPECT_FALSE(mesh.Select(0, 1)->Select(0, 0).ok());
  EXPECT_EQ(ToText(*mesh.Flatten("all")), "mesh(all:6)");
  EXPECT_EQ(ToText(*mesh.Flatten("")), "mesh(6)");
  EXPECT_FALSE(mesh.Flatten("not a name").ok());
}

TEST(Mesh, RefusesBeforeAllocating) {
  EXPECT_TRUE(Mesh::Make({kMaxMeshSize}, {}, {}).ok());
  const absl::Status status = Mesh::Make({int64_t{1} << 40}, {}, {}).status();
  EXPECT_EQ(status.message(), "mesh: shape [1099511627776] is over the limit of 65536 workers (max_mesh_size)");
  EXPECT_FALSE(Mesh::Make({int64_t{1} << 40, int64_t{1} << 40}, {}, {}).ok());
  EXPECT_FALSE(Mesh::Make({}, {}, {}).ok());
  EXPECT_FALSE(Mesh::Make({2, 0}, {}, {}).ok());
  EXPECT_FALSE(Mesh::Make({2}, {"2x"}, {}).ok());
  EXPECT_FALSE(Mesh::Make({2}, {}, {WorkerIndex(0)}).ok());
}

TEST(Mesh, WorkersHaveSmallNumbers) {
  EXPECT_TRUE(ParseMesh("mesh(2; workers=0,65535)").ok());
  const absl::Status status = ParseMesh("mesh(2; workers=0,65536)").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("worker 65536 is over the limit"), std::string::npos) << status;
  EXPECT_FALSE(Mesh::Make({2}, {}, {WorkerIndex(3), WorkerIndex(2147483647)}).ok());
}

TEST(Mesh, ADefaultMeshHoldsItsSizeAlone) {
  const Mesh mesh = *Mesh::Make({65536}, {"x"}, {});
  EXPECT_LT(mesh.SharedBytes(), 1000);
  EXPECT_EQ(mesh.workers().size(), 65536u);
  EXPECT_EQ(mesh.workers()[65535], WorkerIndex(65535));
  // The same with the list written out.
  EXPECT_EQ(*Mesh::Make({65536}, {"x"}, mesh.workers()), mesh);
}

}  // namespace
}  // namespace tessera
