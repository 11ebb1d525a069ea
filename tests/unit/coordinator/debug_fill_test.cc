// Memory that is given back is filled before somebody else has it, and the fill is waited for.

#include <algorithm>

#include <gtest/gtest.h>

#include "schemas/ops/op_ids.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

const Mesh kMesh = *Mesh::Make({2}, {}, {});
const Placements kRows = {Placement::Shard(0)};

CoordinatorConfig Filling() {
  CoordinatorConfig config = SimulatedCluster::RoomyConfig();
  config.debug_fill = 1;
  return config;
}

TEST(DebugFillTest, AFreedRangeIsFilledAndItsNextOwnerWaitsForThat) {
  SimulatedCluster cluster(2, 256, Filling());  // room for one
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(kMesh, {64}, kRows, 1)});
  const Instance first = cluster.InstancesAt(WorkerIndex(0)).at(0);
  cluster.CompleteAll();
  cluster.Submit(session, {DropRecord{{HandleId(1)}}, FullRecord(kMesh, {64}, kRows, 2)});
  const auto instances = cluster.InstancesAt(WorkerIndex(0));
  ASSERT_EQ(instances.size(), 2u);
  EXPECT_EQ(instances, cluster.InstancesAt(WorkerIndex(1)));
  EXPECT_EQ(instances[0].buffer_offsets, first.buffer_offsets);
  EXPECT_EQ(instances[0].scalars.at(0).AsDouble(), 255);
  EXPECT_EQ(instances[1].buffer_offsets, first.buffer_offsets);
  const auto& waits = instances[1].waits;
  EXPECT_TRUE(instances[1].stream == instances[0].stream ||
              std::any_of(waits.begin(), waits.end(),
                          [&](const InstanceWait& wait) { return wait.ordinal == instances[0].ordinal; }));
}

TEST(DebugFillTest, AFillWaitsForWhoReadsTheRange) {
  SimulatedCluster cluster(2, 1 << 20, Filling());
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(kMesh, {8, 8}, kRows, 1), RedistributeRecord(1, {Placement::Shard(1)}, 2),
                           DropRecord{{HandleId(1)}}});
  const auto instances = cluster.InstancesAt(WorkerIndex(0));
  ASSERT_EQ(instances.size(), 3u);
  const auto& waits = instances[2].waits;
  EXPECT_TRUE(std::any_of(waits.begin(), waits.end(),
                          [&](const InstanceWait& wait) { return wait.ordinal == instances[1].ordinal; }));
}

TEST(DebugFillTest, NothingIsLeftAndTheDeadAreNotFilled) {
  SimulatedCluster cluster(2, 1 << 20, Filling());
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(kMesh, {64}, kRows, 1)});
  cluster.CompleteAll();
  cluster.Kill(WorkerIndex(1));
  cluster.Apply(SessionClosedEvent{session});
  EXPECT_EQ(cluster.InstancesAt(WorkerIndex(0)).size(), 1u);
  EXPECT_TRUE(cluster.InstancesAt(WorkerIndex(1)).empty());
  cluster.CompleteAll();
  EXPECT_EQ(cluster.machine().unsettled_ops(), 0);
  EXPECT_EQ(cluster.machine().memory().UsedBytes(WorkerIndex(0)), 0);
}

}  // namespace
}  // namespace tessera
