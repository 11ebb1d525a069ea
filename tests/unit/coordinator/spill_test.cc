// Buffers that leave the arenas for files of their workers, and come back: the state machine's part.

#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

// Two workers of 4 MiB and a bit, tensors of 2 MiB in two shards of 1 MiB: four fit.
class SpillTest : public testing::Test {
 protected:
  SpillTest() { cluster_.Advance(1000); }
  static Mesh Both() { return *Mesh::Make({2}, {}, {WorkerIndex(0), WorkerIndex(1)}); }
  CallRecord Full(uint64_t handle) { return FullRecord(Both(), {2 * kMiB / 4}, {Placement::Shard(0)}, handle); }
  // The sum of all elements, in a buffer of some bytes.
  CallRecord Sum(uint64_t operand, uint64_t result) {
    CallRecord record = OpRecord(OpId::kSum, {operand}, result);
    record.call.attributes.Set(attribute::dims, std::vector<int64_t>{0});
    return record;
  }
  void Fill(SessionId session, uint64_t from, uint64_t to) {
    for (uint64_t handle = from; handle <= to; ++handle) cluster_.Submit(session, {Full(handle)});
    cluster_.CompleteAll();
  }
  // That are not over.
  std::vector<TransferWindow> Windows() {
    std::vector<TransferWindow> windows;
    for (const TransferWindow& window : cluster_.spills()) {
      if (!finished_.contains(window.ticket)) windows.push_back(window);
    }
    return windows;
  }
  std::vector<uint64_t> Forgotten() {
    std::vector<uint64_t> files;
    for (const WorkerMessage& message : cluster_.MessagesAt(WorkerIndex(0))) {
      if (const auto* forget = std::get_if<ForgetSpilled>(&message)) files.push_back(forget->file);
    }
    return files;
  }
  // All windows open, and their bytes have gone, those of `in_host_memory` to memory of their hosts; nothing else is
  // done.
  void FinishSpills(const absl::Status& status = absl::OkStatus(), const std::set<int>& in_host_memory = {}) {
    const std::vector<TransferWindow> windows = Windows();
    for (const TransferWindow& window : windows) {
      for (const int worker : {0, 1}) {
        CompletionReport open;
        open.ordinal = window.ordinal;
        cluster_.Apply(WorkerReportEvent{WorkerIndex(worker), static_cast<uint64_t>(worker) + 1, {open}, {}});
      }
      if (!finished_.insert(window.ticket).second) continue;
      for (const int worker : {0, 1}) {
        TransferReport over{window.ticket, status};
        over.in_host_memory = in_host_memory.contains(worker);
        cluster_.Apply(WorkerReportEvent{WorkerIndex(worker), static_cast<uint64_t>(worker) + 1, {}, {over}});
      }
    }
  }
  // Until nothing is left to do.
  void FinishAll() {
    for (int turn = 0; turn < 200; ++turn) {
      FinishSpills();
      cluster_.CompleteAll();
    }
  }
  const TensorEntry& TensorOf(SessionId session, uint64_t handle) {
    return *cluster_.machine().sessions().at(session).tensors.at(HandleId(handle));
  }
  bool IsInMemory(SessionId session, uint64_t handle) {
    return tessera::IsInMemory(cluster_.machine().PlaceOf(TensorOf(session, handle)));
  }
  int64_t SpilledOn(int worker) { return cluster_.machine().workers().at(WorkerIndex(worker)).spilled_bytes; }
  int64_t UsedOn(int worker) { return cluster_.machine().memory().UsedBytes(WorkerIndex(worker)); }

  SimulatedCluster cluster_{2, 4 * kMiB + (64 << 10), SimulatedCluster::RoomyConfig(), 1, 64 * kMiB};
  std::set<TicketId> finished_;
  SessionId session_ = cluster_.Open();
};

TEST_F(SpillTest, TheOneThatWasUsedLongestAgoLeaves) {
  Fill(session_, 1, 4);
  cluster_.Submit(session_, {Sum(1, 9)});  // 2 is the oldest now
  cluster_.CompleteAll();
  cluster_.Submit(session_, {Full(5)});
  FinishAll();
  EXPECT_TRUE(IsInMemory(session_, 1));
  EXPECT_FALSE(IsInMemory(session_, 2));
}

TEST_F(SpillTest, ATensorLeavesAndComesBackToAnotherPlace) {
  Fill(session_, 1, 4);
  cluster_.Submit(session_, {Full(5)});
  const std::vector<TransferWindow> out = Windows();
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].direction(), TransferDirection::kDownload);
  EXPECT_EQ(out[0].ranges[0].offset_bytes, TensorOf(session_, 1).offset_bytes);
  EXPECT_EQ(MaxShardElements(out[0].ranges[0].spec), kMiB) << "the whole range, as bytes";
  EXPECT_TRUE(cluster_.InstancesAt(WorkerIndex(0)).empty()) << "its range is not free yet";
  FinishSpills();
  EXPECT_FALSE(IsInMemory(session_, 1));
  EXPECT_EQ(cluster_.InstancesAt(WorkerIndex(0)).size(), 1u);
  EXPECT_EQ(SpilledOn(0), kMiB);
  EXPECT_EQ(UsedOn(0), 4 * kMiB);
  cluster_.CompleteAll();

  const int64_t before = TensorOf(session_, 1).offset_bytes;
  cluster_.Submit(session_, {DropRecord{{HandleId(3)}}, Sum(1, 6)});
  const std::vector<TransferWindow> in = Windows();
  ASSERT_EQ(in.size(), 1u);
  EXPECT_EQ(in[0].direction(), TransferDirection::kUpload);
  EXPECT_EQ(in[0].spill_file, out[0].spill_file);
  EXPECT_TRUE(cluster_.InstancesAt(WorkerIndex(0)).empty());
  FinishSpills();
  EXPECT_TRUE(IsInMemory(session_, 1));
  EXPECT_NE(TensorOf(session_, 1).offset_bytes, before);
  EXPECT_EQ(TensorOf(session_, 1).offset_bytes, in[0].ranges[0].offset_bytes);
  EXPECT_THAT(Forgotten(), testing::ElementsAre(out[0].spill_file));
  EXPECT_EQ(SpilledOn(0), 0);
  EXPECT_EQ(cluster_.InstancesAt(WorkerIndex(0)).size(), 1u);
}

// A tensor of which one worker's part went to a file counts as in files.
TEST_F(SpillTest, WorkersSayWhichPartsAreInMemoryOfTheirHosts) {
  const auto in_hosts = [&](int worker) {
    return cluster_.machine().workers().at(WorkerIndex(worker)).spilled_to_host_bytes;
  };
  Fill(session_, 1, 4);
  cluster_.Submit(session_, {Full(5)});
  FinishSpills(absl::OkStatus(), {0});
  cluster_.CompleteAll();
  EXPECT_FALSE(cluster_.machine().IsInHostMemory(TensorOf(session_, 1)));
  EXPECT_EQ(in_hosts(0), kMiB);
  EXPECT_EQ(in_hosts(1), 0);
  cluster_.Submit(session_, {Full(6)});
  FinishSpills(absl::OkStatus(), {0, 1});
  cluster_.CompleteAll();
  EXPECT_TRUE(cluster_.machine().IsInHostMemory(TensorOf(session_, 2)));
  EXPECT_FALSE(cluster_.machine().IsInHostMemory(TensorOf(session_, 3))) << "it is in the arenas";
  EXPECT_EQ(in_hosts(0), 2 * kMiB);
  EXPECT_EQ(SpilledOn(0), 2 * kMiB);
  cluster_.Submit(session_, {DropRecord{{HandleId(3), HandleId(4)}}, Sum(1, 7), Sum(2, 8)});
  FinishAll();
  EXPECT_TRUE(IsInMemory(session_, 1) && IsInMemory(session_, 2));
  EXPECT_EQ(in_hosts(0) + in_hosts(1) + SpilledOn(0), 0);
}

// Slots have other numbers after a snapshot, so they must decide nothing.
TEST_F(SpillTest, OperandsComeBackInTheOrderOfTheirRecord) {
  Fill(session_, 1, 6);
  FinishAll();
  ASSERT_FALSE(IsInMemory(session_, 1));
  ASSERT_FALSE(IsInMemory(session_, 2));
  const std::vector<TransferWindow> out = cluster_.spills();
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0].ranges[0].offset_bytes, TensorOf(session_, 1).offset_bytes);
  cluster_.Submit(session_, {DropRecord{{HandleId(3), HandleId(4), HandleId(5)}}, OpRecord(OpId::kAdd, {2, 1}, 7)});
  const std::vector<TransferWindow> in = Windows();
  ASSERT_EQ(in.size(), 2u);
  EXPECT_EQ(in[0].spill_file, out[1].spill_file);
  EXPECT_EQ(in[1].spill_file, out[0].spill_file);
}

TEST_F(SpillTest, OneThatIsUsedWhileItLeavesStays) {
  Fill(session_, 1, 4);
  const SessionId other = cluster_.Open();
  cluster_.Submit(other, {Full(1)});
  const std::vector<TransferWindow> out = Windows();
  ASSERT_EQ(out.size(), 1u);
  cluster_.CompleteOn(WorkerIndex(0));
  cluster_.CompleteOn(WorkerIndex(1));
  cluster_.Submit(session_, {Sum(1, 6)});
  EXPECT_EQ(cluster_.InstancesAt(WorkerIndex(0)).size(), 1u) << "it is there, and waits for nothing";
  finished_.insert(out[0].ticket);
  cluster_.FinishUpload(out[0].ticket);
  EXPECT_TRUE(IsInMemory(session_, 1));
  EXPECT_THAT(Forgotten(), testing::ElementsAre(out[0].spill_file));
  // Another one leaves in its place.
  const std::vector<TransferWindow> next = Windows();
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].ranges[0].offset_bytes, TensorOf(session_, 2).offset_bytes);
}

TEST_F(SpillTest, AFullDiskCostsNoTensor) {
  Fill(session_, 1, 4);
  cluster_.Submit(session_, {Full(5)});
  FinishSpills(absl::ResourceExhaustedError("the disk is full"));
  EXPECT_TRUE(IsInMemory(session_, 1));
  const auto failed = cluster_.EventsOf<FailedHandleEvent>(session_);
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].handle, HandleId(5));
  EXPECT_EQ(failed[0].status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(failed[0].status.message()), HasSubstr("worker 0 could not write a file"));
  EXPECT_EQ(SpilledOn(0), 0);
  // Later it is tried again.
  cluster_.Advance(20'000'000);
  for (const int worker : {0, 1}) cluster_.Apply(WorkerHeardEvent{WorkerIndex(worker)});
  cluster_.Advance(1);
  cluster_.Submit(session_, {Full(6)});
  FinishSpills();
  EXPECT_FALSE(IsInMemory(session_, 1));
}

TEST_F(SpillTest, AFileThatCanNotBeReadIsToldAndTriedAgain) {
  Fill(session_, 1, 4);
  cluster_.Submit(session_, {Full(5)});
  FinishAll();
  cluster_.Submit(session_, {DropRecord{{HandleId(2)}}, Sum(1, 6)});
  FinishSpills(absl::InternalError("file: reading at 0: Input/output error"));
  const auto failed = cluster_.EventsOf<FailedHandleEvent>(session_);
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].handle, HandleId(6));
  EXPECT_THAT(std::string(failed[0].status.message()), HasSubstr("Input/output error"));
  EXPECT_EQ(UsedOn(0), 3 * kMiB) << "its new range is free again";
  cluster_.Submit(session_, {Sum(1, 7)});
  FinishAll();
  EXPECT_TRUE(IsInMemory(session_, 1));
  EXPECT_EQ(cluster_.EventsOf<FailedHandleEvent>(session_).size(), 1u);
}

TEST_F(SpillTest, ATensorThatIsDroppedWhileItIsAwayLeavesNoFile) {
  Fill(session_, 1, 4);
  cluster_.Submit(session_, {Full(5)});
  FinishAll();
  cluster_.Submit(session_, {DropRecord{{HandleId(1)}}});
  EXPECT_EQ(Forgotten().size(), 1u);
  EXPECT_EQ(SpilledOn(1), 0);
  cluster_.Submit(session_, {DropRecord{{HandleId(2), HandleId(3), HandleId(4), HandleId(5)}}});
  EXPECT_EQ(UsedOn(0), 0);
}

TEST_F(SpillTest, TwoThatWantMoreThanThereIsBothGetIt) {
  const SessionId other = cluster_.Open();
  Fill(session_, 1, 4);
  for (uint64_t handle = 1; handle <= 4; ++handle) {
    cluster_.Submit(other, {Full(handle)});
    FinishAll();
  }
  // Each takes three of its own, of which most are away, and makes a fourth.
  for (const SessionId session : {session_, other}) {
    cluster_.Submit(session, {OpRecord(OpId::kAdd, {1, 2}, 10), OpRecord(OpId::kAdd, {2, 3}, 11),
                              OpRecord(OpId::kAdd, {1, 3}, 12)});
  }
  FinishAll();
  for (const SessionId session : {session_, other}) {
    EXPECT_TRUE(cluster_.EventsOf<FailedHandleEvent>(session).empty());
    EXPECT_TRUE(cluster_.machine().sessions().at(session).queue.empty());
    EXPECT_TRUE(TensorOf(session, 12).status.ok());
  }
}

TEST_F(SpillTest, WhoIsRefusedRoomHandsItsTurnOn) {
  Fill(session_, 1, 4);
  std::vector<SessionId> others;
  for (int i = 0; i < 4; ++i) others.push_back(cluster_.Open());
  for (const SessionId other : others) cluster_.Submit(other, {Full(1)});
  ASSERT_EQ(Windows().size(), 1u) << "room is made for one of them";
  FinishSpills(absl::ResourceExhaustedError("the disk is full"));
  for (const SessionId other : others) {
    EXPECT_EQ(cluster_.EventsOf<FailedHandleEvent>(other).size(), 1u) << other.value;
    EXPECT_TRUE(cluster_.machine().sessions().at(other).queue.empty());
  }
}

TEST_F(SpillTest, MoreThanAllMemoryIsRefusedAtOnceAndNothingLeaves) {
  Fill(session_, 1, 4);
  cluster_.Submit(session_, {FullRecord(Both(), {5 * kMiB}, {Placement::Shard(0)}, 5)});
  EXPECT_TRUE(Windows().empty());
  EXPECT_EQ(cluster_.EventsOf<FailedHandleEvent>(session_).size(), 1u);
}

TEST_F(SpillTest, GuaranteedMemoryIsTakenFromNobodyButItsOwner) {
  cluster_.Apply(TenantsChangedEvent{{{.name = "tenant", .guaranteed_bytes = 4 * kMiB}, {.name = "other"}}});
  Fill(session_, 1, 4);
  const SessionId other(99);
  cluster_.Apply(SessionOpenedEvent{other, 5, "other", "test", 0});
  cluster_.Apply(BatchEvent{other, 1, {Full(1)}});
  EXPECT_TRUE(Windows().empty()) << "the tenant has what it was promised, and no more";
  EXPECT_EQ(cluster_.EventsOf<FailedHandleEvent>(other).size(), 1u);
  cluster_.Submit(session_, {Full(5)});
  EXPECT_EQ(Windows().size(), 1u);
}

TEST_F(SpillTest, ATensorWithAnOpenDownloadStays) {
  Fill(session_, 1, 4);
  cluster_.Submit(session_, {DownloadRecord{1, HandleId(1), false}});
  cluster_.CompleteAll();
  cluster_.Submit(session_, {Full(5)});
  const std::vector<TransferWindow> out = Windows();
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].ranges[0].offset_bytes, TensorOf(session_, 2).offset_bytes);
}

TEST_F(SpillTest, AViewGoesAndComesWithItsTensor) {
  CallRecord view = OpRecord(OpId::kTranspose, {1}, 2);
  cluster_.Submit(session_, {FullRecord(Both(), {512, 1024}, {Placement::Shard(0)}, 1)});
  view.call.attributes.Set(attribute::dims, std::vector<int64_t>{1, 0});
  cluster_.Submit(session_, {view});
  cluster_.CompleteAll();
  Fill(session_, 3, 5);
  cluster_.Submit(session_, {Full(6)});
  FinishAll();
  EXPECT_FALSE(IsInMemory(session_, 1));
  EXPECT_FALSE(IsInMemory(session_, 2));
  cluster_.Submit(session_, {DropRecord{{HandleId(1), HandleId(3)}}, OpRecord(OpId::kNeg, {2}, 7)});
  FinishAll();
  EXPECT_TRUE(IsInMemory(session_, 2));
  EXPECT_TRUE(cluster_.EventsOf<FailedHandleEvent>(session_).empty());
}

TEST_F(SpillTest, WorkersWithoutAFolderKeepAll) {
  SimulatedCluster plain(2, 4 * kMiB);
  const SessionId session = plain.Open();
  for (uint64_t handle = 1; handle <= 5; ++handle) plain.Submit(session, {Full(handle)});
  plain.CompleteAll();
  EXPECT_EQ(plain.EventsOf<FailedHandleEvent>(session).size(), 1u);
}

TEST_F(SpillTest, ALostWorkerTakesItsFilesAlong) {
  Fill(session_, 1, 4);
  cluster_.Submit(session_, {Full(5)});
  FinishAll();
  cluster_.Kill(WorkerIndex(1));
  EXPECT_FALSE(TensorOf(session_, 1).status.ok());
  cluster_.Submit(session_, {DropRecord{{HandleId(1), HandleId(2), HandleId(3), HandleId(4), HandleId(5)}}});
  EXPECT_EQ(UsedOn(0), 0);
  EXPECT_EQ(SpilledOn(0), 0);
}

}  // namespace
}  // namespace tessera
