// Workers that say nothing: what is done about them, and what waits until they are gone.

#include <algorithm>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/coordinator/state_machine.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

Mesh MeshOf(int64_t n) { return *Mesh::Make({n}, {}, {}); }
const Placements kRows = {Placement::Shard(0)};

TEST(SilentWorkersTest, AreSuspectThenKilledAndLostWhenTheyAreGone) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {8, 8}, kRows, 1), DropRecord{{HandleId(1)}}});
  cluster.Advance(500'000);
  cluster.Apply(WorkerHeardEvent{WorkerIndex(0)});
  cluster.Advance(600'000);
  EXPECT_EQ(cluster.machine().workers().at(WorkerIndex(0)).state, WorkerState::kAlive);
  EXPECT_EQ(cluster.machine().workers().at(WorkerIndex(1)).state, WorkerState::kSuspect);
  const auto kills = [&]() {
    return std::count_if(cluster.log().begin(), cluster.log().end(),
                         [](const std::string& line) { return line.rfind("kill 1", 0) == 0; });
  };
  cluster.Advance(9'000'000);
  cluster.Advance(100'000);
  EXPECT_EQ(kills(), 1);
  // It may be writing still: nobody is told not to wait for it, and no new work is for it.
  EXPECT_EQ(cluster.machine().workers().at(WorkerIndex(1)).state, WorkerState::kSuspect);
  cluster.Submit(session, {FullRecord(MeshOf(2), {8, 8}, kRows, 2)});
  EXPECT_EQ(cluster.InstancesAt(WorkerIndex(0)).size(), 1u);
  EXPECT_EQ(cluster.machine().unsettled_ops(), 1);
  EXPECT_TRUE(cluster.EventsOf<WorkerLostNotice>(session).empty());
  cluster.Advance(10'000'000);
  EXPECT_EQ(kills(), 2);  // in vain, the first time
  cluster.Kill(WorkerIndex(1));
  EXPECT_EQ(cluster.machine().workers().at(WorkerIndex(1)).state, WorkerState::kDead);
  ASSERT_EQ(cluster.EventsOf<WorkerLostNotice>(session).size(), 1u);
  EXPECT_EQ(cluster.EventsOf<WorkerLostNotice>(session)[0].reason, "silent for 10 s");
}

// Its peer finds the connection broken first.
TEST(SilentWorkersTest, AreTheCauseOfWhatTheirEndBreaks) {
  for (const bool is_gone : {true, false}) {
    SimulatedCluster cluster(2);
    const SessionId session = cluster.Open();
    cluster.Submit(session, {FullRecord(MeshOf(2), {8, 8}, kRows, 1)});
    const Ordinal ordinal = cluster.InstancesAt(WorkerIndex(0)).back().ordinal;
    cluster.Advance(9'000'000);
    cluster.Apply(WorkerHeardEvent{WorkerIndex(0)});
    cluster.Advance(1'500'000);
    const auto report = [&](int32_t worker, absl::Status status) {
      CompletionReport completion;
      completion.ordinal = ordinal;
      completion.status = std::move(status);
      const uint64_t incarnation = cluster.machine().workers().at(WorkerIndex(worker)).info.incarnation;
      cluster.Apply(WorkerReportEvent{WorkerIndex(worker), incarnation, {completion}, {}});
    };
    report(0, absl::UnavailableError("worker 1: the connection broke"));
    EXPECT_TRUE(cluster.EventsOf<FailedHandleEvent>(session).empty());
    if (is_gone) {
      cluster.Kill(WorkerIndex(1));
    } else {
      report(1, absl::OkStatus());
    }
    const auto failures = cluster.EventsOf<FailedHandleEvent>(session);
    ASSERT_EQ(failures.size(), 1u);
    const std::string message(failures[0].status.message());
    EXPECT_NE(message.find(is_gone ? "worker 1 was lost (silent for 10 s)" : "full: worker 1: the connection broke"),
              std::string::npos)
        << message;
  }
}

TEST(SilentWorkersTest, GoOnWhenTheyAreHeardAgain) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Advance(11'000'000);
  cluster.Apply(WorkerHeardEvent{WorkerIndex(0)});
  cluster.Apply(WorkerHeardEvent{WorkerIndex(1)});
  cluster.Submit(session, {FullRecord(MeshOf(2), {8, 8}, kRows, 1)});
  EXPECT_EQ(cluster.InstancesAt(WorkerIndex(1)).size(), 1u);
  cluster.Kill(WorkerIndex(1));
  EXPECT_EQ(cluster.EventsOf<WorkerLostNotice>(session)[0].reason, "killed");
}

// Reports the probes that came to the worker; probes that it reported before count for nothing.
bool AnswerProbe(SimulatedCluster& cluster, WorkerIndex worker) {
  bool is_there = false;
  for (const WorkerMessage& message : cluster.MessagesAt(worker)) {
    const auto* read = std::get_if<InlineRead>(&message);
    if (read == nullptr || read->stream != 2) continue;
    CompletionReport done;
    done.ordinal = read->ordinal;
    done.inline_bytes = "x";
    cluster.Apply(WorkerReportEvent{worker, static_cast<uint64_t>(worker.value) + 1, {done}, {}});
    is_there = true;
  }
  return is_there;
}

int64_t KillsOf(const SimulatedCluster& cluster, int worker) {
  const std::string begin = "kill " + std::to_string(worker);
  return std::count_if(cluster.log().begin(), cluster.log().end(),
                       [&](const std::string& line) { return line.rfind(begin, 0) == 0; });
}

void Hear(SimulatedCluster& cluster, int64_t us) {
  for (int64_t passed = 0; passed < us; passed += 500'000) {
    for (int32_t worker = 0; worker < 2; ++worker) cluster.Apply(WorkerHeardEvent{WorkerIndex(worker)});
    cluster.Advance(500'000);
  }
}

TEST(StalledWorkersTest, AWorkerThatAnswersAndDoesNoWorkIsLost) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open(), other = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {8, 8}, kRows, 1)});
  Hear(cluster, 59'000'000);
  EXPECT_FALSE(AnswerProbe(cluster, WorkerIndex(0)));
  Hear(cluster, 2'000'000);
  // Worker 0 waits for worker 1, and shows that it works; worker 1 shows nothing.
  EXPECT_TRUE(AnswerProbe(cluster, WorkerIndex(0)));
  Hear(cluster, 2'000'000);
  EXPECT_EQ(cluster.machine().workers().at(WorkerIndex(0)).state, WorkerState::kAlive);
  EXPECT_EQ(cluster.machine().workers().at(WorkerIndex(1)).state, WorkerState::kSuspect);
  // A session that has nothing to do with it goes on.
  cluster.Submit(other, {FullRecord(*Mesh::Make({1}, {}, {WorkerIndex(0)}), {8}, {Placement::Replicate()}, 1)});
  EXPECT_TRUE(cluster.EventsOf<FailedHandleEvent>(other).empty());
  Hear(cluster, 30'000'000);
  EXPECT_EQ(KillsOf(cluster, 0), 0);
  EXPECT_EQ(KillsOf(cluster, 1), 1);
  Hear(cluster, 10'000'000);
  EXPECT_EQ(KillsOf(cluster, 1), 2);  // in vain, the first time: worker_timeout later again
  cluster.Kill(WorkerIndex(1));
  const auto lost = cluster.EventsOf<WorkerLostNotice>(session);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_THAT(lost[0].reason, ::testing::HasSubstr("it answers and does no work: full has not ended in"));
  EXPECT_THAT(lost[0].reason, ::testing::HasSubstr("a byte of its memory is not read"));
}

TEST(StalledWorkersTest, AWorkerThatReportsOrIsPredictedToTakeLongIsNotProbed) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  for (uint64_t handle = 1; handle <= 20; ++handle) {
    cluster.Submit(session, {FullRecord(MeshOf(2), {8, 8}, kRows, handle)});
    Hear(cluster, 40'000'000);
    cluster.CompleteAll();
  }
  Hear(cluster, 300'000'000);  // nothing to do
  EXPECT_EQ(KillsOf(cluster, 0) + KillsOf(cluster, 1), 0);
  EXPECT_TRUE(cluster.MessagesAt(WorkerIndex(0)).empty());
}

TEST(StalledWorkersTest, AWorkerAtAnOpFarLongerThanPredictedIsNotEnded) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {8, 8}, kRows, 1)});
  for (int half_seconds = 0; half_seconds < 2 * 1200; ++half_seconds) {  // on its only thread: no probe is answered
    for (int32_t worker = 0; worker < 2; ++worker) cluster.Apply(WorkerHeardEvent{WorkerIndex(worker), worker == 1});
    cluster.Advance(500'000);
    AnswerProbe(cluster, WorkerIndex(0));
  }
  EXPECT_EQ(KillsOf(cluster, 0) + KillsOf(cluster, 1), 0);
  cluster.CompleteAll();
  EXPECT_TRUE(cluster.EventsOf<FailedHandleEvent>(session).empty());
}

// Downloads that wait for an op are no sign: the probe has a stream of its own.
TEST(StalledWorkersTest, AProbeIsOnAStreamThatWaitsForNothing) {
  SimulatedCluster cluster(2);
  const SessionId session = cluster.Open();
  cluster.Submit(session, {FullRecord(MeshOf(2), {8}, kRows, 1), DownloadRecord{7, HandleId(1), true}});
  Hear(cluster, 62'000'000);
  int probes = 0;
  for (const WorkerMessage& message : cluster.MessagesAt(WorkerIndex(0))) {
    const auto* read = std::get_if<InlineRead>(&message);
    if (read == nullptr || read->stream != 2) continue;
    EXPECT_TRUE(read->waits.empty());
    ++probes;
  }
  EXPECT_EQ(probes, 1);
}

}  // namespace
}  // namespace tessera
