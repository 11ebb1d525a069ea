#pragma once

// Hub: the state machine with its links. It gives events to the state machine one at a time and carries
// the effects out in order: messages onto worker links, events onto session links. One KJ thread.

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <kj/async-unix.h>
#include <kj/async.h>
#include <kj/io.h>
#include <kj/time.h>

#include "schemas/host/loop_linger.h"
#include "schemas/link/message_link.h"
#include "schemas/session.capnp.h"
#include "server/coordinator/rpc/audit.h"
#include "server/coordinator/rpc/book_reader.h"
#include "server/coordinator/rpc/clock_offset.h"
#include "server/coordinator/rpc/core.h"
#include "server/coordinator/rpc/drains.h"
#include "server/coordinator/rpc/hello_codec.h"
#include "server/coordinator/rpc/options.h"
#include "server/coordinator/rpc/tenants_edge.h"
#include "server/coordinator/rpc/usage_book.h"
#include "server/process/server_manager.h"

namespace kj {
class Timer;
}

namespace tessera {

class LogSync;
class StateFolder;
class Upgrade;

// While more of a session's records than this wait to be issued, its link is not read: so the client stops before
// max_queued_records ends the session. More than a client of this project has in flight (max_records_in_flight): its
// words out of turn, a cancel or a release, are read.
inline constexpr size_t kSubmitHighWater = 32'768;  // docs/limits.md: submit_high_water
// Characters of a line in the log that a worker or a client wrote.
inline constexpr size_t kMaxLogChars = 500;  // docs/limits.md: max_log_chars

class Hub final : private kj::TaskSet::ErrorHandler {
 public:
  // A core that was recovered goes on: its sessions' leases begin, and its workers have worker_timeout to join again.
  Hub(const CoordinatorOptions& options, kj::Timer& timer, kj::UnixEventPort& port, std::unique_ptr<Core> core,
      const ServerManager& manager);

  void Apply(Event event, const wire::Batch::Reader* batch = nullptr, JournalWriter::Words came = nullptr);
  kj::Promise<void> RunTicks();
  // Its core's log is in this folder, and snapshots are to be. The folder outlives the hub.
  void KeepIn(StateFolder& folder);
  // When all events that there are now are committed: what an answer tells may be lost before. At once where effects
  // are not held back.
  kj::Promise<void> WhenCommitted();
  bool holds_back() const { return core_->holds_back(); }
  // A snapshot of all, as the process ends; with a folder.
  void SaveNow();

  struct Opened {
    SessionId session;
    uint64_t secret = 0;
    uint64_t connection = 0;
    uint64_t link_key = 0;  // its link begins with it
  };
  // For a session's client. `on_end` is called once, when the session is over or another
  // connection has taken it.
  // With a number and a secret of its own. ResourceExhausted when there are too many.
  absl::StatusOr<Opened> OpenSession(SessionOpenedEvent event, std::function<void(absl::Status)> on_end);
  // NotFound for a session that is not here, has another secret, or is of another tenant or role: which is not told.
  struct Holder {
    std::string tenant;
    Role role = Role::kClient;
  };
  absl::StatusOr<Opened> ResumeSession(const ResumeRequest& resume, const Holder& holder,
                                       std::function<void(absl::Status)> on_end);
  absl::Status CloseByAdmin(SessionId session, SessionId by);
  // Ends a worker's process: a death like any other. NotFound, or FailedPrecondition where its process can't be ended
  // from here and others map its memory.
  absl::Status KillByAdmin(WorkerIndex worker, const std::string& reason, SessionId by);
  // hub_admin.cc. How many sessions were ended; NotFound for a tenant that isn't here.
  absl::StatusOr<uint32_t> EvictByAdmin(const std::string& tenant, const std::string& reason, SessionId by);
  absl::Status CordonByAdmin(WorkerIndex worker, Admits admits, SessionId by);
  absl::StatusOr<DrainState> DrainByAdmin(WorkerIndex worker, Drains::Losses losses, SessionId by);
  // The audit hears of each act and of the sessions' use, from now on until CloseBook.
  void KeepBook(Audit& audit);
  void CloseBook();
  void Record(AuditEntry entry);
  // FailedPrecondition where no book is kept; ResourceExhausted.
  absl::StatusOr<std::shared_ptr<BookReader::Asked>> AskBook(const BookQuery& query);
  // The book's reader ends: false where its disk answers nothing for so long.
  bool FinishReading(std::chrono::milliseconds limit) { return reader_ == nullptr || reader_->Finish(limit); }
  // The one that turns this process into its next program. It lives while connections do.
  void UpgradeBy(Upgrade& upgrade) { upgrade_ = &upgrade; }
  // Begins one, or says how far it is.
  enum class UpgradeStep : uint8_t { kBegin, kLook };
  absl::StatusOr<UpgradeState> UpgradeByAdmin(UpgradeStep step, SessionId by);
  uint64_t dropped_audit() const { return audit_ == nullptr ? 0 : audit_->dropped(); }
  // The tenants file, when it has been read: limits are an event, tokens are not.
  void SetTenants(TenantsFile file);
  // Until the file is read again. NotFound, InvalidArgument.
  absl::Status SetLimitByAdmin(const std::string& tenant, const std::string& key, const std::string& value,
                               SessionId by);
  TenantLimits LimitsOf(const std::string& tenant) const;
  void ConnectionGone(SessionId session, uint64_t connection);
  bool IsCurrent(SessionId session, uint64_t connection) const;

  struct Joined {
    WorkerIndex worker;
    uint64_t incarnation = 0;
    uint64_t link_key = 0;  // its link begins with it
    uint64_t reported = 0;  // reports of it that are here
  };
  // A worker that lives, or has begun to join, has the number.
  bool IsHere(WorkerIndex worker) const;
  // The numbers for which the join token is used, and whether it is good for this one: PermissionDenied where all its
  // uses are for others. UseJoinToken takes one of them for the number, unless it has one.
  std::set<WorkerIndex> JoinTokenUsesOf(const TokenEntry& token) const;
  absl::Status CheckJoinToken(const TokenEntry& token, WorkerIndex worker) const;
  void UseJoinToken(const TokenEntry& token, WorkerIndex worker);
  // One that is nobody's: such for which its token is used come first.
  WorkerIndex FreeNumberFor(const TokenEntry& token) const;
  // It takes part when its link is there.
  absl::StatusOr<Joined> JoinWorker(WorkerJoinedEvent event, wire::Worker::Client client);
  // A worker whose coordinator was another process goes on with this one. FailedPrecondition where that worker is not
  // waited for, DataLoss where the log knows less than it does.
  absl::StatusOr<Joined> RejoinWorker(const WorkerJoinedEvent& event, const RejoinRequest& again,
                                      wire::Worker::Client client);
  void WorkerGone(WorkerIndex worker, uint64_t incarnation, const std::string& reason);
  // Takes no session, no worker and no record any more; those that were taken go on.
  void BeginStop();
  bool is_stopping() const { return is_stopping_; }
  // Whether all that was taken has ended. A session that waits for its client's bytes counts as ended.
  bool IsQuiet() const;
  // Workers and clients are told to end, unless there is a state folder: then they wait for the next coordinator.
  void TellStopped();
  bool HasToldAll() const;  // and the workers have gone
  // The process ends: workers that go from now on are not lost to anybody. Connections end before the hub does.
  void Stop();

  // Takes the link of a session or a worker that was given the key; false: it was given to nobody, or has been used.
  bool TakeLink(uint64_t key, kj::Own<LinkStream> stream);

  const StateMachine& machine() const { return core_->machine(); }
  const CoordinatorOptions& options() const { return options_; }
  TenantsEdge& tenants_edge() { return tenants_edge_; }
  const TenantsEdge& tenants_edge() const { return tenants_edge_; }
  uint64_t epoch() const { return machine_.given().epoch; }
  uint64_t peer_key() const { return core_->peer_key(); }
  double uptime_s() const;
  double loop_s() const { return static_cast<double>(loop_ns_) * 1e-9; }  // that its own work took
  // In how many heartbeats the worker was at work.
  uint64_t ActivityOf(WorkerIndex worker) const;
  // The clocks of all workers that ever were here, as they were last.
  const std::map<WorkerIndex, ClockOffset>& clocks() const { return clocks_; }
  void Flush();

 private:
  struct WorkerLink {
    wire::Worker::Client client;
    WorkerJoinedEvent info;
    uint64_t link_key = 0;
    kj::Own<MessageLink> link;  // null until it has come
    bool is_away = false;       // its coordinator was another process; it is to join again
    uint64_t activity = 0;
    kj::AutoCloseFd process = {};  // of one that can be ended from here
    std::string ended_by = {};     // why it was ended, where an admin did it
  };
  struct SessionLink {
    bool is_connected = false;
    kj::Own<MessageLink> link;  // null until it has come, and while no connection has the session
    uint64_t link_key = 0;
    uint64_t secret = 0;
    int64_t heard_us = 0;             // as NowUs has it
    SessionOutbox* outbox = nullptr;  // the core's; it stays there until the link is gone
    std::function<void(absl::Status)> on_end;
    kj::Maybe<kj::Own<kj::PromiseFulfiller<void>>> room;  // for whom the link's reading waits
    absl::Status refusal;                                 // why it is being ended from here
  };
  void BookUsage();
  void GoOnWithSessions();
  void GoOnWithWorkers();
  void Disconnect(SessionLink& link);
  // A session goes on with a new connection, whose link is to come. Its number, for the event that says so.
  uint64_t ConnectSession(SessionId session, SessionLink& link);
  uint64_t NextIncarnation() const;
  void StartLink(SessionId session, uint64_t connection, kj::Own<LinkStream> stream);
  void StartWorker(const WorkerJoinedEvent& event, kj::Own<LinkStream> stream);
  void StartWorkerAgain(WorkerIndex worker, uint64_t incarnation, kj::Own<LinkStream> stream);
  void LoseEndedFormer(const WorkerJoinedEvent& event);
  // False when the worker is not expected any more.
  bool StartWorkerLink(WorkerIndex worker, uint64_t incarnation, kj::Own<LinkStream> stream);
  using TakeStream = std::function<void(kj::Own<LinkStream>)>;
  uint64_t ExpectLink(TakeStream take);
  bool MayRest();
  // Sessions whose clients have said nothing for too long.
  void LoseSilent();
  kj::Maybe<kj::Promise<void>> TakeFromClient(SessionId session, capnp::MessageReader& came);
  // Ends the session, for what its client sent.
  void Refuse(SessionId session, const absl::Status& reason);
  absl::Status TakeBatch(SessionId session, wire::Batch::Reader batch, capnp::MessageReader& came);
  absl::Status TakeReported(WorkerIndex worker, uint64_t incarnation, wire::Reported::Reader reported);
  // Lets go of a link that may be calling this very moment.
  void Retire(kj::Own<MessageLink> link);
  bool HasRoom(SessionId session) const;
  void CloseFor(SessionId session, const absl::Status& reason);
  // hub_commit.cc
  void AwaitLog(const absl::Status& why);
  void BeginSync();
  kj::Promise<void> WatchSync();
  // A sync has ended: what it covers may leave.
  void TakeSync();
  void AwaitSlowSync();
  void AwaitSyncEnd();
  void CommitAll();
  void SnapshotWhenDue();
  void Carry(Core::Consequences consequences);
  // Goes on with what the machine has left, when others have had their turn.
  void GoOn();
  void Kill(const KillWorker& victim);
  void FlushWorkers();
  void FlushSession(SessionId session);
  void EndLink(SessionId session, const absl::Status& reason);
  // At once, and again and again.
  kj::Promise<void> Ping(WorkerIndex worker, uint64_t incarnation);
  kj::Promise<void> PingLater(WorkerIndex worker, uint64_t incarnation);
  void taskFailed(kj::Exception&& exception) override;
  int64_t UptimeUs() const;
  // The state machine's time: the clock without the time for which this process was held up.
  int64_t NowUs();
  bool IsFlooded(SessionId session, const SessionLink& link) const;
  // Bytes of its events beside those that its tensors account for.
  int64_t EventBytesOf(SessionId session, const SessionLink& link) const;
  // Where all sessions' events are too many bytes: the session that has the most.
  std::optional<SessionId> LargestOutbox() const;

  CoordinatorOptions options_;
  const ServerManager& manager_;
  kj::Timer& timer_;
  kj::UnixEventPort& port_;
  LoopLinger linger_;
  kj::TimePoint started_;
  int64_t last_uptime_us_ = 0;
  int64_t paused_us_ = 0;
  int64_t loop_ns_ = 0;
  std::unique_ptr<Core> core_;
  StateFolder* state_ = nullptr;
  bool is_sync_due_ = false;
  LogSync* sync_ = nullptr;  // null: an event is committed when it is in the log
  kj::Own<kj::UnixEventPort::FdObserver> sync_ended_;
  std::multimap<uint64_t, kj::Own<kj::PromiseFulfiller<void>>> awaiting_commit_;  // of events up to that number
  const StateMachine& machine_;
  int64_t log_complaint_us_ = 0;  // when it was said last that the log can't be written
  const int64_t began_us_;        // by the machine's clock, which goes on where a former process left it
  TenantsEdge tenants_edge_;
  Drains drains_;
  Audit* audit_ = nullptr;
  std::unique_ptr<BookReader> reader_;  // with the audit
  Upgrade* upgrade_ = nullptr;
  UsageBook book_;
  int64_t booked_us_ = 0;
  int64_t alive_us_ = 0;  // when the service manager heard last that this process lives
  bool is_stopping_ = false;
  bool has_told_ = false;
  std::map<uint64_t, TakeStream> expected_links_;  // by key
  std::map<WorkerIndex, WorkerLink> workers_;
  std::map<WorkerIndex, ClockOffset> clocks_;
  ByteBudget unfinished_{kMaxUnfinishedBytes};  // of sessions' links, so before them
  std::map<SessionId, SessionLink> sessions_;
  bool ticking_ = false;
  bool going_on_ = false;
  kj::TaskSet tasks_;
};

// Unpredictable; for secrets.
uint64_t RandomSecret();

}  // namespace tessera
