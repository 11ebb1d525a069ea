#include "server/coordinator/worker_sets.h"

#include <vector>

#include "gtest/gtest.h"

namespace tessera::testing {
namespace {

Mesh MeshOf(std::vector<WorkerIndex> workers) {
  const int64_t count = static_cast<int64_t>(workers.size());
  return *Mesh::Make({count}, {}, workers);
}

TEST(WorkerSets, GivesTheSameGroupForTheSameMesh) {
  WorkerSets groups;
  const Mesh mesh = MeshOf({WorkerIndex(3), WorkerIndex(1), WorkerIndex(2)});
  const WorkerGroup group = groups.Of(mesh);
  EXPECT_EQ(*group, (std::vector<WorkerIndex>{WorkerIndex(1), WorkerIndex(2), WorkerIndex(3)}));
  EXPECT_EQ(groups.Of(mesh), group);
  EXPECT_EQ(groups.size(), 1u);
}

TEST(WorkerSets, ForgetsMeshesBeyondItsLimit) {
  WorkerSets groups;
  const WorkerGroup first = groups.Of(MeshOf({WorkerIndex(0)}));
  for (int32_t w = 1; w < 3 * static_cast<int32_t>(kMaxKeptGroups); ++w) groups.Of(MeshOf({WorkerIndex(w)}));
  EXPECT_LE(groups.size(), kMaxKeptGroups);
  EXPECT_EQ(*first, std::vector<WorkerIndex>{WorkerIndex(0)});
  EXPECT_EQ(*groups.Of(MeshOf({WorkerIndex(0)})), *first);
}

}  // namespace
}  // namespace tessera::testing
