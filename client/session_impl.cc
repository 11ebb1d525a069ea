#include "client/session_impl.h"

#include <pthread.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "client/deferred_calls.h"
#include "client/recording.h"
#include "client/request_state.h"
#include "client/session_request.h"
#include "client/wait.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/resolve.h"
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
      deferred_(std::make_unique<DeferredCalls>(*this)) {}

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
  handle->spec.MoveFrom(lost_numbers_, specs_);
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
  if (!handle.spec_known) return deferred_->Forget(handle);
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
  deferred_->CancelUnneeded(
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
  deferred_->CancelUnneeded(why, runs_on, needed);
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

// ---- ops ----------------------------------------------------------------------------------------

namespace {

std::string MoveText(const SpecEntry& entry) {
  std::string text = ToText(*entry.call);
  for (const ImplicitMove& move : entry.implicit) {
    StrAppend(&text, ": operand ", move.operand, " ", ToText(move.source), " is redistributed to ",
              ToText(move.destination.placements), ", at least ", move.bytes, " bytes");
  }
  const ImplicitMove& first = entry.implicit.front();
  StrAppend(&text, "; write x.redistribute(placements=", ToText(first.destination.placements), ") for it");
  return text;
}

absl::Status OneIsTaken(const OpCall& call, size_t results) {
  return absl::InvalidArgumentError(StrCat(ToText(call), ": one result is taken where it has ", results));
}

bool HasPendingSpec(absl::Span<const CallOperand> operands) {
  return std::any_of(operands.begin(), operands.end(), [](const CallOperand& operand) {
    return operand.tensor != nullptr && !(*operand.tensor)->spec_known;
  });
}

using SpecOperands = absl::InlinedVector<SpecOperand, kInlineOperands>;

absl::Status FillOperands(SessionImpl* session, OpId op, absl::Span<const CallOperand> operands, SpecOperands* specs,
                          std::vector<RecordOperand>* out) {
  if (operands.size() > kMaxOperands) {
    return absl::InvalidArgumentError(
        StrCat(NameOf(op), ": takes at most ", kMaxOperands, " operands, not ", operands.size()));
  }
  out->reserve(operands.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    const CallOperand& operand = operands[i];
    if (operand.tensor == nullptr) {
      specs->push_back({nullptr, operand.scalar});
      out->push_back({RecordOperand::Kind::kScalar, false, 0, operand.scalar});
      continue;
    }
    const HandleState& handle = **operand.tensor;
    if (handle.session.get() != session) {
      return absl::InvalidArgumentError(StrCat(NameOf(op), ": operand ", i, ", ", handle.SpecText(),
                                               ", is of another session; fetch it there and distribute it here"));
    }
    if (handle.planned != nullptr && PlanCapture::Current() == nullptr) return NeverRuns(handle);
    specs->push_back({&handle.KnownOrStandIn(), Scalar()});
    out->push_back({RecordOperand::Kind::kHandle, operand.last_use, handle.id, Scalar()});
  }
  TESSERA_ASSIGN_OR_RETURN(const OpRow* row, FindOp(op));
  if (row->dtype_rule != DTypeRule::kBool || operands.size() != 2) return absl::OkStatus();
  for (const size_t i : {0, 1}) {
    SpecOperand& number = (*specs)[i];
    const SpecOperand& other = (*specs)[1 - i];
    if (number.spec != nullptr || other.spec == nullptr) continue;
    number.scalar = AsCompared(number.scalar, (*other.spec)->dtype);
    (*out)[i].scalar = number.scalar;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> SessionImpl::ImplicitText(const SpecEntry& entry, ImplicitPolicy policy) {
  if (policy == ImplicitPolicy::kForbid) {
    return absl::FailedPreconditionError(
        StrCat(NameOf(entry.call->op, ThreadSpeaker()), ": implicit redistribution is forbidden: ", MoveText(entry)));
  }
  if (policy != ImplicitPolicy::kWarn && entry.implicit_bytes <= kWarnImplicitBytes) return "";
  return StrCat(ThreadSpeaker() == Speaker::kOp ? "" : StrCat(NameOf(ThreadSpeaker()), ": "), MoveText(entry));
}

absl::Status SessionImpl::CheckImplicit(const SpecEntry& entry) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text,
                           ImplicitText(entry, ThreadImplicitPolicy().value_or(implicit_policy_.load())));
  if (!text.empty()) TellImplicit(text);
  if (!text.empty()) Log(ClientLogLevel::kWarning, text);
  return absl::OkStatus();
}

absl::StatusOr<SessionImpl::Resolved> SessionImpl::Resolve(const CallCompletion& complete,
                                                           absl::Span<const CallOperand> operands,
                                                           absl::Span<const SpecPtr> specs) {
  Resolved out;
  TESSERA_ASSIGN_OR_RETURN(out.call, complete(specs));
  out.record.speaker = ThreadSpeaker();
  SpecOperands listed;
  TESSERA_RETURN_IF_ERROR(FillOperands(this, out.call.op, operands, &listed, &out.record.operands));
  for (size_t i = 0; i < listed.size(); ++i) {
    if (specs[i] != nullptr) listed[i].spec = &specs[i];
  }
  TESSERA_ASSIGN_OR_RETURN(out.entry, specs_.Resolve(out.call, listed));
  out.record.call = out.call.scalars.empty() ? out.entry->call : std::make_shared<const OpCall>(out.call);
  return out;
}

OnCancel SessionImpl::SpreadTo(absl::Span<const CallOperand> operands) {
  const bool spreads = std::any_of(operands.begin(), operands.end(), [](const CallOperand& operand) {
    return operand.tensor != nullptr && (*operand.tensor)->on_cancel == OnCancel::kSpreads;
  });
  return spreads ? OnCancel::kSpreads : OnCancel::kEnds;
}

absl::StatusOr<HandlePtr> SessionImpl::Call(const OpCall& call, absl::Span<const CallOperand> operands) {
  TESSERA_ASSIGN_OR_RETURN(Results results, Submit(call, operands, ResultCount::kOne));
  return std::move(results[0]);
}

absl::StatusOr<SessionImpl::Results> SessionImpl::CallAll(const OpCall& call, absl::Span<const CallOperand> operands) {
  return Submit(call, operands, ResultCount::kAny);
}

absl::StatusOr<SessionImpl::Results> SessionImpl::Submit(const OpCall& call, absl::Span<const CallOperand> operands,
                                                         ResultCount wanted) {
  absl::StatusOr<Results> results = Take(call, operands, wanted);
  if (!results.ok()) {
    const absl::Status why = WhyRefused(results.status(), operands);
    const CallSite* const site = FindSite(SiteOfCall());
    return site == nullptr ? why : InWordsOf(*site, why);
  }
  if (Blocking::IsOn()) TESSERA_RETURN_IF_ERROR(WaitForAll(*results));
  return results;
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

absl::StatusOr<SessionImpl::Results> SessionImpl::Take(const OpCall& call, absl::Span<const CallOperand> operands,
                                                       ResultCount wanted) {
  TESSERA_RETURN_IF_ERROR(Check());
  TESSERA_RETURN_IF_ERROR(CheckThreadRequest(NameOf(call.op)));
  TESSERA_RETURN_IF_ERROR(AwaitRoom());
  counters().calls.Add(1);
  if (HasPendingSpec(operands)) {
    TESSERA_ASSIGN_OR_RETURN(std::optional<Results> deferred,
                             Defer([call](absl::Span<const SpecPtr>) { return call; }, operands));
    if (deferred.has_value() && wanted == ResultCount::kOne && deferred->size() != 1) {
      return OneIsTaken(call, deferred->size());
    }
    if (deferred.has_value()) return *std::move(deferred);
  }
  Record record;
  record.speaker = ThreadSpeaker();
  SpecOperands specs;
  TESSERA_RETURN_IF_ERROR(FillOperands(this, call.op, operands, &specs, &record.operands));
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const SpecEntry> entry, specs_.Resolve(call, specs));
  if (wanted == ResultCount::kOne && entry->outputs.size() != 1) {
    return OneIsTaken(call, entry->outputs.size());
  }
  if (PlanCapture* capture = PlanCapture::Current()) return PlanFor(*capture, call, operands, *entry);
  if (!entry->implicit.empty() || entry->takes_values) {
    TESSERA_ASSIGN_OR_RETURN(const Results reduced, ReduceOnce(call, *entry, specs, operands));
    if (!reduced.empty()) {
      absl::InlinedVector<CallOperand, kInlineOperands> others(operands.begin(), operands.end());
      for (size_t i = 0; i < reduced.size(); ++i) {
        if (reduced[i] != nullptr) others[i].tensor = &reduced[i];
      }
      return Take(call, others, wanted);
    }
  }
  if (!entry->implicit.empty()) TESSERA_RETURN_IF_ERROR(CheckImplicit(*entry));
  if (call.scalars.empty()) {
    record.call = entry->call;
  } else {
    record.call = std::make_shared<const OpCall>(call);
  }
  Results results;
  const OnCancel on_cancel = SpreadTo(operands);
  for (const SpecPtr& output : entry->outputs) {
    results.push_back(NewHandle(output, next_handle_++));
    results.back()->on_cancel = on_cancel;
    if (results.size() == 1) {
      record.handle = results[0]->id;
    } else {
      record.more_results.push_back(results.back()->id);
    }
  }
  if (Recording* recording = Recording::Current()) {
    TESSERA_RETURN_IF_ERROR(recording->Add(*this, record, specs, entry->outputs));
  }
  sites_.Note(record.handle, SiteOfCall());
  Push(std::move(record));
  return results;
}

absl::StatusOr<SessionImpl::Results> SessionImpl::PlanFor(PlanCapture& capture, const OpCall& call,
                                                          absl::Span<const CallOperand> operands,
                                                          const SpecEntry& entry) {
  TESSERA_ASSIGN_OR_RETURN(PlanReport plan, Explain(call, operands));
  if (plan.outputs.size() != entry.outputs.size()) {
    return absl::InternalError(
        StrCat("explain: ", plan.outputs.size(), " outputs were planned, ", entry.outputs.size(), " are known"));
  }
  Results results;
  for (size_t i = 0; i < entry.outputs.size(); ++i) {
    results.push_back(PlannedHandle(entry.outputs[i], plan.output_strides[i], MemoryOf(capture, plan, i, operands)));
  }
  capture.Add(std::move(plan));
  return results;
}

// The memory of a planned result: its own, or that of the operand in which it lies.
std::shared_ptr<const HeldMemory> SessionImpl::MemoryOf(PlanCapture& capture, const PlanReport& plan, size_t output,
                                                        absl::Span<const CallOperand> operands) {
  if (plan.output_operands[output] < 0) return capture.Hold({plan.outputs[output].mesh, plan.output_bytes[output]});
  int number = plan.output_operands[output];
  for (const CallOperand& operand : operands) {
    if (operand.tensor == nullptr || number-- > 0) continue;
    const HandleState& handle = **operand.tensor;
    return handle.planned == nullptr ? nullptr : handle.planned->memory;
  }
  return nullptr;
}

absl::StatusOr<PlanReport> SessionImpl::Explain(const OpCall& call, absl::Span<const CallOperand> operands) {
  TESSERA_RETURN_IF_ERROR(Check());
  TESSERA_RETURN_IF_ERROR(AwaitSpecs(operands));
  SpecOperands specs;
  std::vector<RecordOperand> named;
  TESSERA_RETURN_IF_ERROR(FillOperands(this, call.op, operands, &specs, &named));
  std::vector<ExplainOperand> list(named.size());
  for (size_t i = 0; i < named.size(); ++i) {
    list[i].operand = named[i];
    if (operands[i].tensor == nullptr || (*operands[i].tensor)->planned == nullptr) continue;
    list[i].spec = (*operands[i].tensor)->spec;
    list[i].strides = (*operands[i].tensor)->planned->strides;
  }
  TESSERA_RETURN_IF_ERROR(specs_.Resolve(call, specs).status());
  TESSERA_RETURN_IF_ERROR(AwaitTakenUp());
  auto [number, request] = NewRequest();
  const PlanCapture* const capture = PlanCapture::Current();
  std::vector<HeldMemory> held = capture == nullptr ? std::vector<HeldMemory>() : capture->Held();
  connection_->Explain(call, std::move(list), std::move(held),
                       [this, n = number, r = request](absl::StatusOr<PlanReport> plan) {
                         {
                           std::lock_guard<std::mutex> lock(mutex_);
                           r->done = true;
                           r->status = plan.status();
                           if (plan.ok()) r->plan = *std::move(plan);
                           requests_.erase(n);
                         }
                         NotifyChanged();
                       });
  TESSERA_RETURN_IF_ERROR(WaitFor("explain", request));
  return request->plan;
}

}  // namespace tessera
