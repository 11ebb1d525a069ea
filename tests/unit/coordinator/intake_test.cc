// How records are taken up: what one message may cost, who pays for it, and who has the next turn.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/ops/op_ids.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

const Placements kEverywhere = {Placement::Replicate()};
Mesh MeshOf(int64_t n) { return *Mesh::Make({n}, {}, {}); }

// As many calls of shapes that nobody planned before.
std::vector<Record> NewShapes(int64_t count, uint64_t first_handle) {
  std::vector<Record> records;
  for (int64_t i = 0; i < count; ++i) {
    records.push_back(FullRecord(MeshOf(2), {1 + i}, kEverywhere, first_handle + static_cast<uint64_t>(i)));
  }
  return records;
}

TEST(IntakeTest, OneEventTakesUpABoundedShareAndTheRestGoesOn) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.ApplyOne(BatchEvent{session, 1, NewShapes(200, 1)});
  EXPECT_TRUE(cluster.machine().has_more());
  const size_t first = cluster.InstancesAt(WorkerIndex(0)).size();
  EXPECT_GT(first, 0u);
  EXPECT_LT(first, 50u);
  while (cluster.machine().has_more()) {
    const size_t before = cluster.InstancesAt(WorkerIndex(0)).size();
    cluster.ApplyOne(ContinuedEvent{});
    EXPECT_GT(cluster.InstancesAt(WorkerIndex(0)).size(), before);
  }
  EXPECT_EQ(cluster.InstancesAt(WorkerIndex(0)).size(), 200u);
}

TEST(IntakeTest, WhoAsksForNewPlansPaysForThemAndOthersGoFirst) {
  SimulatedCluster cluster(2);
  const SessionId planning = cluster.Open(), other = cluster.Open();
  cluster.Submit(other, {FullRecord(MeshOf(2), {8}, kEverywhere, 1)});
  cluster.CompleteAll();
  cluster.ApplyOne(BatchEvent{planning, 1, NewShapes(200, 1)});
  ASSERT_TRUE(cluster.machine().has_more());
  const size_t before = cluster.InstancesAt(WorkerIndex(0)).size();
  cluster.ApplyOne(BatchEvent{other, 2, {OpRecord(OpId::kNeg, {1}, 2), WatchRecord{5, HandleId(2)}}});
  const auto instances = cluster.InstancesAt(WorkerIndex(0));
  ASSERT_GT(instances.size(), before);
  EXPECT_EQ(instances[before].buffer_offsets.size(), 2u) << "the other session's, at once";
  EXPECT_TRUE(cluster.machine().sessions().at(other).queue.empty());
}

// Plans that are made again and again for want of room in the cache are no reason to go on for ever.
TEST(IntakeTest, BlockedSessionsThatReplanComeToAnEnd) {
  CoordinatorConfig config;
  config.max_cached_plans = 1;
  config.max_outstanding_per_worker = 1;
  SimulatedCluster cluster(2, 1 << 20, config);
  const SessionId a = cluster.Open(), b = cluster.Open();
  cluster.Submit(a, NewShapes(20, 1));
  cluster.Submit(b, NewShapes(20, 1));
  EXPECT_FALSE(cluster.machine().has_more());
  cluster.CompleteAll();
  EXPECT_TRUE(cluster.machine().sessions().at(a).queue.empty());
  EXPECT_TRUE(cluster.machine().sessions().at(b).queue.empty());
}

TEST(IntakeTest, ARecordOfManyHandlesCountsAsManyInItsQueue) {
  CoordinatorConfig config;
  config.max_outstanding_per_worker = 1;
  config.max_queued_records = 100;
  SimulatedCluster cluster(1, 1 << 20, config);
  const SessionId session = cluster.Open();
  // The second call waits, and so does all that follows.
  cluster.Submit(session, {FullRecord(MeshOf(1), {8}, kEverywhere, 1), FullRecord(MeshOf(1), {8}, kEverywhere, 2)});
  cluster.Submit(session, {DropRecord{absl::InlinedVector<HandleId, 2>(64 * 50)}});
  EXPECT_TRUE(cluster.ended().empty());
  cluster.Submit(session, {DropRecord{absl::InlinedVector<HandleId, 2>(64 * 50)}});
  ASSERT_TRUE(cluster.ended().contains(session));
  EXPECT_THAT(std::string(cluster.ended().at(session).message()), HasSubstr("max_queued_records is 100"));
}

TEST(IntakeTest, TheQueuesWeightIsThatOfItsRecordsAlsoWhenTheyAreCancelled) {
  CoordinatorConfig config;
  config.max_outstanding_per_worker = 1;
  SimulatedCluster cluster(1, 1 << 20, config);
  const SessionId session = cluster.Open();
  std::vector<Record> records = {FullRecord(MeshOf(1), {8}, kEverywhere, 1)};
  for (uint64_t i = 1; i < 40; ++i) records.push_back(OpRecord(OpId::kNeg, {i}, i + 1, /*last_use=*/true));
  records.push_back(DropRecord{absl::InlinedVector<HandleId, 2>(200)});
  cluster.Submit(session, records);
  EXPECT_GT(cluster.machine().sessions().at(session).queue_weight, 40);
  cluster.Submit(session, {CancelCallsRecord{}});
  cluster.CompleteAll();
  EXPECT_TRUE(cluster.machine().sessions().at(session).queue.empty());
  EXPECT_EQ(cluster.machine().sessions().at(session).queue_weight, 0);
}

TEST(IntakeTest, ACancelOfABatchIsForWhatCameBeforeItAlone) {
  CoordinatorConfig config;
  config.max_outstanding_per_worker = 1;
  SimulatedCluster cluster(1, 1 << 20, config);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(1), {8}, kEverywhere, 1), FullRecord(MeshOf(1), {8}, kEverywhere, 2)});
  cluster.Submit(session, {FullRecord(MeshOf(1), {8}, kEverywhere, 3), WatchRecord{7, HandleId(1)}, CancelCallsRecord{},
                           CancelRecord{7}, FullRecord(MeshOf(1), {8}, kEverywhere, 4)});
  cluster.CompleteAll();
  std::vector<HandleId> failed;
  for (const auto& event : cluster.EventsOf<FailedHandleEvent>(session)) failed.push_back(event.handle);
  EXPECT_THAT(failed, testing::ElementsAre(HandleId(2), HandleId(3)));
  ASSERT_EQ(cluster.EventsOf<SettledEvent>(session).size(), 1u);
  EXPECT_EQ(cluster.EventsOf<SettledEvent>(session)[0].status.code(), absl::StatusCode::kCancelled);
}

TEST(IntakeTest, ACancelLeavesWhatLeadsToTheHandlesThatItNames) {
  CoordinatorConfig config;
  config.max_outstanding_per_worker = 1;
  SimulatedCluster cluster(1, 1 << 20, config);
  const SessionId session = cluster.Open();
  const TensorSpec brought = *TensorSpec::Make("upload", DType::kF32, {8}, MeshOf(1), kEverywhere);
  cluster.Submit(session,
                 {FullRecord(MeshOf(1), {8}, kEverywhere, 1), OpRecord(OpId::kNeg, {1}, 2),
                  UploadRecord{5, {{HandleId(3), brought}}}, UploadRecord{6, {{HandleId(4), brought}}},
                  OpRecord(OpId::kAdd, {2, 4}, 6), OpRecord(OpId::kNeg, {2}, 7), OpRecord(OpId::kNeg, {7}, 8)});
  cluster.Submit(session, {CancelCallsRecord{{HandleId(6), HandleId(7)}}});
  std::vector<HandleId> failed;
  for (const auto& event : cluster.EventsOf<FailedHandleEvent>(session)) failed.push_back(event.handle);
  cluster.CompleteAll();
  for (const auto& event : cluster.EventsOf<FailedHandleEvent>(session)) failed.push_back(event.handle);
  EXPECT_THAT(failed, testing::Not(testing::Contains(HandleId(2))));
  EXPECT_THAT(failed, testing::Not(testing::Contains(HandleId(4))));
  EXPECT_THAT(failed, testing::Contains(HandleId(3)));
}

TEST(IntakeTest, HandlesThatFailedTogetherShareWhatIsKeptOfThem) {
  SimulatedCluster cluster(1);
  const SessionId session = cluster.Open();
  BadRecord cancelled{absl::CancelledError("cancelled"), 0, {}, {}};
  for (uint64_t i = 1; i <= 1000; ++i) cancelled.results.emplace_back(i);
  cluster.Submit(session, {cancelled});
  const auto& tensors = cluster.machine().sessions().at(session).tensors;
  ASSERT_EQ(tensors.size(), 1000u);
  EXPECT_EQ(tensors.at(HandleId(1)), tensors.at(HandleId(1000)));
  EXPECT_EQ(cluster.EventsOf<FailedHandleEvent>(session).size(), 1000u);
}

TEST(IntakeTest, ASessionKnowsTheBytesThatItHolds) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {64}, kEverywhere, 1), FullRecord(MeshOf(2), {64}, kEverywhere, 2)});
  EXPECT_EQ(cluster.machine().sessions().at(session).bytes, 512);
  cluster.CompleteAll();
  cluster.Submit(session, {DropRecord{{HandleId(1)}}});
  EXPECT_EQ(cluster.machine().sessions().at(session).bytes, 256);
}

TEST(IntakeTest, ClientsCannotTakeTheSessionsOfAdmins) {
  CoordinatorConfig config;
  config.max_sessions = 2;
  config.max_admin_sessions = 1;
  SimulatedCluster cluster(1, 1 << 20, config);
  const SessionId first = cluster.Open(), second = cluster.Open(), third = cluster.Open();
  EXPECT_FALSE(cluster.ended().contains(first) || cluster.ended().contains(second));
  ASSERT_TRUE(cluster.ended().contains(third));
  EXPECT_THAT(std::string(cluster.ended().at(third).message()), HasSubstr("2 sessions are open, max_sessions is 2"));
  cluster.Apply(SessionOpenedEvent{SessionId(10), 77, "", "test", 0, Role::kAdmin});
  EXPECT_FALSE(cluster.ended().contains(SessionId(10)));
  cluster.Apply(SessionOpenedEvent{SessionId(11), 77, "", "test", 0, Role::kAdmin});
  EXPECT_TRUE(cluster.ended().contains(SessionId(11)));
  cluster.Apply(SessionClosedEvent{first});
  EXPECT_FALSE(cluster.ended().contains(cluster.Open()));
}

TEST(IntakeTest, AUserHasItsShareOfTheSessionsAndOthersFindPlaces) {
  CoordinatorConfig config;
  config.max_sessions = 4;
  config.max_sessions_per_uid = 2;
  SimulatedCluster cluster(1, 1 << 20, config);
  auto open = [&, next = uint64_t{10}](int64_t uid, Role role = Role::kClient) mutable {
    const SessionId session(next++);
    cluster.Apply(SessionOpenedEvent{session, 77, "", "test", 3'600'000'000, role, "", 0, uid});
    return session;
  };
  const SessionId idle = open(1000);
  open(1000);
  const SessionId third = open(1000);
  ASSERT_TRUE(cluster.ended().contains(third));
  EXPECT_EQ(std::string(cluster.ended().at(third).message()),
            "connect: 2 sessions of uid 1000 are open, max_sessions_per_uid is 2");
  // Another user's idle session makes no room for this one's.
  const SessionId others = open(1001);
  cluster.Apply(ConnectionLostEvent{others, 0});
  EXPECT_TRUE(cluster.ended().contains(open(1000)));
  EXPECT_FALSE(cluster.ended().contains(others));
  cluster.Apply(ConnectionLostEvent{idle, 0});
  EXPECT_FALSE(cluster.ended().contains(open(1000)));
  EXPECT_TRUE(cluster.ended().contains(idle));
  // Admins, and clients from elsewhere, have no user's share.
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(cluster.ended().contains(open(1000, Role::kAdmin)));
  EXPECT_FALSE(cluster.ended().contains(open(kNoUid)));
}

TEST(IntakeTest, ASessionThatNobodyUsesMakesRoom) {
  CoordinatorConfig config;
  config.max_sessions = 3;
  SimulatedCluster cluster(1, 1 << 20, config);
  constexpr int64_t kHourUs = 3'600'000'000;
  const SessionId idle = cluster.Open(kHourUs), busy = cluster.Open(kHourUs), here = cluster.Open(kHourUs);
  cluster.Submit(busy, {FullRecord(MeshOf(1), {8}, kEverywhere, 1)});
  cluster.CompleteAll();
  cluster.Apply(ConnectionLostEvent{busy, 0});
  // All have a client or a tensor: nobody makes room.
  EXPECT_TRUE(cluster.ended().contains(cluster.Open()));
  cluster.Apply(ConnectionLostEvent{idle, 0});
  const SessionId next = cluster.Open();
  EXPECT_FALSE(cluster.ended().contains(next));
  EXPECT_TRUE(cluster.ended().contains(idle));
  EXPECT_FALSE(cluster.ended().contains(busy) || cluster.ended().contains(here));
}

}  // namespace
}  // namespace tessera
