#include "client/session_impl.h"

#include <pthread.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "client/deferred_calls.h"
#include "client/recording.h"
#include "client/request_state.h"
#include "client/session_calls.h"
#include "client/session_request.h"
#include "client/session_transfers.h"
#include "client/wait.h"
#include "schemas/types/address.h"
#include "schemas/types/call_origin.h"
#include "schemas/types/living_mesh.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// Raised in every forked child: its copies of sessions have no thread and no connection of their own.
std::atomic<uint64_t> fork_generation{0};

uint64_t ForkGeneration() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++fork_generation; });
  (void)registered;
  return fork_generation;
}

// The connection's thread can have the last handle for a moment, while it sends a deferred call, and it can't end
// itself: another thread does, which the next one joins.
void EndElsewhere(std::function<void()> end) {
  static std::mutex* const mutex = new std::mutex();
  static std::thread* last = new std::thread();
  static uint64_t generation = fork_generation;
  const std::lock_guard<std::mutex> lock(*mutex);
  if (generation != fork_generation) last = new std::thread();  // the parent's
  generation = fork_generation;
  if (last->joinable()) last->join();
  *last = std::thread(std::move(end));
}

}  // namespace

HandleState::~HandleState() {
  if (session != nullptr && planned == nullptr) session->Release(*this);
}

absl::Status NeverRuns(const HandleState& planned) {
  return absl::FailedPreconditionError(StrCat("explain: ", ToText(*planned.spec),
                                              " was planned and never runs: it has no values to read or to wait for"));
}

SessionImpl::SessionImpl(double stall_timeout_s)
    : stall_timeout_s_(stall_timeout_s),
      fork_generation_(ForkGeneration()),
      calls_(std::make_unique<SessionCalls>(*this)),
      transfers_(std::make_unique<SessionTransfers>(*this)) {}

SessionImpl::~SessionImpl() {
  // Its thread calls into this object: it ends before any member goes. In a forked child the thread does not exist, so
  // nothing may be joined.
  if (fork_generation_ != fork_generation) {
    [[maybe_unused]] Connection* leaked = connection_.release();
  } else if (connection_ != nullptr) {
    connection_->Shutdown();
  }
}

absl::StatusOr<std::shared_ptr<SessionImpl>> SessionImpl::Open(ConnectionOptions options, double stall_timeout_s) {
  const auto end = [](SessionImpl* ended) {
    if (ended->connection_ == nullptr || !ended->connection_->IsOwnThread()) {
      delete ended;
    } else {
      EndElsewhere([ended] { delete ended; });
    }
  };
  std::shared_ptr<SessionImpl> session(new SessionImpl(stall_timeout_s), end);
  session->address_ = ToText(options.address);
  TESSERA_ASSIGN_OR_RETURN(session->connection_, Connection::Open(std::move(options), session.get()));
  // Requests and handles of a former connection keep their numbers: a record has one request, and a handle for each of
  // its results.
  session->next_request_ = session->welcome().last_batch * kMaxBatchRecords + 1;
  session->first_request_ = session->next_request_.load();
  session->next_handle_ = session->welcome().last_batch * kMaxBatchRecords * kMaxOperands + 1;
  session->Log(ClientLogLevel::kInfo, StrCat("connected to ", session->address_));
  return session;
}

absl::Status SessionImpl::Check() {
  if (fork_generation_ != fork_generation) {
    return absl::FailedPreconditionError(
        "session: this process is a fork of the one that connected; connect again here");
  }
  if (!failed_) return absl::OkStatus();
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void CurrentSpec::MoveFrom(absl::Span<const WorkerIndex> lost, SpecCache& specs) {
  if (lost.empty()) return;
  TensorSpec moved = *first_;
  for (const WorkerIndex worker : lost) {
    if (moved.mesh.FindWorker(worker).has_value()) lost_.push_back(worker);
  }
  if (lost_.empty()) return;
  const std::optional<Mesh> living = LivingMesh(
      moved, [this](WorkerIndex worker) { return std::find(lost_.begin(), lost_.end(), worker) != lost_.end(); });
  if (!living.has_value() || *living == get()->mesh) return;
  moved.mesh = *living;
  owned_ = std::make_unique<Replacement>(Replacement{specs.Intern(moved), std::move(owned_)});
  latest_.store(owned_.get(), std::memory_order_release);
}

// ---- handles and records ------------------------------------------------------------------------

HandlePtr SessionImpl::NewHandle(SpecPtr spec, uint64_t id, Keeper keeper) {
  std::lock_guard<std::mutex> lock(mutex_);
  return HandleOf(std::move(spec), id, keeper);
}

HandlePtr SessionImpl::HandleOf(SpecPtr spec, uint64_t id, Keeper keeper) {
  auto handle = std::make_shared<HandleState>();
  handle->keeper = keeper;
  handle->id = id;
  handle->spec = std::move(spec);
  handle->session = shared_from_this();
  handle->request = ThreadRequestNumber();
  live_.emplace(id, handle.get());
  handle->spec.MoveFrom(lost_numbers_, calls_->specs());
  return handle;
}

HandlePtr SessionImpl::PlannedHandle(SpecPtr spec, Strides strides, std::shared_ptr<const HeldMemory> memory) {
  auto handle = std::make_shared<HandleState>();
  handle->spec = std::move(spec);
  handle->session = shared_from_this();
  handle->planned =
      std::make_unique<const HandleState::Planned>(HandleState::Planned{std::move(strides), std::move(memory)});
  return handle;
}

void SessionImpl::LetGo(HandleState& handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  handle.keeper = Keeper::kHandle;
}

bool SessionImpl::MayDonate(const HandlePtr& handle) {
  std::lock_guard<std::mutex> lock(mutex_);
  // Where calls wait, one that fails leaves its operands as they were.
  return handle.use_count() == 1 && handle->keeper == Keeper::kHandle && !Blocking::IsOn();
}

HandlePtr SessionImpl::FindLive(uint64_t id) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = live_.find(id);
  return it == live_.end() ? nullptr : it->second->weak_from_this().lock();
}

void SessionImpl::Release(HandleState& handle) {
  if (fork_generation_ != fork_generation) return;
  if (!handle.spec_known) return calls_->deferred().Forget(handle);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    live_.erase(handle.id);
    if (handle.keeper == Keeper::kSession) return;
  }
  if (Recording* recording = Recording::Current()) recording->AddDrop(*this, handle.id);
  if (!failed_) connection_->EnqueueDrop(handle.id);
}

std::pair<uint64_t, SessionImpl::RequestPtr> SessionImpl::NewRequest() {
  const uint64_t number = next_request_++;
  auto request = std::make_shared<Request>();
  std::lock_guard<std::mutex> lock(mutex_);
  if (failure_.ok()) {
    requests_.emplace(number, request);
  } else {
    request->done = true;
    request->status = failure_;
  }
  return {number, request};
}

absl::Status SessionImpl::Enqueue(Record record) {
  TESSERA_RETURN_IF_ERROR(AwaitRoom());
  Push(std::move(record));
  return absl::OkStatus();
}

void SessionImpl::Push(Record record) {
  if (connection_->Enqueue(std::move(record)) >= kMaxQueuedRecords) queue_is_full_ = true;
}

absl::Status SessionImpl::AwaitRoom() {
  if (!queue_is_full_) return absl::OkStatus();
  ++queue_waiters_;
  absl::Status status = WaitUntil("the queue to the coordinator", std::nullopt,
                                  [this] { return connection_->queued() < kMaxQueuedRecords / 2; });
  --queue_waiters_;
  if (status.ok()) queue_is_full_ = false;
  return status;
}

void SessionImpl::CancelRequest(uint64_t request) {
  Record record;
  record.kind = Record::Kind::kCancel;
  record.request = request;
  connection_->Enqueue(std::move(record));
  connection_->Flush();
}

void SessionImpl::EndRequest(uint64_t number, const RequestPtr& request, absl::Status reason) {
  bool ticketed = false, done = false;
  uint64_t ticket = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ticketed = request->ticketed;
    ticket = request->ticket;
    done = request->done;
    requests_.erase(number);
  }
  if (ticketed) {
    ReleaseTicket(ticket, std::move(reason));
  } else if (!done) {
    CancelRequest(number);
  }
}

void SessionImpl::CancelAll() {
  HandleSet needed;
  uint64_t last_number = 0;
  {
    // Under the mutex no result of a deferred call gets a number.
    std::lock_guard<std::mutex> lock(mutex_);
    last_number = connection_->last_number();
    for (const auto& [id, handle] : live_) {
      if (!handle->settled && handle->on_cancel != OnCancel::kEnds) needed.insert(id);
    }
  }
  calls_->deferred().CancelUnneeded(
      absl::CancelledError("cancelled by the client before its shape was known"),
      [](const HandleState& handle) { return handle.on_cancel != OnCancel::kEnds; }, needed);
  connection_->CancelAll(last_number, std::move(needed));
}

// Other requests want all that they hold, and every tensor that has a name.
void SessionImpl::CancelCallsOf(uint64_t request, const absl::Status& why) {
  const auto runs_on = [request](const HandleState& handle) {
    return handle.request != request || handle.on_cancel != OnCancel::kEnds;
  };
  HandleSet needed;
  uint64_t last_number = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    last_number = connection_->last_number();
    for (const auto& [id, handle] : live_) {
      if (!handle->settled && runs_on(*handle)) needed.insert(id);
    }
    for (const auto& [name, id] : names_) needed.insert(id);
  }
  if (!Check().ok()) return NotifyChanged();
  calls_->deferred().CancelUnneeded(why, runs_on, needed);
  connection_->CancelAll(last_number, std::move(needed));
  NotifyChanged();
}

void SessionImpl::ReleaseTicket(uint64_t ticket, absl::Status reason) {
  Record record;
  record.kind = Record::Kind::kRelease;
  record.request = ticket;
  record.reason = std::move(reason);
  connection_->SendAhead(std::move(record));
}

absl::Status SessionImpl::WaitForAll(absl::Span<const HandlePtr> results) {
  if (Recording::Current() != nullptr || PlanCapture::Current() != nullptr) return absl::OkStatus();
  for (const HandlePtr& result : results) TESSERA_RETURN_IF_ERROR(Wait(*result, std::nullopt));
  return absl::OkStatus();
}

absl::Status SessionImpl::AtItsSite(const absl::Status& status) const {
  const std::optional<uint64_t> call = CallOf(status);
  if (!call.has_value()) return status;
  const CallSite* const site = FindSite(sites_.Find(*call));
  return site == nullptr ? WithoutCall(status) : AtSite(*site, WithoutCall(status));
}

}  // namespace tessera
