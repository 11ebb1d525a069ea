// Uploads: their bytes come by ticket while what waits for them stands behind them; several tensors come by one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

Mesh MeshOf(int64_t n) { return *Mesh::Make({n}, {}, {}); }
const Placements kRows = {Placement::Shard(0)};

std::string Message(const absl::Status& status) { return std::string(status.message()); }
TEST(UploadsTest, DependentsOfAnUploadAreIssuedWhenItsBytesAreThere) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  const TensorSpec spec = *TensorSpec::Make("t", DType::kF32, {8}, MeshOf(2), kRows);
  cluster.Submit(session, {UploadRecord{5, {{HandleId(1), spec}}}, OpRecord(OpId::kNeg, {1}, 2)});
  EXPECT_TRUE(cluster.EventsOf<TicketEvent>(session).empty());
  cluster.CompleteAll();  // the windows are open
  const auto tickets = cluster.EventsOf<TicketEvent>(session);
  ASSERT_EQ(tickets.size(), 1u);
  EXPECT_TRUE(cluster.InstancesAt(WorkerIndex(0)).empty());
  cluster.FinishUpload(tickets[0].ticket);
  EXPECT_EQ(cluster.EventsOf<UploadDoneEvent>(session).size(), 1u);
  EXPECT_EQ(cluster.InstancesAt(WorkerIndex(0)).size(), 1u);
}

TEST(UploadsTest, ASmallOneComesInItsRecordAndIsReadyAsACallIs) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  const TensorSpec spec = *TensorSpec::Make("t", DType::kF32, {8}, MeshOf(2), kRows);
  cluster.Submit(session, {UploadRecord{0, {{HandleId(1), spec}}, std::string(32, 'x')}, OpRecord(OpId::kNeg, {1}, 2),
                           WatchRecord{7, HandleId(1)}});
  EXPECT_EQ(cluster.InstancesAt(WorkerIndex(0)).size(), 1u);  // it doesn't wait for another message
  EXPECT_TRUE(cluster.EventsOf<SettledEvent>(session).empty());
  cluster.CompleteAll();
  EXPECT_TRUE(cluster.EventsOf<TicketEvent>(session).empty());
  ASSERT_EQ(cluster.EventsOf<SettledEvent>(session).size(), 1u);
  EXPECT_TRUE(cluster.EventsOf<SettledEvent>(session)[0].status.ok());
  EXPECT_EQ(cluster.machine().unsettled_ops(), 0);
}

TEST(UploadsTest, AnySmallUploadsLeaveTheQueueAsLightAsTheyFoundIt) {
  SimulatedCluster cluster(1);
  const SessionId session = cluster.Open();
  const TensorSpec spec = *TensorSpec::Make("t", DType::kF32, {1024}, MeshOf(1), kRows);
  for (uint64_t i = 1; i <= 5; ++i) {
    cluster.Submit(session, {UploadRecord{0, {{HandleId(i), spec}}, std::string(4096, 'x')}});
    cluster.CompleteAll();
  }
  EXPECT_EQ(cluster.machine().sessions().at(session).queue_weight, 0);
}

TEST(UploadsTest, AMeshOfWorkersThatDontExistIsNotWrittenOut) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  std::vector<WorkerIndex> backwards;
  for (int32_t i = 65535; i >= 0; --i) backwards.emplace_back(i);
  const Mesh mesh = *Mesh::Make({65536}, {}, backwards);
  const TensorSpec spec = *TensorSpec::Make("t", DType::kF32, {65536}, mesh, kRows);
  CallRecord ones;
  ones.call.op = OpId::kFull;
  ones.call.attributes.Set(attribute::dtype, DType::kF32);
  ones.call.attributes.Set(attribute::shape, Shape{8});
  ones.call.attributes.Set(attribute::mesh, mesh);
  ones.call.attributes.Set(attribute::placements, kRows);
  ones.call.scalars = {Scalar::Float(1)};
  ones.results = {HandleId(2)};
  cluster.Submit(session, {UploadRecord{5, {{HandleId(1), spec}}}, ones, OpRecord(OpId::kNeg, {2}, 3)});
  const auto failed = cluster.EventsOf<FailedHandleEvent>(session);
  ASSERT_EQ(failed.size(), 3u);
  for (const FailedHandleEvent& event : failed) {
    EXPECT_THAT(Message(event.status), HasSubstr("the mesh names worker 65535; the cluster has 2 workers"));
    EXPECT_LT(event.status.message().size(), 500u);
  }
  EXPECT_EQ(cluster.machine().sessions().at(session).tensors.at(HandleId(1))->spec().mesh.size(), 0);
}

TEST(UploadsTest, BytesInARecordAreThoseOfItsTensor) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  const TensorSpec spec = *TensorSpec::Make("t", DType::kF32, {8}, MeshOf(2), kRows);
  const TensorSpec large = *TensorSpec::Make("t", DType::kF32, {1025}, MeshOf(2), kRows);
  const TensorSpec pending = *TensorSpec::Make("t", DType::kF32, {8}, MeshOf(2), {Placement::Partial(ReduceOp::kSum)});
  cluster.Submit(session, {UploadRecord{0, {{HandleId(1), spec}}, std::string(31, 'x')},
                           UploadRecord{0, {{HandleId(2), large}}, std::string(4100, 'x')},
                           UploadRecord{0, {{HandleId(3), pending}}, std::string(32, 'x')},
                           UploadRecord{9, {{HandleId(4), spec}}, std::string(32, 'x')},
                           UploadRecord{0, {{HandleId(5), spec}, {HandleId(6), spec}}, std::string(32, 'x')}});
  EXPECT_EQ(cluster.EventsOf<FailedHandleEvent>(session).size(), 6u);
  EXPECT_THAT(Message(cluster.EventsOf<FailedHandleEvent>(session)[0].status), HasSubstr("31 bytes in the record"));
  EXPECT_EQ(cluster.machine().unsettled_ops(), 0);
}

// An upload whose windows are open, and an op that waits for its bytes.
struct UploadUnderWay {
  explicit UploadUnderWay(int64_t lease_us = 0) : session(cluster.Open(lease_us)) {
    const TensorSpec spec = *TensorSpec::Make("t", DType::kF32, {8}, MeshOf(2), kRows);
    cluster.Submit(session, {UploadRecord{5, {{HandleId(1), spec}}}, OpRecord(OpId::kNeg, {1}, 2)});
    cluster.CompleteAll();
  }
  TicketId ticket() const { return cluster.EventsOf<TicketEvent>(session).at(0).ticket; }

  SimulatedCluster cluster{2};
  SessionId session;
};

TEST(UploadsTest, ABrokenUploadPoisonsItsTensor) {
  UploadUnderWay upload;
  upload.cluster.FinishUpload(upload.ticket(), absl::UnavailableError("the client went away"));
  EXPECT_EQ(upload.cluster.EventsOf<FailedHandleEvent>(upload.session).size(), 2u);
}

// As where its memory has to wait for a worker that can't be reached.
TEST(UploadsTest, AnUploadWhoseWindowFailsSaysWhy) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  const TensorSpec spec = *TensorSpec::Make("t", DType::kF32, {8}, MeshOf(2), kRows);
  cluster.Submit(session, {UploadRecord{5, {{HandleId(1), spec}}}, OpRecord(OpId::kNeg, {1}, 2)});
  cluster.CompleteAll(Ordinal(1), absl::UnavailableError("worker 1: worker 0 can't reach it"));
  const auto failed = cluster.EventsOf<FailedHandleEvent>(session);
  ASSERT_EQ(failed.size(), 2u);
  for (const FailedHandleEvent& event : failed) {
    EXPECT_THAT(Message(event.status), HasSubstr("upload: worker 1: worker 0 can't reach it"));
    EXPECT_TRUE(absl::IsUnavailable(event.status));
  }
  const auto settled = cluster.EventsOf<SettledEvent>(session);
  ASSERT_EQ(settled.size(), 1u) << "the request has one answer";
  EXPECT_THAT(Message(settled[0].status), HasSubstr("can't reach it"));
}

TEST(UploadsTest, ACommBlockEndsWithItsTransfersAndSaysWhatWorkersCopied) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  const TensorSpec spec = *TensorSpec::Make("t", DType::kF32, {8}, MeshOf(2), kRows);
  cluster.Submit(session, {CommBeginRecord{1}, UploadRecord{5, {{HandleId(1), spec}}}, CommEndRecord{6, 1}});
  cluster.CompleteAll();
  const TicketId ticket = cluster.EventsOf<TicketEvent>(session).at(0).ticket;
  for (int w = 0; w < 2; ++w) {
    EXPECT_TRUE(cluster.EventsOf<CommReportEvent>(session).empty());
    const TransferReport done{ticket, absl::OkStatus(), {1'000, 2'000, 900}, 16 + w};
    cluster.Apply(WorkerReportEvent{WorkerIndex(w), static_cast<uint64_t>(w) + 1, {}, {done}});
  }
  cluster.Submit(session, {CommBeginRecord{7}, DownloadRecord{8, HandleId(1), true}, CommEndRecord{9, 7}});
  cluster.CompleteAll();
  const auto reports = cluster.EventsOf<CommReportEvent>(session);
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].uploaded_bytes, (std::vector<int64_t>{16, 17}));
  EXPECT_EQ(reports[0].downloaded_bytes, (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(reports[1].uploaded_bytes, (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(reports[1].downloaded_bytes, (std::vector<int64_t>{16, 16}));
}

TEST(UploadsTest, ASessionThatWaitsForItsClientIsKnown) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open(), other = cluster.Open();
  const TensorSpec spec = *TensorSpec::Make("t", DType::kF32, {8}, MeshOf(2), kRows);
  cluster.Submit(session, {FullRecord(MeshOf(2), {8}, kRows, 1), UploadRecord{5, {{HandleId(2), spec}}}});
  cluster.Submit(session, {OpRecord(OpId::kNeg, {2}, 3)});
  EXPECT_FALSE(cluster.machine().AwaitsClient(session)) << "it runs something";
  cluster.CompleteAll();
  cluster.Submit(other, {FullRecord(MeshOf(2), {8}, kRows, 1)});
  EXPECT_TRUE(cluster.machine().AwaitsClient(session));
  EXPECT_FALSE(cluster.machine().AwaitsClient(other));
  cluster.FinishUpload(cluster.EventsOf<TicketEvent>(session).at(0).ticket);
  EXPECT_FALSE(cluster.machine().AwaitsClient(session));
}

// A record that waits for the upload is behind it in the queue; the release is not, nor a cancel that the ticket
// crosses.
TEST(UploadsTest, AReleaseOrACancelEndsAnUploadThatAnOpWaitsFor) {
  UploadUnderWay released, cancelled;
  released.cluster.Submit(released.session, {ReleaseRecord{released.ticket(), {}}});
  cancelled.cluster.Submit(cancelled.session, {CancelRecord{5}});
  for (UploadUnderWay* upload : {&released, &cancelled}) {
    upload->cluster.CompleteAll();
    EXPECT_EQ(upload->cluster.EventsOf<FailedHandleEvent>(upload->session).size(), 2u);
    EXPECT_TRUE(upload->cluster.machine().sessions().at(upload->session).queue.empty());
  }
}

TEST(UploadsTest, WhatDependsOnAnUploadThatIsGivenUpFailsWithTheReason) {
  UploadUnderWay upload;
  const absl::Status reason = absl::ResourceExhaustedError("no more files");
  upload.cluster.Submit(upload.session, {ReleaseRecord{upload.ticket(), reason}});
  upload.cluster.CompleteAll();
  const auto failed = upload.cluster.EventsOf<FailedHandleEvent>(upload.session);
  ASSERT_EQ(failed.size(), 2u);
  EXPECT_EQ(failed[0].status, reason);
  EXPECT_EQ(failed[1].status.code(), reason.code());
  EXPECT_NE(std::string(failed[1].status.message()).find("no more files; on the way here: negative"), std::string::npos)
      << failed[1].status;
}

// They may hang on a disk. The memory is theirs until they have answered.
TEST(UploadsTest, WhatIsBehindAnUploadThatFailedDoesNotWaitForItsWorkers) {
  UploadUnderWay upload;
  const auto used = [&]() { return upload.cluster.machine().memory().UsedBytes(WorkerIndex(0)); };
  const int64_t before = used();
  upload.cluster.Submit(upload.session, {ReleaseRecord{upload.ticket(), absl::DeadlineExceededError("no answer")}});
  EXPECT_EQ(upload.cluster.EventsOf<FailedHandleEvent>(upload.session).size(), 2u);
  EXPECT_TRUE(upload.cluster.machine().sessions().at(upload.session).queue.empty());
  upload.cluster.Submit(upload.session, {DropRecord{{HandleId(1)}}});
  EXPECT_EQ(used(), before);
  upload.cluster.CompleteAll();
  EXPECT_LT(used(), before);
}

// The loss of a worker ends it. The other worker answers that before it says that its window is open, and then is lost.
TEST(UploadsTest, AnUploadWhoseWindowNeverOpensIsAnsweredOnce) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  const TensorSpec spec = *TensorSpec::Make("t", DType::kF32, {1 << 11}, MeshOf(2), kRows);
  cluster.Submit(session, {UploadRecord{5, {{HandleId(1), spec}}}});
  cluster.CompleteOn(WorkerIndex(1));
  cluster.Kill(WorkerIndex(1));
  EXPECT_TRUE(cluster.EventsOf<SettledEvent>(session).empty());
  cluster.FinishUpload(TicketId(1));
  EXPECT_EQ(cluster.EventsOf<SettledEvent>(session).size(), 1u);
  cluster.Kill(WorkerIndex(0));
  EXPECT_EQ(cluster.EventsOf<SettledEvent>(session).size(), 1u);
}

TEST(UploadsTest, AResumedSessionGivesUpTheUploadsOfItsFormerClient) {
  UploadUnderWay upload(60'000'000);
  upload.cluster.Apply(ConnectionLostEvent{upload.session});
  upload.cluster.Apply(SessionResumedEvent{upload.session});
  upload.cluster.CompleteAll();
  const auto failed = upload.cluster.EventsOf<FailedHandleEvent>(upload.session);
  ASSERT_EQ(failed.size(), 2u);
  EXPECT_THAT(Message(failed[0].status), HasSubstr("upload: its client is gone"));
  EXPECT_TRUE(upload.cluster.machine().sessions().at(upload.session).queue.empty());
}

// Three tensors that come by one ticket, and an op on the last.
struct Together {
  explicit Together(int64_t elements) : session(cluster.Open()) {
    UploadRecord upload{5, {}};
    for (uint64_t handle = 1; handle <= 3; ++handle) {
      upload.tensors.push_back({HandleId(handle), *TensorSpec::Make("t", DType::kF32, {elements}, MeshOf(2), kRows)});
    }
    cluster.Submit(session, {upload, OpRecord(OpId::kNeg, {3}, 4)});
    cluster.CompleteAll();
  }
  SimulatedCluster cluster{2};
  SessionId session;
};

TEST(UploadsTest, SeveralTensorsOfAnUploadComeByOneTicketAndAreThereTogether) {
  Together upload(8);
  const auto tickets = upload.cluster.EventsOf<TicketEvent>(upload.session);
  ASSERT_EQ(tickets.size(), 1u);
  EXPECT_EQ(upload.cluster.machine().sessions().at(upload.session).tensors.size(), 3u) << "the op waits";
  upload.cluster.FinishUpload(tickets[0].ticket);
  EXPECT_EQ(upload.cluster.EventsOf<UploadDoneEvent>(upload.session).size(), 1u);
  EXPECT_EQ(upload.cluster.InstancesAt(WorkerIndex(0)).size(), 1u);
  EXPECT_TRUE(upload.cluster.EventsOf<FailedHandleEvent>(upload.session).empty());
}

TEST(UploadsTest, WhatBreaksAnUploadOfSeveralTensorsFailsEachOfThem) {
  Together upload(8);
  const TicketId ticket = upload.cluster.EventsOf<TicketEvent>(upload.session).at(0).ticket;
  upload.cluster.FinishUpload(ticket, absl::FailedPreconditionError("the file changed"));
  EXPECT_EQ(upload.cluster.EventsOf<FailedHandleEvent>(upload.session).size(), 4u);
}

TEST(UploadsTest, SeveralTensorsOfAnUploadHaveMemoryAllOrNone) {
  // Two of them would fit.
  Together upload((1 << 20) / 4);
  EXPECT_TRUE(upload.cluster.EventsOf<TicketEvent>(upload.session).empty());
  const auto failed = upload.cluster.EventsOf<FailedHandleEvent>(upload.session);
  ASSERT_EQ(failed.size(), 4u);
  EXPECT_EQ(failed[0].status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Message(failed[0].status), HasSubstr("number 2 of 3 that are read together"));
  EXPECT_EQ(upload.cluster.machine().sessions().at(upload.session).bytes, 0);
}

TEST(UploadsTest, TensorsOfDifferentWorkersDontComeByOneTicket) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  UploadRecord upload{5,
                      {{HandleId(1), *TensorSpec::Make("t", DType::kF32, {8}, MeshOf(2), kRows)},
                       {HandleId(2), *TensorSpec::Make("t", DType::kF32, {8}, MeshOf(1), kRows)}}};
  cluster.Submit(session, {upload});
  const auto failed = cluster.EventsOf<FailedHandleEvent>(session);
  ASSERT_EQ(failed.size(), 2u);
  EXPECT_THAT(Message(failed[1].status), HasSubstr("are on different workers, and come by one ticket"));
}

}  // namespace
}  // namespace tessera
