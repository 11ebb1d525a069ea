// A recorded event log replayed gives the same effects, bit for bit.

#include "server/coordinator/rpc/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include <capnp/message.h>

#include "schemas/codec/values.h"
#include "schemas/ops/op_ids.h"
#include "schemas/session.capnp.h"
#include "server/coordinator/rpc/record_codec.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {
namespace {

// A batch as a client sends it: some ops on rows of a small mesh.
void FillBatch(uint64_t number, std::mt19937& random, uint64_t& next_handle, wire::Batch::Builder batch) {
  batch.setNumber(number);
  auto records = batch.initRecords(4);
  auto full = records[0].initCall();
  OpCall call =
      FullRecord(*Mesh::Make({3}, {}, {}), {7, 5}, {Placement::Shard(static_cast<int>(random() % 2))}, 1).call;
  EncodeOpCall(call, full.initCall());
  full.initResults(1).set(0, next_handle);
  auto neg = records[1].initCall();
  EncodeOpCall(OpRecord(OpId::kNeg, {}, 1).call, neg.initCall());
  neg.initOperands(1)[0].setHandle(next_handle - random() % 3);
  neg.initResults(1).set(0, next_handle + 1);
  auto move = records[2].initCall();
  EncodeOpCall(RedistributeRecord(1, {Placement::Shard(1)}, 1).call, move.initCall());
  move.initOperands(1)[0].setHandle(next_handle + 1);
  move.initResults(1).set(0, next_handle + 2);
  if (random() % 2 == 0) {
    records[3].initDrop(1).set(0, next_handle - random() % 4);
  } else {
    auto download = records[3].initDownload();
    download.setRequest(next_handle);
    download.setHandle(next_handle + 2);
    download.setAllowInline(random() % 2 == 0);
  }
  next_handle += 3;
}

struct Recorded {
  GivenNumbers given;
  std::string digest;
  uint64_t effects = 0;
  uint64_t events = 0;
};

Recorded Record(const std::string& path, unsigned seed) {
  CoordinatorConfig config;
  config.max_outstanding_per_worker = 5;
  config.max_sessions_per_uid = 1;
  auto writer = *JournalWriter::Create(path, config, JournalDigest::kWritten);
  StateMachine machine(config);
  std::mt19937 random(seed);
  Recorded result;
  int64_t now_us = 0;
  std::vector<std::pair<WorkerIndex, Ordinal>> running;
  auto apply = [&](const Event& event, const wire::Batch::Reader* batch = nullptr) {
    now_us += static_cast<int64_t>(random() % 30'000);
    EXPECT_TRUE(writer->Append(now_us, event, batch).ok());
    const Effects effects = machine.Apply(now_us, event);
    writer->Add(effects);
    ++result.events;
    for (const Effect& effect : effects) {
      const auto* to = std::get_if<ToWorkers>(&effect);
      if (to == nullptr) continue;
      for (WorkerIndex worker : *to->workers) {
        if (const auto* run = std::get_if<Instance>(&to->message)) running.emplace_back(worker, run->ordinal);
        if (const auto* window = std::get_if<TransferWindow>(&to->message))
          running.emplace_back(worker, window->ordinal);
        if (const auto* read = std::get_if<InlineRead>(&to->message)) running.emplace_back(worker, read->ordinal);
      }
    }
  };
  for (int w = 0; w < 3; ++w) {
    WorkerJoinedEvent joined;
    joined.worker = WorkerIndex(w);
    joined.incarnation = static_cast<uint64_t>(w) + 1;
    joined.memory_bytes = 1 << 16;
    joined.message_address = std::string("\0\1\xff", 3);
    apply(joined);
  }
  apply(StartedEvent{1'234'567});
  apply(SessionOpenedEvent{SessionId(1), 42, "t", "c", 5'000'000, Role::kClient, "", 1, 1000});
  apply(SessionOpenedEvent{SessionId(2), 43, "t", "c", 0, Role::kClient, "", 1, 1000});  // refused
  apply(SessionOpenedEvent{SessionId(3), 44, "t", "c", 0, Role::kClient, "", 1, 1001});
  apply(ConnectionLostEvent{SessionId(1), 1});
  apply(SessionResumedEvent{SessionId(1), Returning::kSameClient, 2});
  apply(ConnectionLostEvent{SessionId(1), 1});  // of the former one
  uint64_t next_handle = 10;
  uint64_t batches = 0;
  for (int step = 0; step < 600; ++step) {
    const unsigned choice = random() % 10;
    if (choice < 5) {
      capnp::MallocMessageBuilder message;
      auto batch = message.initRoot<wire::Batch>();
      FillBatch(++batches, random, next_handle, batch);
      const wire::Batch::Reader reader = batch.asReader();
      apply(BatchEvent{SessionId(1), batches, *DecodeRecords(reader)}, &reader);
    } else if (choice < 9) {
      WorkerReportEvent report{WorkerIndex(static_cast<int>(random() % 3)), 0, {}, {}};
      report.incarnation = static_cast<uint64_t>(report.worker.value) + 1;
      std::erase_if(running, [&](const auto& item) {
        if (item.first != report.worker || random() % 4 == 0) return false;
        CompletionReport done;
        done.ordinal = item.second;
        if (random() % 10 == 0) done.status = absl::InternalError("a kernel failed");
        done.received_bytes = {{WorkerIndex(0), static_cast<int64_t>(random() % 100)}};
        if (done.ordinal.value % 3 == 0) done.pushed_bytes = {{WorkerIndex(1), 70}};
        report.completions.push_back(std::move(done));
        return true;
      });
      apply(report);
    } else {
      apply(step >= 450 ? Event(WorkerLostEvent{WorkerIndex(2), 3, "killed"}) : Event(TickEvent{}));
    }
  }
  apply(SessionClosedEvent{SessionId(1)});
  result.digest = writer->digest()->Hex();
  result.effects = writer->digest()->count();
  result.given = machine.given();
  return result;
}

TEST(JournalTest, ReplayGivesTheSameEffects) {
  const std::string path = testing::TempDir() + "/journal." + std::to_string(getpid());
  for (unsigned seed = 1; seed <= 5; ++seed) {
    const Recorded recorded = Record(path, seed);
    auto replayed = ReplayJournal(path);
    ASSERT_TRUE(replayed.ok()) << replayed.status();
    EXPECT_EQ(replayed->events, recorded.events);
    EXPECT_EQ(replayed->effects, recorded.effects);
    EXPECT_EQ(replayed->digest, recorded.digest) << "seed " << seed;
    EXPECT_GT(recorded.effects, 300u) << "seed " << seed;
    EXPECT_EQ(replayed->given, (GivenNumbers{1'234'567, 3, 2, 3}));
    EXPECT_EQ(replayed->given, recorded.given);
  }
  unlink(path.c_str());
}

TEST(JournalTest, DifferentEventsGiveDifferentDigests) {
  const std::string path = testing::TempDir() + "/journal2." + std::to_string(getpid());
  const Recorded a = Record(path, 1);
  const Recorded b = Record(path, 2);
  EXPECT_NE(a.digest, b.digest);
  unlink(path.c_str());
}

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

absl::StatusOr<ReplayResult> ReplayText(const std::string& text) {
  std::vector<uint64_t> aligned(text.size() / 8 + 1);
  std::memcpy(aligned.data(), text.data(), text.size());
  return ReplayBytes({reinterpret_cast<const std::byte*>(aligned.data()), text.size()});
}

TEST(JournalTest, ATornTailIsTold) {
  const std::string path = testing::TempDir() + "/torn." + std::to_string(getpid());
  const Recorded recorded = Record(path, 1);
  const std::string whole = Contents(path);
  unlink(path.c_str());
  auto replayed = ReplayText(whole.substr(0, whole.size() - 3));
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ(replayed->events, recorded.events - 1);
  EXPECT_GT(replayed->torn_bytes, 0u);
  EXPECT_EQ(ReplayText(whole)->torn_bytes, 0u);
}

TEST(JournalTest, WhatIsNotAsItWasWrittenIsDataLoss) {
  const std::string path = testing::TempDir() + "/changed." + std::to_string(getpid());
  Record(path, 1);
  std::string whole = Contents(path);
  unlink(path.c_str());
  whole[whole.size() / 2] ^= 1;
  const auto replayed = ReplayText(whole);
  EXPECT_EQ(replayed.status().code(), absl::StatusCode::kDataLoss) << replayed.status();
}

TEST(JournalTest, AFullDiskIsUnavailable) {
  const auto writer = JournalWriter::Create("/dev/full", CoordinatorConfig{}, JournalDigest::kNone);
  EXPECT_EQ(writer.status().code(), absl::StatusCode::kUnavailable);
}

TEST(JournalTest, WhatIsNoJournalIsRefused) {
  EXPECT_EQ(ReplayJournal("/nonexistent/journal").status().code(), absl::StatusCode::kNotFound);
  const std::string path = testing::TempDir() + "/garbage." + std::to_string(getpid());
  FILE* file = fopen(path.c_str(), "w");
  fputs("this is no journal, and it is long enough to look like a header", file);
  fclose(file);
  EXPECT_EQ(ReplayJournal(path).status().code(), absl::StatusCode::kInvalidArgument);
  unlink(path.c_str());
}

}  // namespace
}  // namespace tessera
