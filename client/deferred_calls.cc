#include "client/deferred_calls.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/recording.h"
#include "client/request_state.h"
#include "client/session_request.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// The stand-in of a spec, which broadcasts with any.
TensorSpec OnesOf(const TensorSpec& spec) {
  TensorSpec ones = spec;
  std::fill(ones.shape.begin(), ones.shape.end(), 1);
  DropIdleSizes(ones);
  return ones;
}

// The stand-in with 0 where the extent isn't known.
TensorSpec LeastOf(const HandleState::Deferred& deferred) {
  TensorSpec least = *deferred.stand_in;
  for (size_t d = 0; d < least.shape.size(); ++d) {
    if ((deferred.fixed_dims >> d & 1) == 0) least.shape[d] = 0;
  }
  DropIdleSizes(least);
  return least;
}

// A slice's extents don't grow with its operand's (x[-3:2] of 2 elements has 2, of 5 none): of its dims those are fixed
// that are so in the operand, or new.
uint32_t FixedDimsOfSlice(absl::Span<const IndexItem> index, uint32_t of_operand) {
  uint32_t fixed = 0;
  int from = 0;
  int to = 0;
  for (const IndexItem& item : index) {
    const bool is_new = item.kind == IndexItem::Kind::kNewAxis;
    if (item.kind != IndexItem::Kind::kInteger) {
      fixed |= (is_new ? 1u : of_operand >> from & 1u) << to++;
    }
    if (!is_new) ++from;
  }
  return fixed;
}

// Whether no slice can have more than of the greatest operand: of an extent that isn't known it takes all of it.
bool IsBoundOfSlice(absl::Span<const IndexItem> index, const Shape& greatest, uint32_t fixed) {
  size_t from = 0;
  for (const IndexItem& item : index) {
    if (item.kind == IndexItem::Kind::kNewAxis) continue;
    const bool is_known = (fixed >> from & 1) != 0;
    if (item.kind == IndexItem::Kind::kSlice && !is_known && item.size != greatest[from]) return false;
    ++from;
  }
  return true;
}

bool IsBound(const HandleState& handle) { return handle.spec_known || handle.deferred->is_bound; }
uint32_t FixedDimsOf(const HandleState& handle) {
  return handle.spec_known ? ~uint32_t{0} : handle.deferred->fixed_dims;
}

bool HasMesh(const HandleState& handle) { return handle.spec_known || handle.deferred->has_mesh; }

// Whether the output's mesh is that of the stand-in, whatever the specs will be.
bool KeepsMesh(const OpCall& call, absl::Span<const CallOperand> operands, const TensorSpec& output) {
  if (call.attributes.Get(attribute::relabel)) return false;
  if (call.attributes.Get(attribute::mesh) != nullptr) return *call.attributes.Get(attribute::mesh) == output.mesh;
  return std::all_of(operands.begin(), operands.end(), [&](const CallOperand& operand) {
    return operand.tensor == nullptr ||
           (HasMesh(**operand.tensor) && (*operand.tensor)->KnownOrStandIn()->mesh == output.mesh);
  });
}

}  // namespace

HandlePtr DeferredCalls::NewHandle(HandleState::Deferred deferred) {
  auto handle = std::make_shared<HandleState>();
  handle->deferred = std::make_unique<const HandleState::Deferred>(std::move(deferred));
  handle->spec_known = false;
  handle->session = session_.shared_from_this();
  handle->request = ThreadRequestNumber();
  std::lock_guard<std::mutex> lock(session_.mutex_);
  unsent_.insert(handle.get());
  return handle;
}

void DeferredCalls::Insert(uint64_t number, Call call) {
  calls_.emplace(number, std::move(call));
  size_ = calls_.size();
}

absl::Status DeferredCalls::AwaitRoom() {
  if (size_ < kMaxDeferredCalls) return absl::OkStatus();
  return session_.WaitUntil("the calls that wait for a spec (max_deferred_calls)", std::nullopt,
                            [this] { return calls_.size() < kMaxDeferredCalls / 2; });
}

std::optional<std::vector<uint32_t>> DeferredCalls::FixedDims(const CallCompletion& complete,
                                                              absl::Span<const CallOperand> operands,
                                                              absl::Span<const SpecPtr> greatest_outputs) {
  std::vector<SpecPtr> least;
  for (const CallOperand& operand : operands) {
    if (operand.tensor == nullptr) {
      least.push_back(nullptr);
      continue;
    }
    const HandleState& handle = **operand.tensor;
    if (!IsBound(handle)) return std::nullopt;
    least.push_back(handle.spec_known ? handle.spec : session_.calls_->specs_.Intern(LeastOf(*handle.deferred)));
  }
  const absl::StatusOr<SessionCalls::Resolved> resolved = session_.calls_->Resolve(complete, operands, least);
  if (!resolved.ok() || resolved->entry->outputs.size() != greatest_outputs.size()) return std::nullopt;
  std::vector<uint32_t> fixed;
  for (size_t i = 0; i < greatest_outputs.size(); ++i) {
    const Shape& a = resolved->entry->outputs[i]->shape;
    const Shape& b = greatest_outputs[i]->shape;
    uint32_t dims = 0;
    for (size_t d = 0; d < std::min(a.size(), b.size()); ++d) dims |= static_cast<uint32_t>(a[d] == b[d]) << d;
    fixed.push_back(dims);
  }
  if (resolved->call.op == OpId::kSlice) {
    fixed[0] &= FixedDimsOfSlice(resolved->call.attributes.Get(attribute::index), FixedDimsOf(**operands[0].tensor));
  }
  return fixed;
}

absl::StatusOr<std::optional<DeferredCalls::Results>> DeferredCalls::Add(const CallCompletion& complete,
                                                                         absl::Span<const CallOperand> operands) {
  TESSERA_RETURN_IF_ERROR(AwaitRoom());
  // Stand-ins: as large as they may be, else of one element.
  std::vector<SpecPtr> specs;
  for (const CallOperand& operand : operands) {
    specs.push_back(operand.tensor == nullptr ? nullptr : (*operand.tensor)->KnownOrStandIn());
  }
  absl::StatusOr<SessionCalls::Resolved> resolved = session_.calls_->Resolve(complete, operands, specs);
  const bool is_bound = resolved.ok() && std::all_of(operands.begin(), operands.end(), [](const CallOperand& operand) {
                          return operand.tensor == nullptr || IsBound(**operand.tensor);
                        });
  if (!resolved.ok()) {
    for (size_t i = 0; i < operands.size(); ++i) {
      const bool is_pending = specs[i] != nullptr && !(*operands[i].tensor)->spec_known;
      if (is_pending) specs[i] = session_.calls_->specs_.Intern(OnesOf(*specs[i]));
    }
    resolved = session_.calls_->Resolve(complete, operands, specs);
  }
  std::optional<std::vector<uint32_t>> fixed;
  if (is_bound) fixed = FixedDims(complete, operands, resolved->entry->outputs);
  // How many results unstack has is an extent.
  if (!resolved.ok() || (resolved->call.op == OpId::kUnstack && !fixed.has_value())) {
    TESSERA_RETURN_IF_ERROR(session_.calls_->AwaitSpecs(operands));
    return std::nullopt;
  }
  const auto& outputs = resolved->entry->outputs;
  bool keeps_bound = is_bound;
  if (is_bound && resolved->call.op == OpId::kSlice) {
    keeps_bound = IsBoundOfSlice(resolved->call.attributes.Get(attribute::index), specs[0]->shape,
                                 FixedDimsOf(**operands[0].tensor));
  }
  const uint64_t number = next_call_++;
  Call call;
  call.complete = complete;
  call.called_as = ThreadCalledAs();
  call.site = SiteOfCall();
  call.policy = ThreadImplicitPolicy().value_or(session_.calls_->implicit_policy());
  for (const CallOperand& operand : operands) {
    call.operands.push_back({operand.tensor == nullptr ? nullptr : *operand.tensor, operand.scalar, operand.last_use});
  }
  Results results;
  const OnCancel on_cancel = SessionCalls::SpreadTo(operands);
  for (size_t i = 0; i < outputs.size(); ++i) {
    results.push_back(NewHandle({outputs[i], KeepsMesh(resolved->call, operands, *outputs[i]), number, keeps_bound,
                                 fixed.has_value() ? (*fixed)[i] : 0}));
    results.back()->on_cancel = on_cancel;
    call.results.push_back(results.back());
  }
  bool is_pending = false;
  absl::Status failure;
  {
    std::lock_guard<std::mutex> lock(session_.mutex_);
    failure = session_.failure_;
    for (const Operand& operand : call.operands) {
      if (operand.tensor == nullptr || operand.tensor->spec_known) continue;
      is_pending = true;
      if (failure.ok()) failure = operand.tensor->failure;
    }
    if (is_pending && failure.ok()) Insert(number, std::move(call));
    for (const HandlePtr& result : results) {
      result->failure = failure;
      result->settled = !failure.ok();
    }
  }
  if (!is_pending) return std::nullopt;
  return std::optional<Results>(std::move(results));
}

Record DeferredCalls::Ask(Count& count) {
  const uint64_t number = session_.next_request_++;
  count.request = std::make_shared<SessionImpl::Request>();
  session_.requests_.emplace(number, count.request);
  Record record;
  record.kind = Record::Kind::kDownload;
  record.request = number;
  record.handle = count.tensor->id;
  record.allow_inline = true;
  return record;
}

absl::StatusOr<HandlePtr> DeferredCalls::NewCounted(const CountedCall& counted, uint64_t number) {
  absl::InlinedVector<CallOperand, kInlineOperands> operands;
  std::vector<SpecPtr> specs;
  for (const HandlePtr& operand : counted.operands) {
    operands.push_back({&operand, Scalar(), false});
    specs.push_back(operand->KnownOrStandIn());
  }
  const CallCompletion greatest = [&](absl::Span<const SpecPtr> of) { return counted.complete(of, {}); };
  absl::StatusOr<SessionCalls::Resolved> resolved = session_.calls_->Resolve(greatest, operands, specs);
  const bool is_bound = resolved.ok() && std::all_of(counted.operands.begin(), counted.operands.end(),
                                                     [](const HandlePtr& operand) { return IsBound(*operand); });
  if (!resolved.ok()) {
    for (size_t i = 0; i < specs.size(); ++i) {
      if (!counted.operands[i]->spec_known) specs[i] = session_.calls_->specs_.Intern(OnesOf(*specs[i]));
    }
    resolved = session_.calls_->Resolve(greatest, operands, specs);
  }
  if (!resolved.ok()) {
    TESSERA_RETURN_IF_ERROR(session_.calls_->AwaitSpecs(operands));
    for (size_t i = 0; i < specs.size(); ++i) specs[i] = counted.operands[i]->spec;
    resolved = session_.calls_->Resolve(greatest, operands, specs);
  }
  TESSERA_RETURN_IF_ERROR(resolved.status());
  const HandleState& first = *counted.operands[0];
  const uint32_t fixed = FixedDimsOf(first) & ~(uint32_t{1} << counted.dim);
  HandlePtr result = NewHandle({resolved->entry->outputs[0], HasMesh(first), number, is_bound, is_bound ? fixed : 0});
  result->on_cancel = SessionCalls::SpreadTo(operands);
  return result;
}

absl::StatusOr<std::vector<HandlePtr>> DeferredCalls::AddCounted(std::string_view what,
                                                                 absl::Span<const CountedCall> counted,
                                                                 const HandlePtr& counts) {
  TESSERA_RETURN_IF_ERROR(session_.AwaitRoom());
  TESSERA_RETURN_IF_ERROR(AwaitRoom());
  auto wanted = std::make_shared<Count>(Count{counts, std::string(what), nullptr});
  const OnCancel by_counts = SessionCalls::SpreadTo({{&counts, Scalar(), false}});
  std::vector<std::pair<uint64_t, Call>> calls;
  std::vector<HandlePtr> results;
  for (const CountedCall& one : counted) {
    const uint64_t number = next_call_++;
    TESSERA_ASSIGN_OR_RETURN(HandlePtr result, NewCounted(one, number));
    result->RaiseOnCancel(by_counts);
    Call call;
    call.complete_counted = one.complete;
    call.count = wanted;
    call.called_as = ThreadCalledAs();
    call.site = SiteOfCall();
    call.policy = ThreadImplicitPolicy().value_or(session_.calls_->implicit_policy());
    for (const HandlePtr& operand : one.operands) call.operands.push_back({operand, Scalar(), false});
    call.results.push_back(result);
    results.push_back(std::move(result));
    calls.emplace_back(number, std::move(call));
  }
  std::optional<Record> asked;
  {
    std::lock_guard<std::mutex> lock(session_.mutex_);
    if (!session_.failure_.ok()) return session_.failure_;
    absl::Status failure;
    if (!counts->spec_known) failure = counts->failure;
    if (failure.ok() && counts->spec_known) asked = Ask(*wanted);
    if (failure.ok()) {
      for (auto& [number, call] : calls) Insert(number, std::move(call));
    } else {
      for (const HandlePtr& result : results) {
        result->failure = failure;
        result->settled = true;
      }
    }
  }
  if (asked.has_value()) session_.Push(*std::move(asked));
  return results;
}

std::optional<DeferredCalls::Ready> DeferredCalls::TakeReady(std::vector<Record>* asked) {
  std::lock_guard<std::mutex> lock(session_.mutex_);
  for (auto it = calls_.begin(); it != calls_.end(); ++it) {
    Call& call = it->second;
    bool waits = false;
    absl::Status failure;
    const auto look_at = [&](const HandleState& handle) {
      if (handle.spec_known) return;
      waits = true;
      if (failure.ok()) failure = handle.failure;
    };
    for (const Operand& operand : call.operands) {
      if (operand.tensor != nullptr) look_at(*operand.tensor);
    }
    if (call.count != nullptr) {
      look_at(*call.count->tensor);
      if (call.count->tensor->spec_known && call.count->request == nullptr) asked->push_back(Ask(*call.count));
      const SessionImpl::Request* request = call.count->request.get();
      waits = waits || request == nullptr || !request->done;
      if (failure.ok() && request != nullptr && request->done) failure = request->status;
    }
    if (waits && failure.ok()) continue;
    Ready ready{std::move(call), std::move(failure)};
    calls_.erase(it);
    size_ = calls_.size();
    return ready;
  }
  return std::nullopt;
}

void DeferredCalls::Advance() {
  if (size_ == 0) return;
  for (;;) {
    std::vector<Record> asked;
    std::optional<Ready> ready = TakeReady(&asked);
    for (Record& record : asked) session_.connection_->Enqueue(std::move(record));
    if (!ready.has_value()) break;
    Run(*std::move(ready));
  }
  session_.NotifyChanged();
}

void DeferredCalls::Run(Ready ready) {
  std::vector<HandlePtr> results;
  for (const std::weak_ptr<HandleState>& result : ready.call.results) results.push_back(result.lock());
  if (ready.status.ok()) {
    ready.status = Send(ready.call, results);
    const CallSite* const site = ready.status.ok() ? nullptr : FindSite(ready.call.site);
    if (site != nullptr) ready.status = AtSite(*site, ready.status);
  }
  if (ready.status.ok()) return;
  std::lock_guard<std::mutex> lock(session_.mutex_);
  for (const HandlePtr& result : results) {
    if (result == nullptr) continue;
    result->failure = ready.status;
    session_.Settle(*result);
  }
}

absl::StatusOr<std::vector<int64_t>> DeferredCalls::ValuesOf(const Count& count) {
  const std::string& bytes = count.request->bytes;
  const int64_t wanted = NumElements(count.tensor->spec->shape);
  if (count.tensor->spec->dtype != DType::kI64 || bytes.size() != static_cast<size_t>(wanted) * sizeof(int64_t)) {
    return absl::InternalError(
        StrCat(count.what, ": the counts ", count.tensor->SpecText(), " came as ", bytes.size(), " bytes"));
  }
  std::vector<int64_t> values(static_cast<size_t>(wanted));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

absl::Status DeferredCalls::Send(const Call& call, const std::vector<HandlePtr>& results) {
  const CalledAsScope scope(call.called_as);
  absl::InlinedVector<CallOperand, kInlineOperands> operands;
  std::vector<SpecPtr> specs;
  for (const Operand& operand : call.operands) {
    operands.push_back({operand.tensor == nullptr ? nullptr : &operand.tensor, operand.scalar, operand.last_use});
    specs.push_back(operand.tensor == nullptr ? nullptr : operand.tensor->spec.get());
  }
  CallCompletion complete = call.complete;
  if (call.count != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<int64_t> counts, ValuesOf(*call.count));
    complete = [counts, &call](absl::Span<const SpecPtr> of) { return call.complete_counted(of, counts); };
  }
  TESSERA_ASSIGN_OR_RETURN(SessionCalls::Resolved resolved, session_.calls_->Resolve(complete, operands, specs));
  const SpecEntry& entry = *resolved.entry;
  if (entry.outputs.size() != results.size()) {
    return absl::InternalError(StrCat(ToText(resolved.call), ": ", entry.outputs.size(), " results where ",
                                      results.size(), " were expected before the specs were known"));
  }
  if (!entry.implicit.empty()) {
    TESSERA_ASSIGN_OR_RETURN(std::string moved, SessionCalls::ImplicitText(entry, call.policy));
    std::lock_guard<std::mutex> lock(session_.mutex_);
    if (!moved.empty()) implicit_.push_back(std::move(moved));
    has_implicit_ = !implicit_.empty();
  }
  std::vector<uint64_t> ids;
  for (size_t i = 0; i < results.size(); ++i) ids.push_back(session_.next_handle_++);
  Record& record = resolved.record;
  record.handle = ids.empty() ? 0 : ids[0];
  if (ids.size() > 1) record.more_results.assign(ids.begin() + 1, ids.end());
  session_.sites_.Note(record.handle, call.site);
  std::vector<HandlePtr> awaited;
  {
    std::lock_guard<std::mutex> lock(session_.mutex_);
    // It is queued before anybody can name its results.
    session_.connection_->Enqueue(std::move(record));
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i] == nullptr) continue;
      results[i]->spec = entry.outputs[i];
      results[i]->id = ids[i];
      session_.live_.emplace(ids[i], results[i].get());
      results[i]->spec.MoveFrom(session_.lost_numbers_, session_.calls_->specs_);
      unsent_.erase(results[i].get());
      results[i]->spec_known = true;
      if (!results[i]->on_settled.empty()) awaited.push_back(results[i]);
    }
  }
  for (const HandlePtr& result : awaited) session_.EnsureWatched(*result);
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i] == nullptr) session_.connection_->EnqueueDrop(ids[i]);
  }
  return absl::OkStatus();
}

// With the mutex held; the results' last references may be those in the list, which goes without it.
void DeferredCalls::Fail(const Call& call, const absl::Status& why, std::vector<HandlePtr>& results) {
  for (const std::weak_ptr<HandleState>& result : call.results) {
    HandlePtr handle = result.lock();
    if (handle == nullptr) continue;
    handle->failure = why;
    session_.Settle(*handle);
    results.push_back(std::move(handle));
  }
}

void DeferredCalls::FailAll(const absl::Status& why) {
  std::map<uint64_t, Call> calls;  // let go of without the lock
  std::vector<HandlePtr> results;
  std::lock_guard<std::mutex> lock(session_.mutex_);
  calls.swap(calls_);
  size_ = 0;
  for (const auto& [number, call] : calls) Fail(call, why, results);
}

void DeferredCalls::CancelUnneeded(const absl::Status& why, const std::function<bool(const HandleState&)>& runs_on,
                                   HandleSet& needed) {
  std::vector<Call> ended;  // let go of without the lock
  std::vector<HandlePtr> results;
  absl::flat_hash_set<const HandleState*> unsent_needed;
  const auto need = [&](const HandleState& handle) {
    if (handle.spec_known) {
      needed.insert(handle.id);
    } else {
      unsent_needed.insert(&handle);
    }
  };
  const auto leads_on = [&](const std::weak_ptr<HandleState>& result) {
    HandlePtr handle = result.lock();
    if (handle == nullptr) return false;
    results.push_back(handle);
    return runs_on(*handle) || unsent_needed.contains(handle.get());
  };
  std::lock_guard<std::mutex> lock(session_.mutex_);
  for (auto it = calls_.end(); it != calls_.begin();) {
    --it;
    Call& call = it->second;
    if (!std::any_of(call.results.begin(), call.results.end(), leads_on)) {
      Fail(call, why, results);
      ended.push_back(std::move(call));
      it = calls_.erase(it);
      continue;
    }
    for (const Operand& operand : call.operands) {
      if (operand.tensor != nullptr) need(*operand.tensor);
    }
    if (call.count != nullptr) need(*call.count->tensor);
  }
  size_ = calls_.size();
}

// Calls that nobody wants the results of go, with the operands that only they have kept: a chain is taken apart link by
// link, not one inside the other.
void DeferredCalls::Forget(HandleState& handle) {
  thread_local std::vector<Call>* outer = nullptr;
  std::vector<Call> own;
  {
    std::lock_guard<std::mutex> lock(session_.mutex_);
    unsent_.erase(&handle);
    auto it = calls_.find(handle.deferred->call);
    if (it == calls_.end()) return;
    const auto& results = it->second.results;
    if (!std::all_of(results.begin(), results.end(), [](const auto& result) { return result.expired(); })) return;
    (outer == nullptr ? own : *outer).push_back(std::move(it->second));
    calls_.erase(it);
    size_ = calls_.size();
  }
  if (outer != nullptr) return;
  std::vector<Call> queue = std::move(own);
  outer = &queue;
  while (!queue.empty()) {
    const Call last = std::move(queue.back());
    queue.pop_back();
  }
  outer = nullptr;
}

void DeferredCalls::TellImplicit() {
  if (!has_implicit_) return;
  std::vector<std::string> told;
  {
    std::lock_guard<std::mutex> lock(session_.mutex_);
    told.swap(implicit_);
    has_implicit_ = false;
  }
  for (const std::string& text : told) tessera::TellImplicit(text);
}

}  // namespace tessera
