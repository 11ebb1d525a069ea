// The coordinator's message of a tensor that failed: the first cause, in the words of who was called, and the way.

#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "server/coordinator/state_machine.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

Mesh MeshOf(int64_t n) { return *Mesh::Make({n}, {}, {}); }
const Placements kRows = {Placement::Shard(0)};

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(FailureMessagesTest, AFailurePoisonsWhatDependsOnItWithTheFirstCause) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {8}, kRows, 1), FullRecord(MeshOf(2), {8}, kRows, 2),
                           OpRecord(OpId::kNeg, {1}, 3), OpRecord(OpId::kAdd, {3, 2}, 4)});
  const Ordinal failing = cluster.InstancesAt(WorkerIndex(0)).at(0).ordinal;
  cluster.CompleteAll(failing, absl::InternalError("full: the kernel failed"));
  std::map<uint64_t, std::string> failed;
  for (const auto& event : cluster.EventsOf<FailedHandleEvent>(session))
    failed[event.handle.value] = Message(event.status);
  EXPECT_EQ(failed.size(), 3u);
  EXPECT_EQ(failed[1], "full: the kernel failed");
  EXPECT_EQ(failed[3], "full: the kernel failed; on the way here: negative f32[8]");
  EXPECT_EQ(failed[4], "full: the kernel failed; on the way here: negative f32[8], add f32[8]");
  cluster.Submit(session, {WatchRecord{9, HandleId(2)}, WatchRecord{10, HandleId(4)}});
  const auto settled = cluster.EventsOf<SettledEvent>(session);
  ASSERT_EQ(settled.size(), 2u);
  EXPECT_TRUE(settled[0].status.ok());
  EXPECT_EQ(settled[1].status.code(), absl::StatusCode::kInternal);
}

TEST(FailureMessagesTest, WhatIsAskedForAfterAFailureSaysTheSameAsWhatWasIssuedBeforeIt) {
  SimulatedCluster cluster(2, 1 << 16);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {1024, 1024}, kRows, 1), OpRecord(OpId::kNeg, {1}, 2),
                           OpRecord(OpId::kAdd, {1, 2}, 3), OpRecord(OpId::kAdd, {3, 99}, 4)});
  const auto failed = cluster.EventsOf<FailedHandleEvent>(session);
  ASSERT_EQ(failed.size(), 4u);
  const std::string cause = Message(failed[0].status);
  EXPECT_EQ(Message(failed[1].status), cause + "; on the way here: negative f32[1024,1024]");
  EXPECT_EQ(Message(failed[2].status), cause + "; on the way here: add f32[1024,1024]");
  EXPECT_EQ(Message(failed[3].status), cause + "; on the way here: add f32[1024,1024], add");
}

TEST(FailureMessagesTest, MessagesNameWhatTheUserCalled) {
  SimulatedCluster cluster(2, 1 << 16);
  const SessionId session = cluster.Open();
  CallRecord zeros = FullRecord(MeshOf(2), {1024, 1024}, kRows, 1);
  zeros.called_as = CalledAs::kZeros;
  CallRecord outer = OpRecord(OpId::kEinsum, {2, 2}, 3);
  outer.call.attributes.Set(attribute::notation, "i,j->ij");
  outer.called_as = CalledAs::kOuter;
  CallRecord on_the_way = OpRecord(OpId::kAdd, {3, 3}, 4);
  on_the_way.called_as = CalledAs::kAddmm;
  CallRecord unknown = OpRecord(OpId::kNeg, {99}, 5);
  unknown.called_as = CalledAs::kAddmm;
  cluster.Submit(session, {zeros, FullRecord(MeshOf(2), {1024}, kRows, 2), outer, on_the_way, unknown});
  std::map<uint64_t, std::string> failed;
  for (const auto& event : cluster.EventsOf<FailedHandleEvent>(session))
    failed[event.handle.value] = Message(event.status);
  ASSERT_EQ(failed.size(), 4u);
  EXPECT_EQ(failed[1].find("zeros: does not fit in memory: 2097152 bytes wanted"), 0u) << failed[1];
  EXPECT_EQ(failed[3].find("outer: does not fit"), 0u) << failed[3];
  EXPECT_EQ(failed[4], failed[3] + "; on the way here: addmm f32[1024,1024]");
  EXPECT_EQ(failed[5], "addmm: this session has no tensor with handle 99");
}

TEST(FailureMessagesTest, WhatFailsOnAWorkerNamesWhatTheUserCalled) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  CallRecord zeros = FullRecord(MeshOf(2), {8}, kRows, 1);
  zeros.called_as = CalledAs::kZeros;
  cluster.Submit(session, {zeros});
  cluster.CompleteAll(cluster.InstancesAt(WorkerIndex(0)).at(0).ordinal, absl::InternalError("the kernel failed"));
  const auto failed = cluster.EventsOf<FailedHandleEvent>(session);
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(Message(failed[0].status), "zeros: the kernel failed");
}

TEST(FailureMessagesTest, OfALongWayTheFirstAndTheLastOpsAreTold) {
  for (const bool is_late : {false, true}) {
    SimulatedCluster cluster(2);
    const SessionId session = cluster.Open();
    std::vector<Record> ops = {OpRecord(OpId::kExp, {1}, 2),  OpRecord(OpId::kNeg, {2}, 3),
                               OpRecord(OpId::kSqrt, {3}, 4), OpRecord(OpId::kNeg, {4}, 5),
                               OpRecord(OpId::kExp, {5}, 6),  OpRecord(OpId::kAdd, {6, 6}, 7)};
    cluster.Submit(session, {FullRecord(MeshOf(2), {8}, kRows, 1)});
    if (!is_late) cluster.Submit(session, ops);
    cluster.CompleteAll(cluster.InstancesAt(WorkerIndex(0)).at(0).ordinal, absl::InternalError("full: broken"));
    if (is_late) cluster.Submit(session, ops);
    std::map<uint64_t, std::string> failed;
    for (const auto& event : cluster.EventsOf<FailedHandleEvent>(session)) {
      failed[event.handle.value] = Message(event.status);
    }
    EXPECT_EQ(failed[5], "full: broken; on the way here: exp f32[8], negative f32[8], sqrt f32[8], negative f32[8]");
    EXPECT_EQ(failed[6],
              "full: broken; on the way here: exp f32[8], negative f32[8], ..., negative f32[8], exp f32[8]");
    EXPECT_EQ(failed[7], "full: broken; on the way here: exp f32[8], negative f32[8], ..., exp f32[8], add f32[8]");
  }
}

}  // namespace
}  // namespace tessera
