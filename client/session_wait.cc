#include <algorithm>
#include <utility>

#include "client/deferred_calls.h"
#include "client/recording.h"
#include "client/request_state.h"
#include "client/session_calls.h"
#include "client/session_impl.h"
#include "client/session_request.h"
#include "client/session_transfers.h"
#include "client/wait.h"
#include "schemas/host/linger.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr double kProbeAfterS = 5;
constexpr double kCloseTimeoutS = 5;
// The longest time that records may be behind an answer to a call. Records that wait at the coordinator for what is
// before them take longer to be taken up, and are safe there.
constexpr double kRecordsLateS = 1;

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

size_t MarkOf(const ClusterReport& report) {
  size_t mark = report.next_ordinal;
  auto mix = [&mark](uint64_t value) { mark = mark * 1000003 + value; };
  for (const WorkerReport& worker : report.workers) {
    mix(static_cast<uint64_t>(worker.outstanding));
    mix(static_cast<uint64_t>(worker.received_bytes));
    mix(static_cast<uint64_t>(worker.state));
    mix(worker.activity);
  }
  return mark;
}

class CountedWait {
 public:
  explicit CountedWait(SessionCounters& counters) : counters_(counters) {}
  ~CountedWait() {
    counters_.waits.Add(1);
    counters_.wait_microseconds.Add(static_cast<int64_t>(SecondsSince(start_) * 1e6));
  }
  CountedWait(const CountedWait&) = delete;
  CountedWait& operator=(const CountedWait&) = delete;

 private:
  SessionCounters& counters_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

absl::Status WaitsInCallback(std::string_view what) {
  return absl::FailedPreconditionError(
      StrCat(what,
             ": a callback must not wait: it runs on the thread that brings the session its news; use OnReady or "
             "Fetch, or hand the tensor to another thread"));
}

}  // namespace

absl::Status SessionImpl::WaitUntil(std::string_view what, std::optional<double> timeout_s,
                                    const std::function<bool()>& done) {
  uint64_t seen = changes_;
  const RequestState* const request = ThreadRequest().get();
  const auto has_ended = [request] { return request != nullptr && request->ended(); };
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (done()) return absl::OkStatus();
    if (!failure_.ok()) return failure_;
    if (has_ended()) return request->Told(what);
    if (connection_->IsOwnThread()) return WaitsInCallback(what);
    progress_ = std::max(progress_, Clock::now());
  }
  connection_->Flush();
  WaitScope scope;
  const Clock::time_point start = Clock::now();
  const CountedWait counted(counters());
  thread_local Linger linger;  // what it learns of the host is for the next wait, too
  linger.Begin(std::min(kLingerNs, static_cast<int64_t>(std::clamp(timeout_s.value_or(1), 0.0, 1.0) * 1e9)));
  while (linger.Yield()) {
    const uint64_t changes = changes_;
    if (changes == seen) continue;
    seen = changes;
    linger.Arrived();
    std::lock_guard<std::mutex> lock(mutex_);
    if (done()) return absl::OkStatus();
    if (!failure_.ok()) return failure_;
    if (has_ended()) return request->Told(what);
  }
  Clock::time_point probed = start;
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      double slice_s = kWaitPollMs * 1e-3;
      if (timeout_s.has_value()) slice_s = std::clamp(*timeout_s - SecondsSince(start), 0.0, slice_s);
      changed_.wait_for(lock, std::chrono::duration<double>(slice_s),
                        [&] { return done() || !failure_.ok() || has_ended(); });
      if (done()) return absl::OkStatus();
      if (!failure_.ok()) return failure_;
      if (has_ended()) return request->Told(what);
      if (timeout_s.has_value() && SecondsSince(start) >= *timeout_s) {
        return absl::DeadlineExceededError(StrCat(what, ": not done after ", *timeout_s, " s"));
      }
      // A caller that says how long to wait waits so long.
      const bool is_timed = timeout_s.has_value() || (request != nullptr && request->has_deadline());
      if (!is_timed && SecondsSince(progress_) > stall_timeout_s_) {
        counters().stalls.Add(1);
        Log(ClientLogLevel::kError, StrCat(what, ": no progress for ", stall_timeout_s_, " s"));
        return absl::DeadlineExceededError(
            StrCat(what, ": no progress for ", stall_timeout_s_, " s: ",
                   has_line_ ? "nothing ran on the workers, as far as the coordinator said"
                             : "the connection to the coordinator is lost, and being made again",
                   " (stall_timeout of connect, or TESSERA_STALL_TIMEOUT, allows more)"));
      }
    }
    if (SecondsSince(probed) > std::min(kProbeAfterS, stall_timeout_s_ / 4)) {
      probed = Clock::now();
      ProbeProgress();
    }
    if (absl::Status interrupted = scope.Poll(); !interrupted.ok()) {
      CancelAll();
      return interrupted;
    }
  }
}

// An answer whose numbers differ from the last one's is progress; the same numbers are none. A worker that answers and
// is at work makes a number grow, however long its op takes. Ops of other sessions are no progress, where this one
// waits for bytes from here.
void SessionImpl::ProbeProgress() {
  connection_->GetStatus({}, [this](absl::StatusOr<ClusterReport> report) {
    if (!report.ok()) return;
    const size_t mark = MarkOf(*report);
    const auto own = std::find_if(report->sessions.begin(), report->sessions.end(),
                                  [this](const SessionReport& session) { return session.id == welcome().session_id; });
    if (own != report->sessions.end() && own->awaits_client) return;
    // A collective that waits for other ranks has a time-out of its own.
    const bool awaits_ranks = own != report->sessions.end() && own->awaits_ranks;
    std::lock_guard<std::mutex> lock(mutex_);
    if (mark != progress_mark_ || awaits_ranks) progress_ = Clock::now();
    progress_mark_ = mark;
  });
}

void SessionImpl::NotifyChanged() {
  ++changes_;
  changed_.notify_all();
  if (!told_.has_settled) return;
  std::vector<std::function<void()>> settled;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    settled.swap(told_.settled);
    told_.has_settled = false;
  }
  for (auto& tell : settled) tell();
}

void SessionImpl::Settle(HandleState& handle) {
  if (!handle.settled && !handle.failure.ok()) {
    counters().failed_tensors.Add(1);
    if (HasClientLog()) Log(ClientLogLevel::kError, StrCat("a tensor failed: ", StdView(handle.failure.message())));
  }
  handle.settled = true;
  TakeSettled(handle);
}

void SessionImpl::TakeSettled(HandleState& handle) {
  if (handle.on_settled.empty()) return;
  told_.settled.insert(told_.settled.end(), std::make_move_iterator(handle.on_settled.begin()),
                       std::make_move_iterator(handle.on_settled.end()));
  handle.on_settled.clear();
  told_.has_settled = true;
}

void SessionImpl::After(double seconds, std::function<void()> then) { connection_->After(seconds, std::move(then)); }

SessionCounts SessionImpl::Counts() {
  SessionCounts counts;
#define TESSERA_READ_COUNTER(name, help) counts.name = counters().name.value();
  TESSERA_SESSION_COUNTERS(TESSERA_READ_COUNTER)
#undef TESSERA_READ_COUNTER
  counts.queued_records = static_cast<int64_t>(connection_->queued());
  std::lock_guard<std::mutex> lock(mutex_);
  counts.live_tensors = static_cast<int64_t>(live_.size() + calls_->deferred().unsent().size());
  return counts;
}

void SessionImpl::Log(ClientLogLevel level, std::string_view text) {
  if (HasClientLog()) LogClient(level, connection_ == nullptr ? 0 : welcome().session_id, text);
}

void SessionImpl::Progress() {
  std::lock_guard<std::mutex> lock(mutex_);
  progress_ = Clock::now();
}

absl::Status SessionImpl::WaitFor(std::string_view what, const RequestPtr& request) {
  TESSERA_RETURN_IF_ERROR(WaitUntil(what, std::nullopt, [&] { return request->done; }));
  std::lock_guard<std::mutex> lock(mutex_);
  return request->status;
}

void SessionImpl::EnsureWatched(HandleState& handle) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (handle.watched || handle.settled) return;
    handle.watched = true;
  }
  auto [number, request] = NewRequest();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    request->handle = handle.id;
  }
  Record record;
  record.kind = Record::Kind::kWatch;
  record.request = number;
  record.handle = handle.id;
  connection_->Enqueue(std::move(record));
}

// Records are taken up in order, and a watch of no tensor is answered in its turn.
absl::Status SessionImpl::AwaitTakenUp() {
  auto [number, request] = NewRequest();
  Record record;
  record.kind = Record::Kind::kWatch;
  record.request = number;
  TESSERA_RETURN_IF_ERROR(Enqueue(std::move(record)));
  return WaitUntil("the coordinator", std::nullopt, [&r = request] { return r->done; });
}

absl::Status SessionImpl::Watch(HandleState& handle) {
  TESSERA_RETURN_IF_ERROR(Check());
  if (handle.planned != nullptr) return NeverRuns(handle);
  TESSERA_RETURN_IF_ERROR(Recording::Refuse(StrCat("a wait for ", handle.SpecText())));
  if (handle.spec_known) EnsureWatched(handle);
  return absl::OkStatus();
}

absl::Status SessionImpl::Wait(HandleState& handle, std::optional<double> timeout_s) {
  const Clock::time_point start = Clock::now();
  TESSERA_RETURN_IF_ERROR(Watch(handle));
  if (!handle.spec_known) {
    TESSERA_RETURN_IF_ERROR(AwaitSpec(handle, timeout_s));
    if (timeout_s.has_value()) timeout_s = std::max(0.0, *timeout_s - SecondsSince(start));
    EnsureWatched(handle);
  }
  TESSERA_RETURN_IF_ERROR(
      WaitUntil(StrCat("wait for ", ToText(*handle.spec)), timeout_s, [&] { return handle.settled; }));
  std::lock_guard<std::mutex> lock(mutex_);
  return handle.TellFailure();
}

bool SessionImpl::IsReady(HandleState& handle) {
  if (!Check().ok() || handle.planned != nullptr) return true;
  if (handle.spec_known) EnsureWatched(handle);
  connection_->Flush();
  std::lock_guard<std::mutex> lock(mutex_);
  return handle.settled || !failure_.ok();
}

absl::Status SessionImpl::Sync() {
  TESSERA_RETURN_IF_ERROR(Check());
  TESSERA_RETURN_IF_ERROR(Recording::Refuse("sync"));
  TESSERA_RETURN_IF_ERROR(AwaitDeferred("sync"));
  std::vector<std::pair<uint64_t, RequestPtr>> watches;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [id, handle] : live_) {
      if (handle->settled) continue;
      const uint64_t number = next_request_++;
      auto request = std::make_shared<Request>();
      request->handle = id;
      requests_.emplace(number, request);
      watches.emplace_back(number, std::move(request));
    }
  }
  for (auto& [number, request] : watches) {
    Record record;
    record.kind = Record::Kind::kWatch;
    record.request = number;
    record.handle = request->handle;
    TESSERA_RETURN_IF_ERROR(Enqueue(std::move(record)));
  }
  for (auto& [number, request] : watches) {
    TESSERA_RETURN_IF_ERROR(WaitUntil("sync", std::nullopt, [&r = request] { return r->done; }));
  }
  // A failure is told once here; waits on its handle tell it always.
  std::lock_guard<std::mutex> lock(mutex_);
  absl::Status first;
  const auto tell = [&first](HandleState& handle) {
    if (handle.failure.ok() || handle.failure_reported) return;
    handle.failure_reported = true;
    if (first.ok()) first = handle.failure;
  };
  for (auto& [id, handle] : live_) tell(*handle);
  for (HandleState* handle : calls_->deferred().unsent()) tell(*handle);
  return first;
}

absl::StatusOr<ClusterReport> SessionImpl::GetStatus(uint32_t max_tensors) {
  TESSERA_RETURN_IF_ERROR(Check());
  TESSERA_RETURN_IF_ERROR(AwaitTakenUp());
  const auto ask = [this](TensorRange tensors) -> absl::StatusOr<ClusterReport> {
    auto [number, request] = NewRequest();
    connection_->GetStatus(tensors, Request::AnswerIn(*this, number, request, &Request::cluster));
    TESSERA_RETURN_IF_ERROR(WaitFor("status", request));
    return std::move(request->cluster);
  };
  TESSERA_ASSIGN_OR_RETURN(ClusterReport all, ask({max_tensors, 0}));
  std::vector<TensorReport>& tensors = all.tensors;
  while (all.has_more_tensors && tensors.size() < max_tensors) {
    const auto missing = static_cast<uint32_t>(max_tensors - tensors.size());
    TESSERA_ASSIGN_OR_RETURN(ClusterReport more, ask({missing, tensors.back().handle}));
    all.has_more_tensors = more.has_more_tensors && !more.tensors.empty();
    tensors.insert(tensors.end(), std::make_move_iterator(more.tensors.begin()),
                   std::make_move_iterator(more.tensors.end()));
  }
  return all;
}

absl::StatusOr<ProfileReport> SessionImpl::Profile(const OpRange& ops) {
  TESSERA_RETURN_IF_ERROR(Check());
  TESSERA_RETURN_IF_ERROR(AwaitTakenUp());
  auto [number, request] = NewRequest();
  connection_->Profile(ops, Request::AnswerIn(*this, number, request, &Request::profile));
  TESSERA_RETURN_IF_ERROR(WaitFor("profile", request));
  for (ProfiledOp& op : request->profile.ops) {
    if (const CallSite* site = FindSite(sites_.Find(op.result)); site != nullptr) op.place = site->place;
  }
  return std::move(request->profile);
}

absl::Status SessionImpl::AskAsAdmin(std::string_view what, const std::function<void(Connection&, DoneCallback)>& ask) {
  TESSERA_RETURN_IF_ERROR(Check());
  auto [number, request] = NewRequest();
  ask(*connection_, [this, n = number, r = request](absl::Status status) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      r->done = true;
      r->status = std::move(status);
      requests_.erase(n);
    }
    NotifyChanged();
  });
  return WaitFor(what, request);
}

absl::StatusOr<uint64_t> SessionImpl::CommBegin() {
  TESSERA_RETURN_IF_ERROR(Check());
  TESSERA_RETURN_IF_ERROR(AwaitDeferred("comm_debug"));
  Record record;
  record.kind = Record::Kind::kCommBegin;
  record.handle = next_request_++;
  const uint64_t number = record.handle;
  TESSERA_RETURN_IF_ERROR(Enqueue(std::move(record)));
  return number;
}

absl::StatusOr<CommReport> SessionImpl::CommEnd(uint64_t number) {
  TESSERA_RETURN_IF_ERROR(Check());
  TESSERA_RETURN_IF_ERROR(AwaitDeferred("comm_debug"));
  auto [request_number, request] = NewRequest();
  Record record;
  record.kind = Record::Kind::kCommEnd;
  record.request = request_number;
  record.handle = number;
  TESSERA_RETURN_IF_ERROR(Enqueue(std::move(record)));
  TESSERA_RETURN_IF_ERROR(WaitFor("comm_debug", request));
  return request->comm;
}

absl::Status SessionImpl::Close() {
  if (!Check().ok()) {
    KeepUntilClosed(nullptr);
    return absl::OkStatus();
  }
  auto [number, request] = NewRequest();
  connection_->CloseSession([this, n = number, r = request](absl::Status status) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      r->done = true;
      requests_.erase(n);
    }
    NotifyChanged();
  });
  absl::Status answered = WaitUntil("close", kCloseTimeoutS, [&r = request] { return r->done; });
  {
    WaitScope scope;
    connection_->Shutdown();
  }
  OnDisconnect(absl::FailedPreconditionError("session: it is closed"));
  KeepUntilClosed(nullptr);
  return answered.code() == absl::StatusCode::kCancelled ? answered : absl::OkStatus();
}

// An answer comes when the records before it have gone. Bytes and records that are on their way from here are waited
// for: nobody else has them.
absl::Status SessionImpl::Detach() {
  if (!Check().ok()) return absl::OkStatus();
  const absl::Status brought = WaitUntil("detach", std::nullopt, [this] {
    if (!calls_->deferred().empty()) return false;
    return transfers_->has_brought_all();
  });
  auto is_answered = std::make_shared<std::atomic<bool>>(false);
  auto is_taken_up = std::make_shared<std::atomic<bool>>(false);
  const auto set = [this](std::atomic<bool>& which) {
    which = true;
    NotifyChanged();
  };
  connection_->GetStatus({}, [set, is_answered](const absl::StatusOr<ClusterReport>&) { set(*is_answered); });
  connection_->WhenTakenUp([set, is_taken_up] { set(*is_taken_up); });
  absl::Status left = WaitUntil("detach", kCloseTimeoutS, [&] { return is_answered->load(); });
  const absl::Status taken_up = WaitUntil("detach", kRecordsLateS, [&] { return is_taken_up->load(); });
  if (!absl::IsDeadlineExceeded(taken_up)) left.Update(taken_up);
  left.Update(brought);
  connection_->Shutdown();
  OnDisconnect(absl::FailedPreconditionError("session: this process has left it (detach)"));
  KeepUntilClosed(nullptr);
  return left;
}

void SessionImpl::KeepUntilClosed(std::shared_ptr<void> needed) {
  std::lock_guard<std::mutex> lock(mutex_);
  needed_.swap(needed);  // what it held goes when the lock is gone
}

Membership SessionImpl::membership() {
  Membership membership;
  for (const WorkerReport& worker : welcome().workers) {
    membership.workers[worker.index] = {worker.state != WorkerState::kDead, worker.device, worker.is_cordoned};
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [index, moved] : worker_moves_) {
      Membership::Worker& worker = membership.workers.try_emplace(index, moved).first->second;
      worker.is_here = moved.is_here;
      if (moved.is_here) worker.device = moved.device;
      if (moved.is_here) worker.is_cordoned = false;  // another process
    }
  }
  if (!membership.workers.empty()) membership.numbers = membership.workers.rbegin()->first + 1;
  return membership;
}

std::vector<WorkerIndex> Membership::Present(DeviceKind kind) const {
  std::vector<WorkerIndex> present;
  for (const auto& [index, worker] : workers) {
    if (worker.is_here && !worker.is_cordoned && worker.device == kind) present.emplace_back(index);
  }
  return present;
}

DeviceKind Membership::default_kind() const {
  for (const auto& [index, worker] : workers) {
    if (worker.is_here) return worker.device;
  }
  return DeviceKind::kCpu;
}

// A call whose operands a lost worker has driven apart, or of which one has failed, is refused for that.
absl::Status SessionImpl::WhyRefused(const absl::Status& refused, absl::Span<const CallOperand> operands) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (lost_numbers_.empty() || !absl::IsInvalidArgument(refused)) return refused;
  for (const CallOperand& operand : operands) {
    if (operand.tensor == nullptr || !(*operand.tensor)->spec_known) continue;
    HandleState& handle = **operand.tensor;
    if (!handle.failure.ok()) return handle.TellFailure();
    for (const WorkerIndex lost : lost_numbers_) {
      if (!handle.spec->mesh.FindWorker(lost).has_value()) continue;
      return absl::UnavailableError(StrCat("worker ", lost.value, " was lost, and ", ToText(*handle.spec),
                                           " has a part there; ", StdView(refused.message())));
    }
  }
  return refused;
}

std::vector<std::string> SessionImpl::lost_workers() {
  std::lock_guard<std::mutex> lock(mutex_);
  return lost_workers_;
}

}  // namespace tessera
