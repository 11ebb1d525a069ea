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
  static CoordinatorConfig RoomyConfig();

  explicit SimulatedCluster(int workers, int64_t memory_bytes = 1 << 20,
                            const CoordinatorConfig& config = RoomyConfig(), int hosts = 1, int64_t spill_bytes = 0);
  ~SimulatedCluster();

  StateMachine& machine() { return machine_; }

  // And what the machine goes on with by itself.
  Effects Apply(const Event& event);
  Effects ApplyOne(const Event& event);

  SessionId Open(int64_t lease_us = 0);
  void Submit(SessionId session, std::vector<Record> records);
  void Advance(int64_t us);

  // Reports every message that waits at a worker as done (status of `failure` for one ordinal).
  void CompleteAll(Ordinal failing = Ordinal(0), absl::Status failure = absl::OkStatus());
  void CompleteOn(WorkerIndex worker, Ordinal failing = Ordinal(0), absl::Status failure = absl::OkStatus());
  void Kill(WorkerIndex worker);
  void FinishUpload(TicketId ticket, absl::Status status = absl::OkStatus());

  // The messages that a worker was sent since it last reported.
  std::vector<WorkerMessage> MessagesAt(WorkerIndex worker) const;
  // All instances that were sent to a worker and are not complete.
  std::vector<Instance> InstancesAt(WorkerIndex worker) const;
  // The plans that a worker was told since it last reported.
  std::vector<std::shared_ptr<const Plan>> PlansAt(WorkerIndex worker) const;
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
CallRecord FullRecord(const Mesh& mesh, std::vector<int64_t> shape, Placements placements, uint64_t handle);
CallRecord OpRecord(OpId op, std::vector<uint64_t> operands, uint64_t result, bool last_use = false);
CallRecord RedistributeRecord(uint64_t operand, Placements placements, uint64_t result);

}  // namespace tessera
