// Memory that a window pins until every worker has answered its closing: ops that need it wait for that, and for
// nothing else.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/ops/op_ids.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMemory = 1 << 16;
constexpr int64_t kMost = 12 * 1024;  // elements of 4 bytes: three quarters of the memory
const Placements kEverywhere = {Placement::Replicate()};
Mesh Both() { return *Mesh::Make({2}, {}, {}); }
Mesh First() { return *Mesh::Make({1}, {}, {WorkerIndex(0)}); }

// A tensor of most of the memory that was dropped while it is downloaded: nothing but its window pins it.
struct PinnedByAWindow {
  explicit PinnedByAWindow(int64_t elements = kMost) {
    cluster.Submit(session, {FullRecord(Both(), {elements}, kEverywhere, 1), DownloadRecord{5, HandleId(1)}});
    cluster.CompleteAll();
    cluster.Submit(session, {DropRecord{{HandleId(1)}}});
  }
  ReleaseRecord Release() const { return {cluster.EventsOf<TicketEvent>(session).at(0).ticket, {}}; }
  size_t IssuedAt(int worker) const { return cluster.InstancesAt(WorkerIndex(worker)).size(); }
  auto Failed() const { return cluster.EventsOf<FailedHandleEvent>(session); }

  SimulatedCluster cluster{2, kMemory};
  SessionId session = cluster.Open();
};

TEST(ClosingWindowsTest, WhatDoesNotFitWaitsForAWindowThatIsBeingClosed) {
  PinnedByAWindow pinned;
  pinned.cluster.Submit(pinned.session, {pinned.Release(), FullRecord(Both(), {kMost}, kEverywhere, 2)});
  EXPECT_EQ(pinned.IssuedAt(0), 0u);
  pinned.cluster.CompleteOn(WorkerIndex(0));
  EXPECT_EQ(pinned.IssuedAt(0), 0u) << "one worker has not answered";
  pinned.cluster.CompleteOn(WorkerIndex(1));
  EXPECT_EQ(pinned.IssuedAt(0), 1u);
  EXPECT_TRUE(pinned.Failed().empty());
}

TEST(ClosingWindowsTest, AnUploadWaitsToo) {
  PinnedByAWindow pinned;
  const TensorSpec spec = *TensorSpec::Make("t", DType::kF32, {kMost}, Both(), kEverywhere);
  pinned.cluster.Submit(pinned.session, {pinned.Release(), UploadRecord{6, {{HandleId(2), spec}}}});
  EXPECT_TRUE(pinned.Failed().empty());
  pinned.cluster.CompleteAll();
  EXPECT_TRUE(pinned.Failed().empty());
  EXPECT_EQ(pinned.cluster.EventsOf<TicketEvent>(pinned.session).back().request, 6u);
}

// It is donated to: nothing else of it is there when the window is closed.
TEST(ClosingWindowsTest, AnOpOnWhatWasDownloadedWaitsForItsMemory) {
  SimulatedCluster cluster(2, kMemory);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(Both(), {kMost}, kEverywhere, 1), DownloadRecord{5, HandleId(1)}});
  cluster.CompleteAll();
  const TicketId ticket = cluster.EventsOf<TicketEvent>(session).at(0).ticket;
  cluster.Submit(session, {ReleaseRecord{ticket, {}}, OpRecord(OpId::kNeg, {1}, 2, /*last_use=*/true)});
  EXPECT_TRUE(cluster.InstancesAt(WorkerIndex(0)).empty());
  cluster.CompleteAll();
  EXPECT_TRUE(cluster.EventsOf<FailedHandleEvent>(session).empty());
  EXPECT_TRUE(cluster.machine().sessions().at(session).queue.empty());
}

TEST(ClosingWindowsTest, OtherSessionsGoOnMeanwhile) {
  PinnedByAWindow pinned;
  const SessionId other = pinned.cluster.Open();
  pinned.cluster.Submit(pinned.session, {pinned.Release(), FullRecord(Both(), {kMost}, kEverywhere, 2)});
  pinned.cluster.Submit(other, {FullRecord(Both(), {64}, kEverywhere, 1)});
  EXPECT_EQ(pinned.IssuedAt(0), 1u);
  EXPECT_EQ(pinned.cluster.machine().sessions().at(pinned.session).queue.size(), 2u) << "the op, and the batch's end";
}

TEST(ClosingWindowsTest, WhatFitsNowhereIsRefusedWhenTheLastOneIsClosed) {
  PinnedByAWindow pinned;
  pinned.cluster.Submit(pinned.session, {pinned.Release(), FullRecord(Both(), {2 * kMost}, kEverywhere, 2)});
  EXPECT_TRUE(pinned.Failed().empty());
  pinned.cluster.CompleteAll();
  ASSERT_EQ(pinned.Failed().size(), 1u);
  EXPECT_THAT(std::string(pinned.Failed()[0].status.message()), HasSubstr("has 65536 free of 65536"));
}

TEST(ClosingWindowsTest, NothingWaitsForAWindowThatAClientMayUse) {
  PinnedByAWindow pinned;
  pinned.cluster.Submit(pinned.session, {FullRecord(Both(), {kMost}, kEverywhere, 2)});
  EXPECT_EQ(pinned.Failed().size(), 1u);
}

TEST(ClosingWindowsTest, NothingWaitsForAWindowOnOtherWorkers) {
  SimulatedCluster cluster(2, kMemory);
  const SessionId session = cluster.Open();
  const Mesh second = *Mesh::Make({1}, {}, {WorkerIndex(1)});
  cluster.Submit(session, {FullRecord(second, {kMost}, kEverywhere, 1), DownloadRecord{5, HandleId(1)}});
  cluster.CompleteAll();
  const TicketId ticket = cluster.EventsOf<TicketEvent>(session).at(0).ticket;
  cluster.Submit(session, {ReleaseRecord{ticket, {}}, FullRecord(First(), {2 * kMost}, kEverywhere, 2)});
  EXPECT_EQ(cluster.EventsOf<FailedHandleEvent>(session).size(), 1u);
}

// Others may open and close windows for ever.
TEST(ClosingWindowsTest, WindowsThatWereOpenedLaterAreNotWaitedFor) {
  PinnedByAWindow pinned;
  const SessionId other = pinned.cluster.Open();
  pinned.cluster.Submit(pinned.session, {pinned.Release(), FullRecord(Both(), {2 * kMost}, kEverywhere, 2)});
  pinned.cluster.Submit(other, {FullRecord(First(), {64}, kEverywhere, 1), DownloadRecord{5, HandleId(1)}});
  pinned.cluster.CompleteOn(WorkerIndex(0));
  const auto later = pinned.cluster.EventsOf<TicketEvent>(other);
  ASSERT_EQ(later.size(), 1u);
  pinned.cluster.Submit(other, {ReleaseRecord{later[0].ticket, {}}});
  EXPECT_TRUE(pinned.Failed().empty());
  pinned.cluster.CompleteOn(WorkerIndex(1));
  EXPECT_EQ(pinned.Failed().size(), 1u) << "worker 0 has not answered the other session's";
}

TEST(ClosingWindowsTest, AWorkersDeathEndsTheWait) {
  PinnedByAWindow pinned;
  pinned.cluster.Submit(pinned.session, {pinned.Release(), FullRecord(First(), {kMost}, kEverywhere, 2)});
  pinned.cluster.CompleteOn(WorkerIndex(0));
  EXPECT_EQ(pinned.IssuedAt(0), 0u);
  pinned.cluster.Kill(WorkerIndex(1));
  EXPECT_EQ(pinned.IssuedAt(0), 1u);
}

TEST(ClosingWindowsTest, WhatWaitsCanBeCancelled) {
  PinnedByAWindow pinned;
  pinned.cluster.Submit(pinned.session, {pinned.Release(), FullRecord(Both(), {kMost}, kEverywhere, 2)});
  pinned.cluster.Submit(pinned.session, {CancelCallsRecord{}});
  ASSERT_EQ(pinned.Failed().size(), 1u);
  EXPECT_EQ(pinned.Failed()[0].status.code(), absl::StatusCode::kCancelled);
}

// A cancel that comes before its window is open answers it; the closing of the window has nothing to add. So it is with
// what fails on a worker.
TEST(ClosingWindowsTest, AnUploadThatEndsBeforeItsWindowIsOpenIsAnsweredOnce) {
  const TensorSpec spec = *TensorSpec::Make("t", DType::kF32, {8}, Both(), kEverywhere);
  SimulatedCluster cancelled(2, kMemory), failed(2, kMemory);
  for (SimulatedCluster* cluster : {&cancelled, &failed}) {
    const SessionId session = cluster->Open();
    cluster->Submit(session, {UploadRecord{5, {{HandleId(1), spec}}}});
    if (cluster == &cancelled) cluster->Submit(session, {CancelRecord{5}});
    if (cluster == &failed) cluster->CompleteOn(WorkerIndex(0), Ordinal(1), absl::InternalError("no window"));
    cluster->CompleteAll();
    const auto settled = cluster->EventsOf<SettledEvent>(session);
    ASSERT_EQ(settled.size(), 1u);
    EXPECT_EQ(settled[0].request, 5u);
    EXPECT_FALSE(settled[0].status.ok());
    EXPECT_EQ(cluster->EventsOf<FailedHandleEvent>(session).size(), 1u);
  }
}

// Nobody uses the windows of a client that is gone, nor those that it asked for and that have not had their turn.
TEST(ClosingWindowsTest, AResumedSessionHasNoTransferOfItsFormerClient) {
  const TensorSpec spec = *TensorSpec::Make("t", DType::kF32, {8}, Both(), kEverywhere);
  SimulatedCluster cluster(2, kMemory);
  const SessionId session = cluster.Open(60'000'000);
  cluster.Submit(session, {FullRecord(Both(), {kMost / 4}, kEverywhere, 1), DownloadRecord{5, HandleId(1)},
                           UploadRecord{6, {{HandleId(2), spec}}}, OpRecord(OpId::kNeg, {2}, 3),
                           UploadRecord{7, {{HandleId(4), spec}}}, DownloadRecord{8, HandleId(1)}});
  cluster.CompleteAll();
  ASSERT_EQ(cluster.EventsOf<TicketEvent>(session).size(), 2u) << "the rest waits for what is to be brought";
  cluster.Apply(ConnectionLostEvent{session});
  cluster.Apply(SessionResumedEvent{session});
  cluster.CompleteAll();
  EXPECT_EQ(cluster.EventsOf<TicketEvent>(session).size(), 2u);
  EXPECT_EQ(cluster.machine().sessions().at(session).tickets, 0);
  EXPECT_TRUE(cluster.machine().sessions().at(session).queue.empty());
  std::vector<uint64_t> answered;
  for (const SettledEvent& settled : cluster.EventsOf<SettledEvent>(session)) {
    EXPECT_THAT(std::string(settled.status.message()), HasSubstr(": its client is gone"));
    answered.push_back(settled.request);
  }
  EXPECT_THAT(answered, ::testing::UnorderedElementsAre(6, 7, 8));
  EXPECT_EQ(cluster.EventsOf<FailedHandleEvent>(session).size(), 3u) << "both uploads and what is made of the first";
}

}  // namespace
}  // namespace tessera
