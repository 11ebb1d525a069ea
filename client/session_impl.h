#pragma once

// SessionImpl: the state behind Session and Tensor. It numbers handles and requests, queues records,
// takes events, and is where every blocking call waits. Public programs use session.h and tensor.h.
//
// Threads: any thread may call; events come on the connection's thread. mutex_ guards what events
// change; no wait and no callback holds it.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "client/call_operand.h"
#include "client/call_sites.h"
#include "client/connection/connection.h"
#include "client/handle_state.h"
#include "client/membership.h"
#include "client/plan_capture.h"
#include "client/session_told.h"
#include "client/spec_cache.h"
#include "client/thread_context.h"
#include "client/transfer_parts.h"

namespace tessera {

class Completions;       // completions.h
class DeferredCalls;     // deferred_calls.h
class Recording;         // recording.h
class SessionCalls;      // session_calls.h
class SessionTransfers;  // session_transfers.h
struct ReplayInput;
struct ReplayNumber;
class WorkPoll;  // wait.h

inline constexpr double kDefaultStallTimeoutS = 60;     // docs/limits.md: stall_timeout
inline constexpr int64_t kWarnImplicitBytes = 1 << 30;  // docs/limits.md: warn_implicit_bytes

class SessionImpl : public std::enable_shared_from_this<SessionImpl>, private ConnectionListener {
 public:
  static absl::StatusOr<std::shared_ptr<SessionImpl>> Open(ConnectionOptions options, double stall_timeout_s);
  ~SessionImpl() override;

  SessionCalls& calls() const { return *calls_; }              // session_calls.h
  SessionTransfers& transfers() const { return *transfers_; }  // session_transfers.h

  // ---- handles (session_impl.cc, session_names.cc) ----
  // A handle that the server has and this process has no object for; the session keeps it.
  HandlePtr Adopt(uint64_t id, const TensorSpec& spec, const std::string& name);  // that the coordinator tells of
  // From here on the handle keeps the tensor, whoever did before.
  void LetGo(HandleState& handle);
  // The session keeps a tensor that has a name (session_names.cc). Another that had it, has none any more; empty: none.
  absl::Status SetName(HandleState& handle, const std::string& name);
  std::string NameOfTensor(const HandleState& handle);
  absl::StatusOr<HandlePtr> FindNamed(const std::string& name);
  SessionState state();
  // Whether an op that uses the tensor last may take its memory.
  bool MayDonate(const HandlePtr& handle);
  HandlePtr FindLive(uint64_t id);  // that this process holds, or null

  // ---- waiting (session_wait.cc) ----
  // Asks to be told when it is settled; with the next batch.
  absl::Status Watch(HandleState& handle);
  absl::Status Wait(HandleState& handle, std::optional<double> timeout_s);
  // Until the spec is known, or the first cause of failure.
  absl::Status AwaitSpec(HandleState& handle, std::optional<double> timeout_s = std::nullopt);
  // Until no call waits for a spec.
  absl::Status AwaitDeferred(std::string_view what);
  bool IsReady(HandleState& handle);
  absl::Status Sync();
  absl::StatusOr<ClusterReport> GetStatus(uint32_t max_tensors);
  absl::Status AskAsAdmin(std::string_view what, const std::function<void(Connection&, DoneCallback)>& ask);
  absl::StatusOr<ProfileReport> Profile(const OpRange& ops);
  absl::StatusOr<uint64_t> CommBegin();
  absl::StatusOr<CommReport> CommEnd(uint64_t number);
  absl::Status Close();
  absl::Status Detach();
  absl::Status Check();  // ok while the session can be used
  // A cluster of this process, which the session needs while it is open and somebody has it.
  void KeepUntilClosed(std::shared_ptr<void> needed);
  // Cancels what was asked for in a request (request_state.h), and isn't issued; wakes whoever waits.
  void CancelCallsOf(uint64_t request, const absl::Status& why);
  void After(double seconds, std::function<void()> then);  // on the connection's thread
  SessionCounters& counters() { return told_.counters; }
  SessionCounts Counts();

  const WelcomeReport& welcome() const { return connection_->welcome(); }
  const std::string& address() const { return address_; }  // "unix:/path", without the token
  uint64_t last_event() const { return connection_->last_event(); }
  std::vector<std::string> lost_workers();
  Membership membership();
  uint64_t membership_version() const { return membership_version_; }  // changes with it

 private:
  friend struct HandleState;
  friend class Completions;
  friend class DeferredCalls;
  friend class SessionCalls;
  friend class SessionTransfers;
  friend class FileClient;  // session_files.h
  friend class GroupDoor;   // session_groups.h
  friend class PublicationDoor;
  friend class PartsDoor;
  struct Request;
  using RequestPtr = std::shared_ptr<Request>;
  using Clock = std::chrono::steady_clock;

  explicit SessionImpl(double stall_timeout_s);
  void OnEvents(std::vector<ClientEvent> events) override;
  void OnDrained() override;
  void OnLine(Line line) override;
  void OnDisconnect(const absl::Status& status) override;
  void ApplyEvent(ClientEvent& event, std::vector<std::function<void()>>* callbacks);

  HandlePtr NewHandle(SpecPtr spec, uint64_t id, Keeper keeper = Keeper::kHandle);
  HandlePtr HandleOf(SpecPtr spec, uint64_t id, Keeper keeper);  // the same, with the mutex held
  HandlePtr PlannedHandle(SpecPtr spec, Strides strides, std::shared_ptr<const HeldMemory> memory = nullptr);
  void Release(HandleState& handle);
  absl::Status WhyRefused(const absl::Status& refused, absl::Span<const CallOperand> operands);  // session_wait.cc
  std::pair<uint64_t, RequestPtr> NewRequest();
  absl::Status Enqueue(Record record);  // AwaitRoom, and Push where that is ok
  void Push(Record record);             // at once
  // While the queue is full. A call waits before it makes anything: one that is interrupted has done nothing.
  absl::Status AwaitRoom();
  void EnsureWatched(HandleState& handle);
  // Until `done`, called with the mutex held. Errors: the session's, DeadlineExceeded (also a stall), an interrupt.
  absl::Status WaitUntil(std::string_view what, std::optional<double> timeout_s, const std::function<bool()>& done);
  absl::Status WaitFor(std::string_view what, const RequestPtr& request);
  void CancelRequest(uint64_t request);
  // Nobody waits for it any more: it is cancelled, or its ticket is given back, now or when it comes.
  void EndRequest(uint64_t number, const RequestPtr& request, absl::Status reason = absl::OkStatus());
  // Gives up a ticket: workers close its windows. The tensor of an upload that is not complete fails with `reason`.
  void ReleaseTicket(uint64_t ticket, absl::Status reason = absl::OkStatus());
  absl::Status AwaitTakenUp();  // until the coordinator has taken up all records before this call
  // Answers that the client waits for, except for what leads to tensors that run on (OnCancel).
  void CancelAll();
  void ProbeProgress();
  void Progress();
  // Wakes who waits, and tells who asked to be told; without the mutex.
  void NotifyChanged();
  // The handle's tensor is there or has failed; its callbacks are taken for NotifyChanged. With the mutex held.
  void Settle(HandleState& handle);
  void TakeSettled(HandleState& handle);
  void Log(ClientLogLevel level, std::string_view text);
  absl::Status WaitForAll(absl::Span<const HandlePtr> results);  // but for what is recorded, or only planned
  absl::Status AtItsSite(const absl::Status& status) const;      // a later failure, with the place of its call

  std::shared_ptr<void> needed_;  // of KeepUntilClosed; the last member to go
  const double stall_timeout_s_;
  const uint64_t fork_generation_;
  std::string address_;
  std::unique_ptr<Connection> connection_;
  const std::unique_ptr<SessionCalls> calls_;
  const std::unique_ptr<SessionTransfers> transfers_;
  SiteLog sites_;
  SessionTold told_;
  std::atomic<uint64_t> next_handle_{1};
  std::atomic<uint64_t> next_request_{1};
  std::atomic<uint64_t> first_request_{UINT64_MAX};  // of this connection, once it is open
  std::atomic<bool> queue_is_full_{false};           // the connection's, as it was when a record came last
  std::atomic<int> queue_waiters_{0};                // who waits for it to drain
  std::atomic<bool> failed_{false};                  // failure_ is set
  std::atomic<bool> has_line_{true};                 // to the coordinator

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<uint64_t> changes_{0};  // how often changed_ was notified
  absl::Status failure_;
  absl::flat_hash_map<uint64_t, HandleState*> live_;
  absl::flat_hash_map<uint64_t, RequestPtr> requests_;
  std::map<std::string, uint64_t> names_;  // that this process gave, or asked for; with the handles' numbers
  std::vector<std::string> lost_workers_;
  std::vector<WorkerIndex> lost_numbers_;               // of them, those whose numbers no other worker has taken
  std::map<int32_t, Membership::Worker> worker_moves_;  // who came or went since the welcome
  std::atomic<uint64_t> membership_version_{0};
  Clock::time_point progress_ = Clock::now();
  size_t progress_mark_ = 0;  // what the last probe saw
};

}  // namespace tessera
