// Tensors with copies on a worker that is lost: which go on, where, and what of the work under way is kept.

#include <string>

#include <gtest/gtest.h>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "server/coordinator/state_machine.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

const Mesh kMesh = *Mesh::Make({3}, {}, {});
const Placements kCopies = {Placement::Replicate()};
const Placements kRows = {Placement::Shard(0)};

const TensorEntry& TensorOf(SimulatedCluster& cluster, SessionId session, uint64_t handle) {
  return *cluster.machine().sessions().at(session).tensors.at(HandleId(handle));
}

TEST(LostCopiesTest, ATensorGoesOnWhereItsCopiesLive) {
  SimulatedCluster cluster(3);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(kMesh, {8}, kCopies, 1), FullRecord(kMesh, {8}, kRows, 2)});
  cluster.CompleteAll();
  cluster.Kill(WorkerIndex(1));
  EXPECT_EQ(ToText(TensorOf(cluster, session, 1).spec()), "f32[8] @ mesh(2; workers=0,2) [R]");
  EXPECT_TRUE(TensorOf(cluster, session, 1).status.ok());
  EXPECT_FALSE(TensorOf(cluster, session, 2).status.ok());
  cluster.Submit(session, {OpRecord(OpId::kExp, {1}, 3)});
  cluster.CompleteAll();
  EXPECT_EQ(ToText(TensorOf(cluster, session, 3).spec()), "f32[8] @ mesh(2; workers=0,2) [R]");
  EXPECT_TRUE(TensorOf(cluster, session, 3).status.ok());
  EXPECT_EQ(cluster.machine().unsettled_ops(), 0);
}

TEST(LostCopiesTest, WorkUnderWayThatNeedsNoOtherWorkerIsKept) {
  SimulatedCluster cluster(3);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(kMesh, {8}, kCopies, 1), OpRecord(OpId::kExp, {1}, 2)});
  cluster.Kill(WorkerIndex(1));
  cluster.CompleteAll();
  EXPECT_TRUE(TensorOf(cluster, session, 2).status.ok());
  EXPECT_EQ(cluster.machine().unsettled_ops(), 0);
  EXPECT_TRUE(cluster.EventsOf<FailedHandleEvent>(session).empty());
}

TEST(LostCopiesTest, WorkUnderWayThatReadsTheLostWorkerFails) {
  SimulatedCluster cluster(3);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(kMesh, {9}, kRows, 1), RedistributeRecord(1, kCopies, 2)});
  cluster.Kill(WorkerIndex(1));
  cluster.CompleteAll();
  EXPECT_FALSE(TensorOf(cluster, session, 2).status.ok());
}

// x += y carries the mesh and placements that x had when the client asked.
TEST(LostCopiesTest, ACallFromBeforeTheClientHeardGoesWhereItsTensorWent) {
  SimulatedCluster cluster(3);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(kMesh, {8}, kCopies, 1)});
  cluster.CompleteAll();
  cluster.Kill(WorkerIndex(0));
  CallRecord in_place = OpRecord(OpId::kAdd, {1, 1}, 2);
  in_place.call.attributes.Set(attribute::mesh, kMesh);
  in_place.call.attributes.Set(attribute::placements, kCopies);
  CallRecord asked = RedistributeRecord(1, kCopies, 3);
  asked.call.attributes.Set(attribute::mesh, kMesh);
  cluster.Submit(session, {in_place, asked});
  cluster.CompleteAll();
  EXPECT_EQ(ToText(TensorOf(cluster, session, 2).spec()), "f32[8] @ mesh(2; workers=1,2) [R]");
  EXPECT_TRUE(TensorOf(cluster, session, 2).status.ok());
  EXPECT_FALSE(TensorOf(cluster, session, 3).status.ok());  // it asks for the lost worker
}

// Worker 1 has said its part of a small read, and worker 0 has died after its own: the tensor's mesh is another one
// now.
TEST(LostCopiesTest, AReadIsPutTogetherAsItWasAsked) {
  SimulatedCluster cluster(4);
  const SessionId session = cluster.Open();
  const Mesh mesh = *Mesh::Make({2, 2}, {}, {});
  cluster.Submit(session, {FullRecord(mesh, {4}, {Placement::Replicate(), Placement::Shard(0)}, 1)});
  cluster.CompleteAll();
  DownloadRecord read;
  read.handle = HandleId(1);
  read.request = 5;
  read.allow_inline = true;
  cluster.Submit(session, {read});
  cluster.CompleteOn(WorkerIndex(0));
  cluster.Kill(WorkerIndex(0));
  cluster.CompleteAll();
  const auto values = cluster.EventsOf<InlineValueEvent>(session);
  ASSERT_EQ(values.size(), 1u);
  EXPECT_EQ(values[0].bytes, std::string(8, 'a') + std::string(8, 'b'));
}

}  // namespace
}  // namespace tessera
