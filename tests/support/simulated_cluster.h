#pragma once

// SimulatedCluster: the real state machine with workers and a clock that a test moves. Messages to
// workers pile up until the test completes them; events to clients are kept by session.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/layout.h"
#include "server/coordinator/state_machine.h"

namespace tessera {

class SimulatedCluster {
 public:
  // Its workers may have much outstanding, so that a test sees all that it submits.
  static CoordinatorConfig RoomyConfig() {
    CoordinatorConfig config;
    config.max_outstanding_per_worker = 1024;
    config.max_outstanding_us_per_worker = 1'000'000;
    config.max_outstanding_us_shared = 1'000'000;
    config.max_unmeasured_instances = 1024;
    return config;
  }

  explicit SimulatedCluster(int workers, int64_t memory_bytes = 1 << 20,
                            const CoordinatorConfig& config = RoomyConfig(), int hosts = 1, int64_t spill_bytes = 0)
      : machine_(config) {
    for (int i = 0; i < workers; ++i) {
      WorkerJoinedEvent event;
      event.worker = WorkerIndex(i);
      event.incarnation = static_cast<uint64_t>(i) + 1;
      event.host = hosts == 1 ? "host" : "host " + std::to_string(i * hosts / workers);
      event.memory_bytes = memory_bytes;
      event.spill_bytes = spill_bytes;
      Apply(event);
    }
  }

  StateMachine& machine() { return machine_; }

  // And what the machine goes on with by itself.
  Effects Apply(const Event& event) {
    Effects effects = ApplyOne(event);
    while (machine_.has_more()) {
      for (Effect& effect : ApplyOne(ContinuedEvent{})) effects.push_back(std::move(effect));
    }
    return effects;
  }
  Effects ApplyOne(const Event& event) {
    Effects effects = machine_.Apply(now_us_, event);
    for (const Effect& effect : effects) {
      log_.push_back(ToText(effect));
      if (const auto* to = std::get_if<ToWorkers>(&effect)) {
        for (WorkerIndex worker : *to->workers) pending_[worker].push_back(to->message);
        const auto* window = std::get_if<TransferWindow>(&to->message);
        if (window != nullptr && window->spill_file != 0) spills_.push_back(*window);
      } else if (const auto* client = std::get_if<ToClient>(&effect)) {
        events_[client->session].push_back(client->event);
      } else if (const auto* end = std::get_if<EndSession>(&effect)) {
        ended_[end->session] = end->reason;
      }
    }
    return effects;
  }

  SessionId Open(int64_t lease_us = 0) {
    const SessionId session(next_session_++);
    Apply(SessionOpenedEvent{session, 77, "tenant", "test", lease_us});
    return session;
  }
  void Submit(SessionId session, std::vector<Record> records) {
    Apply(BatchEvent{session, ++batches_[session], std::move(records)});
  }
  void Advance(int64_t us) {
    now_us_ += us;
    Apply(TickEvent{});
  }

  // Reports every message that waits at a worker as done (status of `failure` for one ordinal).
  void CompleteAll(Ordinal failing = Ordinal(0), absl::Status failure = absl::OkStatus()) {
    bool moved = true;
    while (moved) {
      moved = false;
      std::vector<WorkerIndex> busy;
      for (const auto& [worker, messages] : pending_) {
        if (!messages.empty() && !dead_.contains(worker)) busy.push_back(worker);
      }
      for (WorkerIndex worker : busy) {
        moved = true;
        CompleteOn(worker, failing, failure);
      }
    }
  }
  void CompleteOn(WorkerIndex worker, Ordinal failing = Ordinal(0), absl::Status failure = absl::OkStatus()) {
    WorkerReportEvent report{worker, static_cast<uint64_t>(worker.value) + 1, {}, {}};
    for (const WorkerMessage& message : std::exchange(pending_[worker], {})) {
      CompletionReport done;
      if (const auto* run = std::get_if<Instance>(&message)) done.ordinal = run->ordinal;
      if (const auto* window = std::get_if<TransferWindow>(&message)) done.ordinal = window->ordinal;
      if (const auto* write = std::get_if<InlineWrite>(&message)) done.ordinal = write->ordinal;
      if (const auto* read = std::get_if<InlineRead>(&message)) {
        done.ordinal = read->ordinal;
        const auto position = read->spec.mesh.PositionAt(*read->spec.mesh.FindWorker(worker));
        done.inline_bytes.assign(
            static_cast<size_t>(NumElements(LocalBox(read->spec, position)) * SizeBytes(read->spec.dtype)),
            static_cast<char>('a' + worker.value));
      }
      if (const auto* close = std::get_if<CloseTicket>(&message))
        report.transfers.push_back({close->ticket, absl::OkStatus()});
      if (done.ordinal.value == 0) continue;
      if (done.ordinal == failing) done.status = failure;
      report.completions.push_back(std::move(done));
    }
    Apply(report);
  }
  void Kill(WorkerIndex worker) {
    dead_[worker] = true;
    Apply(WorkerLostEvent{worker, static_cast<uint64_t>(worker.value) + 1, "killed"});
  }
  void FinishUpload(TicketId ticket, absl::Status status = absl::OkStatus()) {
    for (const auto& [worker, info] : machine_.workers()) {
      Apply(WorkerReportEvent{worker, info.info.incarnation, {}, {{ticket, status}}});
    }
  }

  // The messages that a worker was sent since it last reported.
  std::vector<WorkerMessage> MessagesAt(WorkerIndex worker) const {
    const auto found = pending_.find(worker);
    if (found == pending_.end()) return {};
    return {found->second.begin(), found->second.end()};
  }
  // All instances that were sent to a worker and are not complete.
  std::vector<Instance> InstancesAt(WorkerIndex worker) const {
    std::vector<Instance> instances;
    auto found = pending_.find(worker);
    if (found == pending_.end()) return instances;
    for (const WorkerMessage& message : found->second) {
      if (const auto* run = std::get_if<Instance>(&message)) instances.push_back(*run);
    }
    return instances;
  }
  // The plans that a worker was told since it last reported.
  std::vector<std::shared_ptr<const Plan>> PlansAt(WorkerIndex worker) const {
    std::vector<std::shared_ptr<const Plan>> plans;
    auto found = pending_.find(worker);
    if (found == pending_.end()) return plans;
    for (const WorkerMessage& message : found->second) {
      if (const auto* define = std::get_if<DefineTemplate>(&message)) plans.push_back(*define->plan);
    }
    return plans;
  }
  template <typename T>
  std::vector<T> EventsOf(SessionId session) const {
    std::vector<T> found;
    auto events = events_.find(session);
    if (events == events_.end()) return found;
    for (const SessionEvent& event : events->second) {
      if (const T* body = std::get_if<T>(&event.body)) found.push_back(*body);
    }
    return found;
  }
  const std::vector<std::string>& log() const { return log_; }
  // All windows between buffers and files of the workers, in their order.
  const std::vector<TransferWindow>& spills() const { return spills_; }
  const std::map<SessionId, absl::Status>& ended() const { return ended_; }
  int64_t now_us() const { return now_us_; }

 private:
  StateMachine machine_;
  int64_t now_us_ = 0;
  uint64_t next_session_ = 1;
  std::map<SessionId, uint64_t> batches_;
  std::map<WorkerIndex, std::deque<WorkerMessage>> pending_;
  std::map<WorkerIndex, bool> dead_;
  std::map<SessionId, std::vector<SessionEvent>> events_;
  std::map<SessionId, absl::Status> ended_;
  std::vector<std::string> log_;
  std::vector<TransferWindow> spills_;
};

// Records as a client makes them.
inline CallRecord FullRecord(const Mesh& mesh, std::vector<int64_t> shape, Placements placements, uint64_t handle) {
  CallRecord record;
  record.call.op = OpId::kFull;
  record.call.attributes.Set(attribute::dtype, DType::kF32);
  record.call.attributes.Set(attribute::shape, Shape(shape.begin(), shape.end()));
  record.call.attributes.Set(attribute::mesh, mesh);
  record.call.attributes.Set(attribute::placements, std::move(placements));
  record.call.scalars = {Scalar::Float(1)};
  record.results = {HandleId(handle)};
  return record;
}
inline CallRecord OpRecord(OpId op, std::vector<uint64_t> operands, uint64_t result, bool last_use = false) {
  CallRecord record;
  record.call.op = op;
  for (uint64_t operand : operands) record.operands.push_back({HandleId(operand), last_use});
  record.results = {HandleId(result)};
  return record;
}
inline CallRecord RedistributeRecord(uint64_t operand, Placements placements, uint64_t result) {
  CallRecord record = OpRecord(OpId::kRedistribute, {operand}, result);
  record.call.attributes.Set(attribute::placements, std::move(placements));
  return record;
}

}  // namespace tessera
