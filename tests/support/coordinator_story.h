#pragma once

// A story of a coordinator: workers, sessions, batches, reports, a death and a close, random by its seed. Each event is
// told with what it led to.

#include <cstdint>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include <capnp/message.h>

#include "schemas/codec/values.h"
#include "schemas/ops/op_ids.h"
#include "schemas/session.capnp.h"
#include "server/coordinator/rpc/record_codec.h"
#include "tests/support/simulated_cluster.h"

namespace tessera {

struct ToldEvent {
  int64_t now_us = 0;
  const Event& event;
  const wire::Batch::Reader* batch;  // of a BatchEvent, else null
  const Effects& effects;
};

inline CoordinatorConfig StoryConfig() {
  CoordinatorConfig config;
  config.max_outstanding_per_worker = 5;
  config.max_sessions_per_uid = 1;
  return config;
}

// A batch as a client sends it: some ops on rows of a small mesh.
inline void FillBatch(uint64_t number, std::mt19937& random, uint64_t& next_handle, wire::Batch::Builder batch) {
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

// Returns what numbers were given in the end.
inline GivenNumbers TellStory(unsigned seed, int steps, const std::function<void(const ToldEvent&)>& tell) {
  StateMachine machine(StoryConfig());
  std::mt19937 random(seed);
  int64_t now_us = 0;
  std::vector<std::pair<WorkerIndex, Ordinal>> running;
  auto apply = [&](const Event& event, const wire::Batch::Reader* batch = nullptr) {
    now_us += static_cast<int64_t>(random() % 30'000);
    const Effects effects = machine.Apply(now_us, event);
    tell({now_us, event, batch, effects});
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
  for (const int worker : {0, 2}) apply(JoinTokenUsedEvent{"racks", WorkerIndex(worker)});
  apply(JoinTokenUsedEvent{"spare", WorkerIndex(1)});
  uint64_t next_handle = 10;
  uint64_t batches = 0;
  for (int step = 0; step < steps; ++step) {
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
      apply(step >= steps * 3 / 4 ? Event(WorkerLostEvent{WorkerIndex(2), 3, "killed"}) : Event(TickEvent{}));
    }
  }
  apply(JoinTokenForgottenEvent{"spare"});
  apply(SessionClosedEvent{SessionId(1)});
  return machine.given();
}

}  // namespace tessera
