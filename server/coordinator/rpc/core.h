#pragma once

// Core: all of the coordinator that needs no sockets, no loop and no clock: the state machine, the log of its events,
// and the outboxes of sessions and workers, in which its effects wait to be sent. The hub drives it; a coordinator that
// is started again has it back from the log (Recover).
//
//   Core core(config, std::move(journal));
//   Core::Consequences done = core.Apply(now_us, event);
//   core.outbox(session).NextMessage(...)
//
// Law: no effect leaves before its event is committed. At the level `process` an event is that when it is in the log.
// At the level `disk` (HoldBack) it is when the log is on the disk up to there, which whoever drives the core tells it:
//
//   core.Apply(now_us, event);        // applied, and its effects wait in the outboxes
//   if (core.has_held()) sync.Begin(core.events());
//   core.Commit(events);              // the sync has ended: effects of the events up to that number may leave

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/coordinator/rpc/held_back.h"
#include "server/coordinator/rpc/journal.h"
#include "server/coordinator/rpc/session_outbox.h"
#include "server/coordinator/rpc/worker_outbox.h"
#include "server/coordinator/state_machine.h"

namespace tessera {

class Core {
 public:
  // For others to carry out; all else lies in the outboxes.
  struct Consequences {
    std::vector<EndSession> ended;  // their last events are to be sent, and their outboxes dropped
    std::vector<KillWorker> victims;
    bool is_empty() const { return ended.empty() && victims.empty(); }
  };
  // The line of a worker's process, from its joining to its loss.
  struct WorkerLine {
    uint64_t incarnation = 0;
    uint64_t epoch = 0;    // of the coordinator that it joined first
    uint64_t reports = 0;  // that came from it
    HeldBack held_reports;
    WorkerOutbox outbox;
    // Reports that it may be told of, after which it keeps them no more.
    uint64_t committed_reports() const { return reports - held_reports.count(); }
  };

  // `journal` null: no log is kept.
  Core(const CoordinatorConfig& config, std::unique_ptr<JournalWriter> journal);

  // The core to which the log at `path` leads. It goes on with the log; a torn end of it is cut off. Errors are
  // ReadJournal's and JournalWriter::Continue's.
  struct Recovered {
    std::unique_ptr<Core> core;
    JournalEnd end;
  };
  static absl::StatusOr<Recovered> Recover(const std::string& path);
  // The same of a log in memory, aligned to 8 bytes. It goes on without one until it is given another (LogTo).
  // `before`: a core that the log goes on from, as a snapshot has it; null: the log is whole.
  static absl::StatusOr<Recovered> RecoverFrom(absl::Span<const std::byte> log, std::unique_ptr<Core> before = nullptr);
  void LogTo(std::unique_ptr<JournalWriter> journal) { journal_ = std::move(journal); }

  // Logs the event, then applies it, which takes it. Unavailable when the log can't be written: nothing was applied.
  // `batch` and `came`: JournalWriter::Append's.
  absl::StatusOr<Consequences> Apply(int64_t now_us, Event& event, const wire::Batch::Reader* batch = nullptr,
                                     JournalWriter::Words came = nullptr);
  void StopLogging() { journal_.reset(); }
  // From now on effects wait for Commit. All that is here is committed.
  void HoldBack();
  bool holds_back() const { return holds_back_; }
  // Whether something waits for a commit.
  bool has_held() const { return wanted_ > committed_; }
  uint64_t committed() const { return committed_; }
  // Somebody waits for the commit of all events that there are.
  void Want() { wanted_ = events_; }
  // The events up to this number are on the disk: what is to be carried out of them now.
  Consequences Commit(uint64_t events);
  // Why the event that was applied last has ended this session, whose client is told so at once: nothing of it stays.
  std::optional<EndSession> TakeRefusal(SessionId session);
  // An event of a former process, out of the log: its consequences were carried out, or are nobody's any more.
  void Replay(int64_t now_us, Event event);
  // Out of the log, too: a client had its session's events up to there.
  void Forget(SessionId session, uint64_t number);
  // The client has its session's events up to there. Unavailable when the log can't be written.
  absl::Status Acknowledge(SessionId session, uint64_t number);

  // `see` is shown the effects of each event that is applied from now on, which is in the log.
  void Observe(std::function<void(const Effects&)> see) { see_ = std::move(see); }

  const StateMachine& machine() const { return machine_; }
  int64_t now_us() const { return now_us_; }   // of the last event
  uint64_t events() const { return events_; }  // that led to it
  uint64_t peer_key() const { return peer_key_; }
  bool is_recovered() const { return is_recovered_; }
  // At one place until it is dropped.
  SessionOutbox& outbox(SessionId session) { return sessions_[session].outbox; }
  void Drop(SessionId session) { sessions_.erase(session); }
  WorkerLine* FindWorker(WorkerIndex worker);
  std::map<WorkerIndex, WorkerLine>& workers() { return workers_; }

 private:
  friend class Snapshot;
  struct SessionLine {
    SessionOutbox outbox;
    uint64_t logged = 0;  // the client has its events up to there, as the log says
  };
  Effects Enter(int64_t now_us, Event event);
  // The number that an effect of the newest event waits for; 0: for none.
  uint64_t HeldEvent() const { return holds_back_ ? events_ : 0; }
  void Route(Effects effects, Consequences& consequences);

  StateMachine machine_;
  std::unique_ptr<JournalWriter> journal_;
  int64_t now_us_ = 0;
  uint64_t events_ = 0;
  uint64_t peer_key_ = 0;
  bool is_recovered_ = false;
  bool holds_back_ = false;
  uint64_t committed_ = 0;
  uint64_t wanted_ = 0;                                 // the newest event whose commit somebody waits for
  uint64_t marked_ = 0;                                 // what the log says to be committed
  std::deque<std::pair<uint64_t, Consequences>> held_;  // by event
  std::function<void(const Effects&)> see_;
  std::map<SessionId, SessionLine> sessions_;
  std::map<WorkerIndex, WorkerLine> workers_;
};

}  // namespace tessera
