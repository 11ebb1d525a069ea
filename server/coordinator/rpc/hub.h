#pragma once

// Hub: the state machine with its links. It gives events to the state machine one at a time and carries
// the effects out in order: messages onto worker links, events onto session links. One KJ thread.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <kj/async.h>
#include <kj/time.h>

#include "schemas/codec/loop_linger.h"
#include "schemas/session.capnp.h"
#include "server/coordinator/rpc/journal.h"
#include "server/coordinator/rpc/options.h"
#include "server/coordinator/rpc/report_order.h"
#include "server/coordinator/state_machine.h"

namespace kj {
class Timer;
}

namespace tessera {

// A session's submit call is answered when fewer of its records than this wait to be issued: so the
// client's stream stops before max_queued_records ends the session.
inline constexpr size_t kSubmitHighWater = 4096;  // docs/limits.md: submit_high_water

class Hub final : private kj::TaskSet::ErrorHandler {
 public:
  Hub(const CoordinatorOptions& options, kj::Timer& timer, LoopLinger& linger, std::unique_ptr<JournalWriter> journal);

  void Apply(const Event& event, const wire::Batch::Reader* batch = nullptr);
  kj::Promise<void> RunTicks();

  struct Opened {
    SessionId session;
    uint64_t secret = 0;
    uint64_t connection = 0;
  };
  // A link to a session's client. `on_end` is called once, when the session is over or another
  // connection has taken it.
  Opened OpenSession(const std::string& tenant, const std::string& client, int64_t lease_us,
                     wire::SessionEvents::Client events, std::function<void(absl::Status)> on_end);
  absl::StatusOr<Opened> ResumeSession(SessionId session, uint64_t secret, uint64_t last_event,
                                       wire::SessionEvents::Client events, std::function<void(absl::Status)> on_end);
  void ConnectionGone(SessionId session, uint64_t connection);
  bool IsCurrent(SessionId session, uint64_t connection) const;
  // Ready when the session's queue is below the high water, or the session is gone.
  kj::Promise<void> WhenRoom(SessionId session);

  struct Joined {
    WorkerIndex worker;
    uint64_t incarnation = 0;
  };
  absl::StatusOr<Joined> JoinWorker(WorkerJoinedEvent event, wire::Worker::Client link);
  void WorkerGone(WorkerIndex worker, uint64_t incarnation, const std::string& reason);
  // An answer's or a call's. InvalidArgument: it can't be read, or is out of order (report_order.h).
  absl::Status TakeReported(WorkerIndex worker, uint64_t incarnation, wire::Reported::Reader reported);

  const StateMachine& machine() const { return machine_; }
  const CoordinatorOptions& options() const { return options_; }
  uint64_t epoch() const { return epoch_; }
  uint64_t peer_key() const { return peer_key_; }
  double uptime_s() const;
  void Flush();

 private:
  struct WorkerLink {
    wire::Worker::Client client;
    uint64_t incarnation = 0;
    std::deque<std::shared_ptr<const WorkerMessage>> outbox = {};
    int open_calls = 0;  // not answered
    // The last answer, kept until the next call: to let go of it is a message of its own.
    kj::Maybe<capnp::Response<wire::Worker::DeliverResults>> answer = nullptr;
    ReportOrder reports = {};
  };
  struct SessionLink {
    wire::SessionEvents::Client client = nullptr;
    uint64_t secret = 0;
    uint64_t connection = 0;
    bool connected = false;
    std::deque<std::shared_ptr<const ClientEvent>> outbox;  // not delivered
    size_t in_flight = 0;                                   // at the front of the outbox
    std::function<void(absl::Status)> on_end;
    std::vector<kj::Own<kj::PromiseFulfiller<void>>> room;  // submits that wait
  };
  bool HasRoom(SessionId session) const;
  // Whether what waits can wait for something else to say, or for the next tick: a few taken batches.
  bool CanWait(const SessionLink& link) const;
  void Carry(Effects effects);
  void FlushWorker(WorkerIndex worker);
  void TakeAnswer(WorkerIndex worker, uint64_t incarnation, capnp::Response<wire::Worker::DeliverResults>&& answer);
  void FlushSession(SessionId session);
  void EndLink(SessionId session, const absl::Status& reason);
  kj::Promise<void> Ping(WorkerIndex worker, uint64_t incarnation);
  void taskFailed(kj::Exception&& exception) override;
  int64_t NowUs() const;

  CoordinatorOptions options_;
  kj::Timer& timer_;
  LoopLinger& linger_;
  kj::TimePoint started_;
  std::unique_ptr<JournalWriter> journal_;
  StateMachine machine_;
  uint64_t epoch_;
  uint64_t peer_key_;
  uint64_t next_session_ = 1;
  uint64_t next_connection_ = 1;
  uint64_t next_incarnation_ = 1;
  std::map<WorkerIndex, WorkerLink> workers_;
  std::map<SessionId, SessionLink> sessions_;
  bool ticking_ = false;
  kj::TaskSet tasks_;
};

// Unpredictable; for secrets.
uint64_t RandomSecret();

}  // namespace tessera
