// A death and a close with many tensors: in slices, and others have their turn between them.

#include "server/coordinator/long_work.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/ops/op_ids.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

constexpr uint64_t kMany = 40'000;
const Mesh kMesh = *Mesh::Make({2}, {}, {});
const Mesh kFirst = *Mesh::Make({1}, {}, {});
const Placements kRows = {Placement::Shard(0)};

CoordinatorConfig RoomForMany() {
  CoordinatorConfig config = SimulatedCluster::RoomyConfig();
  config.max_tensors_per_session = 2 * kMany;
  return config;
}

void Make(SimulatedCluster& cluster, SessionId session, const Mesh& mesh, uint64_t first, uint64_t count) {
  for (uint64_t handle = first; handle < first + count; handle += 500) {
    std::vector<Record> records;
    for (uint64_t h = handle; h < std::min(handle + 500, first + count); ++h) {
      records.push_back(FullRecord(mesh, {8}, kRows, h));
    }
    cluster.Submit(session, std::move(records));
    cluster.CompleteAll();
  }
}

size_t FailedOf(SimulatedCluster& cluster, SessionId session) {
  return cluster.EventsOf<FailedHandleEvent>(session).size();
}

// One event alone, without what the machine goes on with.
void SubmitOne(SimulatedCluster& cluster, SessionId session, Record record) {
  const uint64_t number = cluster.machine().sessions().at(session).last_batch + 1;
  cluster.ApplyOne(BatchEvent{session, number, {std::move(record)}});
}

void GoOn(SimulatedCluster& cluster) {
  while (cluster.machine().has_more()) cluster.ApplyOne(ContinuedEvent{});
}

TEST(LongWorkTest, ADeathGoesThroughFewTensorsFirstAndThroughManyInSlices) {
  SimulatedCluster cluster(2, int64_t{1} << 30, RoomForMany());
  const SessionId large = cluster.Open(), small = cluster.Open();
  Make(cluster, large, kMesh, 1, kMany);
  Make(cluster, small, kMesh, 1, 3);
  Make(cluster, small, kFirst, 4, 1);
  cluster.ApplyOne(WorkerLostEvent{WorkerIndex(1), 2, "killed"});
  EXPECT_EQ(FailedOf(cluster, small), 3u);
  EXPECT_LT(FailedOf(cluster, large), kMany / 10);
  ASSERT_TRUE(cluster.machine().has_more());
  SubmitOne(cluster, small, OpRecord(OpId::kExp, {4}, 5));
  EXPECT_EQ(cluster.InstancesAt(WorkerIndex(0)).size(), 1u) << "it goes on";
  GoOn(cluster);
  const auto failed = cluster.EventsOf<FailedHandleEvent>(large);
  ASSERT_EQ(failed.size(), kMany);
  for (uint64_t i = 0; i < kMany; ++i) ASSERT_EQ(failed[i].handle, HandleId(i + 1));
}

TEST(LongWorkTest, ATensorThatIsLostIsNeverUsedBeforeTheDeathHasReachedIt) {
  SimulatedCluster cluster(2, int64_t{1} << 30, RoomForMany());
  const SessionId session = cluster.Open();
  Make(cluster, session, kMesh, 1, kMany);
  cluster.ApplyOne(WorkerLostEvent{WorkerIndex(1), 2, "killed"});
  SubmitOne(cluster, session, OpRecord(OpId::kExp, {kMany}, kMany + 1));
  EXPECT_FALSE(cluster.machine().sessions().at(session).tensors.contains(HandleId(kMany + 1)));
  GoOn(cluster);
  const absl::Status status = cluster.machine().sessions().at(session).tensors.at(HandleId(kMany + 1))->status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("worker 1 was lost (killed); with it went [4:8]"));
}

TEST(LongWorkTest, ASecondDeathDuringTheFirstIsSeenByAll) {
  SimulatedCluster cluster(3, int64_t{1} << 30, RoomForMany());
  const SessionId session = cluster.Open();
  Make(cluster, session, kMesh, 1, kMany);
  Make(cluster, session, *Mesh::Make({1}, {}, {WorkerIndex(2)}), kMany + 1, 10);
  cluster.ApplyOne(WorkerLostEvent{WorkerIndex(1), 2, "killed"});
  cluster.ApplyOne(WorkerLostEvent{WorkerIndex(2), 3, "killed"});
  GoOn(cluster);
  EXPECT_EQ(FailedOf(cluster, session), kMany + 10);
}

TEST(LongWorkTest, ACloseGivesMemoryBackInSlicesAndOthersWaitForItByTurns) {
  constexpr int64_t kBytes = (kMany + 8) * 256;
  SimulatedCluster cluster(1, kBytes, RoomForMany());
  const SessionId large = cluster.Open(), small = cluster.Open();
  Make(cluster, large, kFirst, 1, kMany);
  cluster.ApplyOne(SessionClosedEvent{large});
  ASSERT_TRUE(cluster.machine().has_more());
  EXPECT_GT(cluster.machine().memory().UsedBytes(WorkerIndex(0)), kBytes / 2);
  // All memory that there is: not refused, since it will be free.
  SubmitOne(cluster, small, FullRecord(kFirst, {kBytes / 4}, kRows, 1));
  EXPECT_TRUE(cluster.InstancesAt(WorkerIndex(0)).empty());
  GoOn(cluster);
  EXPECT_TRUE(cluster.EventsOf<FailedHandleEvent>(small).empty());
  EXPECT_EQ(cluster.InstancesAt(WorkerIndex(0)).size(), 1u);
  EXPECT_EQ(cluster.machine().memory().UsedBytes(WorkerIndex(0)), kBytes);
}

TEST(LongWorkTest, ADropOfManyHandlesIsTakenUpInParts) {
  SimulatedCluster cluster(1, int64_t{1} << 30, RoomForMany());
  const SessionId session = cluster.Open();
  Make(cluster, session, kFirst, 1, 16'000);
  DropRecord drop;
  for (uint64_t handle = 1; handle <= 16'000; ++handle) drop.handles.push_back(HandleId(handle));
  SubmitOne(cluster, session, std::move(drop));
  ASSERT_TRUE(cluster.machine().has_more());
  const size_t left = cluster.machine().sessions().at(session).tensors.size();
  EXPECT_GT(left, 0u);
  EXPECT_LT(left, 16'000u);
  GoOn(cluster);
  EXPECT_TRUE(cluster.machine().sessions().at(session).tensors.empty());
  EXPECT_EQ(cluster.machine().memory().UsedBytes(WorkerIndex(0)), 0);
}

}  // namespace
}  // namespace tessera
