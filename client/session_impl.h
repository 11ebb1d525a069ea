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

class Completions;    // completions.h
class DeferredCalls;  // deferred_calls.h
class Recording;      // recording.h
struct ReplayInput;
struct ReplayNumber;
class WorkPoll;  // wait.h

inline constexpr double kDefaultStallTimeoutS = 60;     // docs/limits.md: stall_timeout
inline constexpr int64_t kWarnImplicitBytes = 1 << 30;  // docs/limits.md: warn_implicit_bytes

class SessionImpl : public std::enable_shared_from_this<SessionImpl>, private ConnectionListener {
 public:
  static absl::StatusOr<std::shared_ptr<SessionImpl>> Open(ConnectionOptions options, double stall_timeout_s);
  ~SessionImpl() override;

  // ---- ops (session_impl.cc) ----
  // An op with one result; any op: its results in order.
  absl::StatusOr<HandlePtr> Call(const OpCall& call, absl::Span<const CallOperand> operands);
  using Results = absl::InlinedVector<HandlePtr, 1>;
  absl::StatusOr<Results> CallAll(const OpCall& call, absl::Span<const CallOperand> operands);
  // The value without pending terms, reduced once: cut as `beside` (or null) is, else whole (session_reduced.cc).
  absl::StatusOr<HandlePtr> Reduced(const HandlePtr& tensor, const HandlePtr* beside);
  absl::StatusOr<PlanReport> Explain(const OpCall& call, absl::Span<const CallOperand> operands);
  // Runs a recording again, with these tensors and numbers; its kept results (session_replay.cc).
  absl::StatusOr<std::vector<HandlePtr>> Replay(const Recording& recording, absl::Span<const ReplayInput> inputs,
                                                absl::Span<const ReplayNumber> numbers);
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
  // Calls with one result that counts complete (DeferredCalls::AddCounted). Returns at once.
  absl::StatusOr<std::vector<HandlePtr>> CallCounted(std::string_view what, absl::Span<const CountedCall> calls,
                                                     const HandlePtr& counts);
  // A call that the specs of its operands complete; at once where they are known (deferred_calls.h).
  absl::StatusOr<HandlePtr> CallLater(const CallCompletion& complete, absl::Span<const CallOperand> operands);

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

  // ---- bulk data (session_data.cc, session_download.cc) ----
  // Up to kSnapshotBytes it copies and returns; above, it returns when the source has been read.
  absl::StatusOr<HandlePtr> Upload(const TensorSpec& spec, std::vector<UploadPiece> pieces);
  // The rows are read in order, as many as a slab has at a time. The tensor has elements and dims.
  absl::StatusOr<HandlePtr> UploadRows(const TensorSpec& spec, const RowReader& read);
  // No Partial unless a position is given.
  absl::StatusOr<HostArray> Download(const HandlePtr& handle, std::optional<int64_t> flat_position);
  // The same into the caller's memory, as Tensor::FullTensorTo. `what` opens messages.
  absl::Status DownloadTo(std::string_view what, const HandlePtr& handle, const DownloadPart& part,
                          const HostTarget& out);

  const WelcomeReport& welcome() const { return connection_->welcome(); }
  const std::string& address() const { return address_; }  // "unix:/path", without the token
  uint64_t last_event() const { return connection_->last_event(); }
  SpecCache& specs() { return specs_; }
  void SetImplicitPolicy(ImplicitPolicy policy) { implicit_policy_ = policy; }
  ImplicitPolicy implicit_policy() const { return implicit_policy_; }
  std::vector<std::string> lost_workers();
  Membership membership();
  uint64_t membership_version() const { return membership_version_; }  // changes with it

 private:
  friend struct HandleState;
  friend class Completions;
  friend class DeferredCalls;
  friend class FileDoor;   // session_files.h
  friend class GroupDoor;  // session_groups.h
  friend class PublicationDoor;
  friend class PartsDoor;
  struct Request;
  // session_transfer.h
  struct Slab;
  struct SlabRun;
  struct SlabProgress;
  struct SlabSender;
  struct Landing;
  using Holders = std::vector<std::pair<WorkerIndex, Box>>;
  using SlabProgressPtr = std::shared_ptr<SlabProgress>;
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
  // Gives up an upload whose bytes can't be brought: releases its ticket, and the tensor has failed here at once.
  void GiveUpUpload(uint64_t ticket, absl::Span<const uint64_t> handles, const absl::Status& why);
  absl::Status AsTheCoordinatorSays(const absl::Status& status, HandleState& handle);  // of an upload that broke
  absl::Status AwaitTakenUp();  // until the coordinator has taken up all records before this call
  // Answers that the client waits for, except for what leads to tensors that run on (OnCancel).
  void CancelAll();
  static OnCancel SpreadTo(absl::Span<const CallOperand> operands);  // to the results of a call on these
  void ProbeProgress();
  void Progress();
  // Wakes who waits, and tells who asked to be told; without the mutex.
  void NotifyChanged();
  // The handle's tensor is there or has failed; its callbacks are taken for NotifyChanged. With the mutex held.
  void Settle(HandleState& handle);
  void TakeSettled(HandleState& handle);
  void Log(ClientLogLevel level, std::string_view text);
  absl::Status CheckImplicit(const SpecEntry& entry);
  // The text that tells of implicit redistributions; an error where they are forbidden.
  static absl::StatusOr<std::string> ImplicitText(const SpecEntry& entry, ImplicitPolicy policy);
  absl::Status AwaitSpecs(absl::Span<const CallOperand> operands);
  // A call with these specs of its operands; the record has no results yet.
  struct Resolved {
    OpCall call;
    Record record;
    std::shared_ptr<const SpecEntry> entry;
  };
  // Keeps a call whose operands' specs are pending; nothing where they are known, or were waited for.
  absl::StatusOr<std::optional<Results>> Defer(const CallCompletion& complete, absl::Span<const CallOperand> operands);
  absl::StatusOr<Resolved> Resolve(const CallCompletion& complete, absl::Span<const CallOperand> operands,
                                   absl::Span<const SpecPtr> specs);
  // For each operand that the call would reduce: what it is reduced to; empty where this call remembers nothing.
  absl::StatusOr<Results> ReduceOnce(const OpCall& call, const SpecEntry& entry, absl::Span<const SpecOperand> specs,
                                     absl::Span<const CallOperand> operands);
  absl::StatusOr<HandlePtr> Reduce(const HandlePtr& pending, const TensorSpec& wanted);
  HandlePtr FindReduced(HandleState& pending, const TensorSpec& wanted);
  enum class ResultCount : uint8_t { kOne, kAny };
  absl::StatusOr<Results> Submit(const OpCall& call, absl::Span<const CallOperand> operands, ResultCount wanted);
  absl::StatusOr<Results> Take(const OpCall& call, absl::Span<const CallOperand> operands, ResultCount wanted);
  absl::Status WaitForAll(absl::Span<const HandlePtr> results);  // but for what is recorded, or only planned
  absl::Status AtItsSite(const absl::Status& status) const;      // a later failure, with the place of its call
  // The results of a call that is planned only.
  static std::shared_ptr<const HeldMemory> MemoryOf(PlanCapture& capture, const PlanReport& plan, size_t output,
                                                    absl::Span<const CallOperand> operands);
  absl::StatusOr<Results> PlanFor(PlanCapture& capture, const OpCall& call, absl::Span<const CallOperand> operands,
                                  const SpecEntry& entry);

  absl::StatusOr<std::shared_ptr<HostMemory>> SnapshotMemory(int64_t bytes);  // waits while too many are under way
  absl::Status SendSnapshot(uint64_t request, const RequestPtr& state, const HandlePtr& handle,
                            const std::vector<UploadPiece>& pieces, int64_t bytes);
  absl::Status SendSlabs(uint64_t request, const RequestPtr& state, const HandlePtr& handle,
                         const std::vector<UploadPiece>& pieces);
  // Sends pieces that lie row-major in the memory.
  absl::Status SendInPlace(uint64_t request, const RequestPtr& state, const HandlePtr& handle,
                           const std::vector<UploadPiece>& pieces, const std::shared_ptr<HostMemory>& memory);
  absl::Status SendRows(uint64_t request, const RequestPtr& state, const HandlePtr& handle, const RowReader& read);
  // A new handle whose bytes `send` brings.
  using Sender = std::function<absl::Status(uint64_t request, const RequestPtr&, const HandlePtr&)>;
  absl::StatusOr<HandlePtr> UploadBy(const TensorSpec& spec, const Sender& send);
  absl::StatusOr<HandlePtr> UploadInline(const TensorSpec& spec, const HostView& source);
  // A handle of a tensor that is planned only, where the thread's calls are; an error where values may not be brought.
  absl::StatusOr<HandlePtr> BeforeUpload(const TensorSpec& spec);
  absl::Status RequestUpload(uint64_t request, const HandlePtr& handle);  // queues its record
  // Waits for the ticket and begins the transfer; the ticket.
  absl::StatusOr<uint64_t> BeginUpload(uint64_t request, const RequestPtr& state, const HandlePtr& handle,
                                       const std::shared_ptr<HostMemory>& memory);
  void FinishUpload(uint64_t request, uint64_t ticket, const HandlePtr& handle, const SlabProgressPtr& progress,
                    const std::shared_ptr<HostMemory>& memory);
  // Once more where a worker was lost meanwhile that wasn't the only holder.
  absl::Status DownloadBox(const HandlePtr& handle, const DownloadPart& part, const Box& box, Landing& landing);
  absl::Status DownloadOnce(const HandlePtr& handle, const DownloadPart& part, const Box& box, Landing& landing);
  absl::Status Fetch(uint64_t request, const RequestPtr& state, const HandlePtr& handle, const DownloadPart& part,
                     const Box& box, Landing& landing);
  absl::Status FetchFromWorkers(uint64_t request, const RequestPtr& state, const HandlePtr& handle,
                                const DownloadPart& part, const Box& box, const Landing& landing);
  absl::Status Arrived(const RequestPtr& state, const HandlePtr& handle, const SlabProgressPtr& progress,
                       const absl::Status& fetched);
  absl::Status WhyBroken(const absl::Status& status, const HandlePtr& handle);  // as the coordinator says
  static std::vector<Slab> InTurns(std::vector<Slab> slabs, const Holders& holders);
  // The box by a ring; an error is in `progress`, or returned.
  absl::Status FetchSlabs(uint64_t request, const Holders& holders, const std::vector<Slab>& slabs, HostMemory& ring,
                          const SlabProgressPtr& progress, char* destination);
  // Workers copy between their shards and the memory itself; the runs beside each other.
  absl::Status CopyInPlace(std::string_view what, uint64_t request, const std::vector<SlabRun>& runs,
                           const SlabProgressPtr& progress);
  // Makes the pages of a download while its tensor isn't there yet.
  absl::Status MakePagesUntilTicket(const RequestPtr& state, HostMemory& memory);
  // A ring for slabs: warm memory of an earlier transfer, or its own.
  absl::StatusOr<std::shared_ptr<HostMemory>> TakeRing(int64_t bytes);
  void KeepRing(std::shared_ptr<HostMemory> ring);  // with the mutex held
  absl::Status LookForInterrupt(WorkPoll& poll);    // for work that doesn't wait
  absl::Status WaitForLane(std::string_view what, const SlabProgressPtr& progress, size_t lane);
  void CopySlab(uint64_t request, absl::Span<const WorkerIndex> workers, const Slab& slab, size_t lane,
                const SlabProgressPtr& progress);

  std::shared_ptr<void> needed_;  // of KeepUntilClosed; the last member to go
  const double stall_timeout_s_;
  const uint64_t fork_generation_;
  std::string address_;
  std::unique_ptr<Connection> connection_;
  const std::unique_ptr<DeferredCalls> deferred_;
  SpecCache specs_;
  SiteLog sites_;
  SessionTold told_;
  std::atomic<ImplicitPolicy> implicit_policy_{ImplicitPolicy::kAllow};
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
  size_t progress_mark_ = 0;                          // what the last probe saw
  std::vector<std::weak_ptr<HostMemory>> snapshots_;  // under way, and some that were
  std::shared_ptr<HostMemory> ring_;                  // of the last transfer by slabs
};

}  // namespace tessera
