// Intake: the records of each session in order, as far as the limits per worker let them. The order of sessions is
// decided in turns.cc.

#include <algorithm>
#include <utility>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/resolve.h"
#include "schemas/types/call_origin.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/completion_desk.h"
#include "server/coordinator/failure.h"
#include "server/coordinator/group_desk.h"
#include "server/coordinator/intake_desk.h"
#include "server/coordinator/issue_desk.h"
#include "server/coordinator/segment_desk.h"
#include "server/coordinator/spill_desk.h"
#include "server/coordinator/turn_desk.h"

namespace tessera {
namespace {

std::vector<HandleId> LastUsesOf(const CallRecord& record) {
  std::vector<HandleId> handles;
  for (const OperandReference& operand : record.operands) {
    const auto* handle = std::get_if<HandleId>(&operand.value);
    if (handle != nullptr && operand.last_use) handles.push_back(*handle);
  }
  return handles;
}

std::vector<MemoryMap::Request> RequestsOf(const UploadRecord& record, absl::Span<const WorkerIndex> workers) {
  std::vector<MemoryMap::Request> requests;
  for (const UploadedTensor& one : record.tensors) {
    requests.push_back({workers, MaxShardElements(one.spec) * SizeBytes(one.spec.dtype)});
  }
  return requests;
}

// Both lists are sorted.
bool HaveCommon(absl::Span<const WorkerIndex> a, absl::Span<const WorkerIndex> b) {
  for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
    if (*i == *j) return true;
    *i < *j ? ++i : ++j;
  }
  return false;
}

}  // namespace

Progress StateMachine::IntakeDesk::Take(SessionEntry& session, size_t& taken) {
  const auto& wait = session.memory_wait;
  if (wait.has_value() && wait->closed_windows == machine_.closed_windows_) return Progress::kBlocked;
  Record& record = session.queue.front();
  const Progress progress = std::visit(
      [&](auto& r) {
        if constexpr (std::is_same_v<std::decay_t<decltype(r)>, CallRecord>) {
          return TakeCalls(session, r, taken);
        } else {
          return TakeRecord(session, r);
        }
      },
      record);
  if (progress == Progress::kDone) session.memory_wait.reset();
  return progress;
}

bool StateMachine::IntakeDesk::AwaitsWindows(SessionEntry& session, absl::Span<const WorkerIndex> workers) {
  if (!session.memory_wait.has_value()) session.memory_wait = MemoryWait{TicketId(machine_.next_ticket_)};
  session.memory_wait->closed_windows = machine_.closed_windows_;
  if (!machine_.long_work_.given_up.empty()) return true;
  for (auto id = machine_.closing_.begin(); id != machine_.closing_.end() && *id < session.memory_wait->before; ++id) {
    const TicketEntry& ticket = machine_.tickets_.at(*id);
    const bool has_memory = std::any_of(ticket.tensors.begin(), ticket.tensors.end(),
                                        [](const TensorPointer& tensor) { return tensor->buffer->bytes > 0; });
    if (has_memory && !ticket.missing.empty() && HaveCommon(*ticket.tensors[0]->buffer->workers, workers)) return true;
  }
  return false;
}

absl::StatusOr<TensorPointer> StateMachine::FindTensor(const SessionEntry& session, HandleId handle,
                                                       std::string_view op) const {
  auto found = session.tensors.find(handle);
  if (found == session.tensors.end()) {
    return absl::NotFoundError(StrCat(op, ": this session has no tensor with handle ", handle.value));
  }
  if (!found->second->status.ok()) return found->second->status;
  return found->second;
}

absl::Status StateMachine::IntakeDesk::AddTensor(SessionEntry& session, HandleId handle, TensorPointer tensor) {
  if (static_cast<int64_t>(session.tensors.size()) >= config_.max_tensors_per_session) {
    return absl::ResourceExhaustedError(StrCat("the session holds ", session.tensors.size(),
                                               " tensors; max_tensors_per_session is ",
                                               config_.max_tensors_per_session));
  }
  if (!session.tensors.emplace(handle, std::move(tensor)).second) {
    return absl::InvalidArgumentError(StrCat("handle ", handle.value, " is in use already"));
  }
  return absl::OkStatus();
}

TensorPointer StateMachine::IntakeDesk::MakeFailedTensor(const SessionEntry& session, HandleId first,
                                                         const absl::Status& cause, const TensorSpec* spec) {
  TensorPointer tensor = machine_.tensors_.Add();
  tensor->session = session.info.session;
  tensor->handle = first;
  if (spec != nullptr) tensor->layout = machine_.layouts_.Of(*spec, {});
  tensor->status = cause;
  return tensor;
}

void StateMachine::IntakeDesk::AddFailedTensor(SessionEntry& session, HandleId handle, TensorPointer failed) {
  const absl::Status cause = failed->status;
  if (AddTensor(session, handle, std::move(failed)).ok()) machine_.Send(session, FailedHandleEvent{handle, cause});
}

void StateMachine::IntakeDesk::RefuseCall(SessionEntry& session, const CallRecord& record, const absl::Status& status) {
  ++session.metrics->refused[status.code()];
  ++session.usage.refused;
  // The results are never there; their specs are for messages.
  std::vector<OperandSpec> specs;
  bool is_inherited = false;
  for (const OperandReference& operand : record.operands) {
    if (const auto* scalar = std::get_if<Scalar>(&operand.value)) {
      specs.emplace_back(*scalar);
      continue;
    }
    auto tensor = session.tensors.find(std::get<HandleId>(operand.value));
    if (tensor == session.tensors.end()) continue;
    is_inherited = is_inherited || tensor->second->status == status;
    if (tensor->second->spec().mesh.size() > 0) specs.emplace_back(tensor->second->spec());
  }
  absl::StatusOr<OpResolution> resolved = absl::UnknownError("an operand's spec is not known");
  // A mesh of workers that don't exist may be as large as any, and would be in each text.
  const Mesh* const mesh = record.call.attributes.Get(attribute::mesh);
  const bool is_real = mesh == nullptr || !absl::IsInvalidArgument(machine_.CheckWorkers("", mesh->workers()));
  if (specs.size() == record.operands.size() && is_real) resolved = ResolveOp(record.call, specs);
  const size_t known = resolved.ok() ? resolved->outputs.size() : 0;
  const std::string_view name = NameOf(record.call.op, record.called_as);
  for (size_t i = 0; i < record.results.size(); ++i) {
    const TensorSpec* spec = i < known ? &resolved->outputs[i] : nullptr;
    const absl::Status cause = is_inherited
                                   ? OnTheWay(status, name, spec)
                                   : OfCall(SaidBy(name, NameOf(record.call.op), status), record.results[0].value);
    AddFailedTensor(session, record.results[i], MakeFailedTensor(session, record.results[i], cause, spec));
  }
}

void StateMachine::IntakeDesk::FinishUnit(SessionEntry& session, const IssueUnit& unit) {
  for (const HandleId handle : unit.dropped) machine_.DropHandle(session, handle);
}

absl::StatusOr<Progress> StateMachine::IntakeDesk::TakeSegment(SessionEntry& session, IssueUnit& unit) {
  std::vector<Scalar> scalars;
  TESSERA_ASSIGN_OR_RETURN(PlanTemplate* const plan, IssueDesk(machine_).TemplateOf(session, unit, scalars));
  unit.lane = IssueDesk(machine_).LaneFor(session, *plan, unit.tensors);
  if (!TurnDesk(machine_).HasRoomFor(*plan, unit.lane)) return Progress::kBlocked;
  TESSERA_RETURN_IF_ERROR(IssueDesk(machine_).Issue(session, unit, *plan, std::move(scalars)));
  SpillDesk(machine_).Use(unit.tensors);
  FinishUnit(session, unit);
  return Progress::kDone;
}

Progress StateMachine::IntakeDesk::TakeCalls(SessionEntry& session, CallRecord& record, size_t& taken) {
  if (std::optional<IssueUnit> segment = SegmentDesk(machine_).FindSegment(session); segment.has_value()) {
    taken = segment->record_count;
    const absl::StatusOr<Progress> progress = TakeSegment(session, *segment);
    if (progress.ok()) return *progress;
    // One by one, which says what is wrong with which.
    taken = 1;
    session.lone_calls = segment->calls.size();
  }
  absl::StatusOr<IssueUnit> unit = SegmentDesk(machine_).UnitOf(session, record);
  absl::Status status = unit.status();
  if (unit.ok()) {
    for (const TensorPointer& tensor : unit->tensors) {
      if (tensor->is_awaited()) return BlockedBy(*tensor);
    }
    const absl::StatusOr<Progress> back = SpillDesk(machine_).BringBack(session, unit->tensors);
    if (back.ok() && *back != Progress::kDone) return *back;
    SegmentDesk(machine_).AddDropsBehind(session, *unit);
    std::vector<Scalar> scalars;
    absl::StatusOr<PlanTemplate*> plan = absl::UnknownError("");
    if (!back.ok()) plan = back.status();
    if (back.ok()) plan = IssueDesk(machine_).TemplateOf(session, *unit, scalars);
    status = plan.status();
    if (plan.ok()) {
      const std::shared_ptr<const Plan> whole = (*plan)->plan;
      unit->lane = IssueDesk(machine_).LaneFor(session, **plan, unit->tensors);
      if (!TurnDesk(machine_).HasRoomFor(**plan, unit->lane)) return Progress::kBlocked;
      plan = IssueDesk(machine_).IssueWhatFits(session, *unit, **plan, std::move(scalars));
      status = plan.status();
      if (absl::IsResourceExhausted(status) &&
          SpillDesk(machine_).AwaitsMemory(session, SpillDesk::RequestsOf(*whole))) {
        return Progress::kBlocked;
      }
      if (plan.ok()) SpillDesk(machine_).Use(unit->tensors);
      if (plan.ok()) FinishUnit(session, *unit);
    }
  }
  if (!status.ok()) RefuseCall(session, record, status);
  for (const HandleId handle : LastUsesOf(record)) machine_.DropHandle(session, handle);
  if (session.lone_calls > 0) --session.lone_calls;
  return Progress::kDone;
}

absl::Status StateMachine::IntakeDesk::CheckTickets(std::string_view op, const SessionEntry& session) const {
  if (session.tickets < config_.max_tickets_per_session) return absl::OkStatus();
  return absl::ResourceExhaustedError(StrCat(op, ": the session has ", session.tickets,
                                             " transfers that it has not released; max_tickets_per_session is ",
                                             config_.max_tickets_per_session));
}

absl::StatusOr<std::vector<TensorPointer>> StateMachine::IntakeDesk::PlaceUploads(SessionEntry& session,
                                                                                  const UploadRecord& record,
                                                                                  const WorkerGroup& workers) {
  std::vector<TensorPointer> made;
  for (const UploadedTensor& one : record.tensors) {
    if (*machine_.groups_.Of(one.spec.mesh) != *workers) {
      return absl::InvalidArgumentError(StrCat("upload: ", ToText(one.spec), " and ", ToText(record.tensors[0].spec),
                                               " are on different workers, and come by one ticket"));
    }
    TensorPointer tensor = machine_.tensors_.Add();
    tensor->session = session.info.session;
    tensor->handle = one.result;
    tensor->layout = machine_.layouts_.Of(one.spec, RowMajorStrides(MaxShardShape(one.spec)));
    tensor->uploading = record.bytes.empty();
    const int64_t bytes = MaxShardElements(one.spec) * SizeBytes(one.spec.dtype);
    auto buffer =
        machine_.NewBuffer(session.info.session, workers, bytes, "upload", IssueDesk(machine_).UsualLane(session));
    if (!buffer.ok() && record.tensors.size() > 1) {
      return WithMessage(buffer.status(),
                         StrCat(StdView(buffer.status().message()), "; for ", ToText(one.spec), ", number ",
                                made.size(), " of ", record.tensors.size(), " that are read together"));
    }
    if (!buffer.ok()) return buffer.status();
    tensor->buffer = *std::move(buffer);
    tensor->offset_bytes = tensor->buffer->offset_bytes;
    SpillDesk(machine_).Track(tensor);
    made.push_back(std::move(tensor));
  }
  for (size_t i = 0; i < made.size(); ++i) {
    absl::Status status = AddTensor(session, made[i]->handle, made[i]);
    if (status.ok()) continue;
    for (size_t added = 0; added < i; ++added) session.tensors.erase(made[added]->handle);
    return status;
  }
  return made;
}

absl::Status StateMachine::IntakeDesk::CheckInline(const UploadRecord& record) const {
  const TensorSpec& spec = record.tensors[0].spec;
  const auto bytes = static_cast<int64_t>(record.bytes.size());
  if (record.tensors.size() == 1 && record.request == 0 && !spec.has_partial() && bytes <= config_.max_inline_bytes &&
      bytes == NumElements(spec.shape) * SizeBytes(spec.dtype)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(StrCat(
      "upload: ", bytes, " bytes in the record for ", record.tensors.size(), " tensors, the first ", ToText(spec),
      "; it takes one that isn't pending, of max_inline_bytes, ", config_.max_inline_bytes, ", at most"));
}

template <class GroupRecord>
Progress StateMachine::IntakeDesk::TakeRecord(SessionEntry& session, GroupRecord& record) {
  return GroupDesk(machine_).Take(session, record);
}

Progress StateMachine::IntakeDesk::TakeRecord(SessionEntry& session, UploadRecord& record) {
  // Before a list of all workers is made of a mesh.
  absl::Status status;
  for (const UploadedTensor& one : record.tensors) {
    if (status.ok()) status = machine_.CheckWorkers("upload", one.spec.mesh.workers());
  }
  const bool is_real = !absl::IsInvalidArgument(status);
  const WorkerGroup workers = is_real ? machine_.groups_.Of(record.tensors[0].spec.mesh) : MakeGroup({});
  const bool is_inline = !record.bytes.empty();
  if (status.ok()) status = is_inline ? CheckInline(record) : CheckTickets("upload", session);
  if (status.ok() && !TurnDesk(machine_).HasRoom(*workers, IssueDesk(machine_).UsualLane(session)))
    return Progress::kBlocked;
  if (status.ok()) {
    auto placed = PlaceUploads(session, record, workers);
    status = placed.status();
    if (absl::IsResourceExhausted(status) && SpillDesk(machine_).AwaitsMemory(session, RequestsOf(record, *workers))) {
      return Progress::kBlocked;
    }
    if (placed.ok() && is_inline) {
      IssueDesk(machine_).WriteInline(session, placed->front(), std::move(record.bytes));
    } else if (placed.ok()) {
      IssueDesk(machine_).OpenWindow(session, *std::move(placed), TransferDirection::kUpload, record.request);
    }
  }
  if (!status.ok()) {
    status = OfCall(status, record.tensors[0].result.value);
    for (const UploadedTensor& one : record.tensors) {
      AddFailedTensor(session, one.result,
                      MakeFailedTensor(session, one.result, status, is_real ? &one.spec : nullptr));
    }
    if (!is_inline) machine_.Send(session, SettledEvent{record.request, status});
  }
  return Progress::kDone;
}

Progress StateMachine::IntakeDesk::TakeRecord(SessionEntry& session, DownloadRecord& record) {
  absl::StatusOr<TensorPointer> tensor = machine_.FindTensor(session, record.handle, "download");
  if (tensor.ok() && (*tensor)->uploading) return Progress::kAwaitsUpload;
  if (tensor.ok() && (*tensor)->unmatched) return GroupDesk(machine_).Park(session, record.handle, record);
  if (tensor.ok()) {
    const absl::StatusOr<Progress> back = SpillDesk(machine_).BringBack(session, {*tensor});
    if (back.ok() && *back != Progress::kDone) return *back;
    if (!back.ok()) tensor = back.status();
  }
  if (tensor.ok()) {
    if (absl::Status status = CheckTickets("download", session); !status.ok()) tensor = std::move(status);
  }
  if (tensor.ok()) {
    const Lane lane = IssueDesk(machine_).LaneForRead(session, **tensor);
    if (!TurnDesk(machine_).HasRoom(*machine_.groups_.Of((*tensor)->spec().mesh), lane)) return Progress::kBlocked;
  }
  if (!tensor.ok()) {
    machine_.Send(session, SettledEvent{record.request, tensor.status()});
    return Progress::kDone;
  }
  SpillDesk(machine_).Use({*tensor});
  const TensorSpec& spec = (*tensor)->spec();
  const int64_t bytes = NumElements(spec.shape) * SizeBytes(spec.dtype);
  if (record.allow_inline && bytes <= config_.max_inline_bytes && !spec.has_partial()) {
    IssueDesk(machine_).ReadInline(session, *std::move(tensor), record.request);
  } else {
    IssueDesk(machine_).OpenWindow(session, {*std::move(tensor)}, TransferDirection::kDownload, record.request);
  }
  return Progress::kDone;
}

Progress StateMachine::IntakeDesk::TakeRecord(SessionEntry& session, WatchRecord& record) {
  absl::StatusOr<TensorPointer> tensor = machine_.FindTensor(session, record.handle, "wait");
  if (tensor.ok() && (*tensor)->uploading) return Progress::kAwaitsUpload;
  if (tensor.ok() && (*tensor)->unmatched) return GroupDesk(machine_).Park(session, record.handle, record);
  OpEntry* const producer = tensor.ok() ? machine_.ProducerOf(**tensor) : nullptr;
  if (producer != nullptr) {
    producer->waiters.push_back({session.info.session, record.request, *tensor});
  } else {
    machine_.Send(session, SettledEvent{record.request, tensor.status()});
  }
  return Progress::kDone;
}

Progress StateMachine::IntakeDesk::TakeRecord(SessionEntry& session, DropRecord& record) {
  for (HandleId handle : record.handles) machine_.DropHandle(session, handle);
  return Progress::kDone;
}

Progress StateMachine::IntakeDesk::TakeRecord(SessionEntry& session, NamingRecord& record) {
  if (!session.tensors.contains(record.handle)) return Progress::kDone;
  machine_.LoseName(session, record.handle);
  if (record.name.empty()) return Progress::kDone;
  if (const auto former = session.names.find(record.name); former != session.names.end()) {
    session.name_of.erase(former->second);
  }
  session.names[record.name] = record.handle;
  session.name_of[record.handle] = std::move(record.name);
  return Progress::kDone;
}

Progress StateMachine::IntakeDesk::TakeRecord(SessionEntry& session, CommBeginRecord& record) {
  // Beyond the limit a block is not opened: its end says so.
  if (static_cast<int64_t>(session.scopes.size()) >= config_.max_comm_blocks) return Progress::kDone;
  auto [entry, is_new] = session.scopes.try_emplace(record.scope);
  if (!is_new) return Progress::kDone;
  session.open_scopes.push_back(record.scope);
  CommScope& scope = entry->second;
  const size_t workers =
      machine_.workers_.empty() ? 0 : static_cast<size_t>(machine_.workers_.rbegin()->first.value) + 1;
  scope.received_bytes.resize(workers);
  scope.sent_bytes.resize(workers);
  scope.uploaded_bytes.resize(workers);
  scope.downloaded_bytes.resize(workers);
  scope.first_op = session.profile.next_number();
  return Progress::kDone;
}

Progress StateMachine::IntakeDesk::TakeRecord(SessionEntry& session, CommEndRecord& record) {
  auto found = session.scopes.find(record.scope);
  if (found == session.scopes.end()) {
    machine_.Send(
        session,
        SettledEvent{record.request, absl::NotFoundError(StrCat("comm_debug: no block ", record.scope, " is open"))});
    return Progress::kDone;
  }
  found->second.ended = true;
  found->second.end_op = session.profile.next_number();
  found->second.request = record.request;
  std::erase(session.open_scopes, record.scope);
  machine_.EndScopeIfDone(session, record.scope);
  return Progress::kDone;
}

// Cancels and releases act when they arrive, before the records that they cancel, or that wait for the ticket's tensor,
// have their turn.
Progress StateMachine::IntakeDesk::TakeRecord(SessionEntry&, CancelRecord&) { return Progress::kDone; }
Progress StateMachine::IntakeDesk::TakeRecord(SessionEntry&, CancelCallsRecord&) { return Progress::kDone; }
Progress StateMachine::IntakeDesk::TakeRecord(SessionEntry&, ReleaseRecord&) { return Progress::kDone; }

void StateMachine::IntakeDesk::ReleaseTicket(const SessionEntry& session, const ReleaseRecord& release) {
  auto found = machine_.tickets_.find(release.ticket);
  if (found == machine_.tickets_.end() || found->second.session != session.info.session) return;
  TicketEntry& ticket = found->second;
  if (ticket.status.ok()) ticket.status = release.reason;
  machine_.CloseTicketOf(release.ticket, ticket);
  // Ops that wait for the tensors of an upload that failed don't wait for its workers' answers: one may hang on a disk.
  // The tensors' memory does. A line that broke may be the end of a worker, which is told by what was lost.
  const bool is_known = !release.reason.ok() && !absl::IsUnavailable(release.reason);
  if (ticket.direction != TransferDirection::kUpload || !is_known) return;
  for (const TensorPointer& tensor : ticket.tensors) {
    tensor->uploading = false;
    CompletionDesk(machine_).PoisonTensor(*tensor, ticket.status);
  }
}

std::vector<bool> StateMachine::IntakeDesk::FindNeeded(const SessionEntry& session, const Cancels& cancels) {
  std::vector<bool> leads(cancels.calls_before);
  if (cancels.needed.empty()) return leads;
  absl::flat_hash_set<HandleId> needed = cancels.needed;
  const auto is_needed = [&needed](HandleId handle) { return needed.contains(handle); };
  for (size_t at = cancels.calls_before; at-- > 0;) {
    const Record& record = session.queue[at];
    if (const auto* upload = std::get_if<UploadRecord>(&record)) {
      const std::vector<HandleId> results = ResultsOf(*upload);
      leads[at] = std::any_of(results.begin(), results.end(), is_needed);
    }
    const auto* call = std::get_if<CallRecord>(&record);
    if (call == nullptr) continue;
    leads[at] = std::any_of(call->results.begin(), call->results.end(), is_needed);
    if (!leads[at]) continue;
    for (const OperandReference& operand : call->operands) {
      if (const auto* handle = std::get_if<HandleId>(&operand.value)) needed.insert(*handle);
    }
  }
  return leads;
}

void RefuseRecord(Record& record, absl::StatusCode code, std::string_view why) {
  const auto because = [&](std::string_view op) { return absl::Status(code, AbslView(StrCat(op, ": ", why))); };
  if (auto* call = std::get_if<CallRecord>(&record)) {
    record = BadRecord{because(NameOf(call->call.op, call->called_as)),
                       0,
                       {call->results.begin(), call->results.end()},
                       LastUsesOf(*call)};
  } else if (auto* upload = std::get_if<UploadRecord>(&record)) {
    record = BadRecord{because("upload"), upload->request, ResultsOf(*upload), {}};
  } else if (auto* download = std::get_if<DownloadRecord>(&record)) {
    record = BadRecord{because("download"), download->request, {}, {}};
  } else if (auto* watch = std::get_if<WatchRecord>(&record)) {
    record = BadRecord{because("wait"), watch->request, {}, {}};
  } else if (auto* publication = std::get_if<PublicationRecord>(&record)) {
    record = BadRecord{because(NameOf(*publication)), publication->request, {}, {}};
  }
}

// Walks the queue once for all of a batch, however many there are.
void StateMachine::IntakeDesk::Cancel(SessionEntry& session, const Cancels& cancels) {
  if (cancels.requests.empty() && cancels.calls_before == 0) return;
  const std::vector<bool> leads_on = FindNeeded(session, cancels);
  session.memory_wait.reset();  // the first may be one of them
  session.queue_weight = 0;
  for (size_t at = 0; at < session.queue.size(); ++at) {
    Record& record = session.queue[at];
    const bool is_before = at < cancels.calls_before && !leads_on[at];
    const auto* upload = std::get_if<UploadRecord>(&record);
    const auto* download = std::get_if<DownloadRecord>(&record);
    const auto* watch = std::get_if<WatchRecord>(&record);
    const auto* publication = std::get_if<PublicationRecord>(&record);
    const uint64_t request = upload != nullptr        ? upload->request
                             : download != nullptr    ? download->request
                             : watch != nullptr       ? watch->request
                             : publication != nullptr ? publication->request
                                                      : 0;
    const bool is_named = request != 0 && cancels.requests.contains(request);
    const bool is_work = upload != nullptr || std::holds_alternative<CallRecord>(record);
    if (is_named || (is_work && is_before)) {
      RefuseRecord(record, absl::StatusCode::kCancelled, "cancelled by the client before it was issued");
    }
    session.queue_weight += WeightOf(record);
  }
  if (!cancels.requests.empty()) CancelWaiters(session, cancels.requests);
}

void StateMachine::IntakeDesk::CancelWaiters(SessionEntry& session, const std::set<uint64_t>& requests) {
  std::set<uint64_t> ended;  // told in their order, whatever that of the ops
  for (auto& [ordinal, op] : machine_.ops_) {
    if (op->session != session.info.session) continue;
    const auto kept = std::remove_if(op->waiters.begin(), op->waiters.end(), [&](const Waiter& waiter) {
      return requests.contains(waiter.request) && (ended.insert(waiter.request), true);
    });
    op->waiters.erase(kept, op->waiters.end());
    if (!requests.contains(op->request)) continue;
    ended.insert(op->request);
    op->request = 0;
  }
  for (const uint64_t request : ended) {
    machine_.Send(session, SettledEvent{request, absl::CancelledError("wait: cancelled by the client")});
  }
  GroupDesk(machine_).CancelGroupRequests(session, requests);
  // These tickets are on their way to a client that has stopped waiting.
  for (auto& [id, ticket] : machine_.tickets_) {
    if (ticket.session != session.info.session || !requests.contains(ticket.request)) continue;
    machine_.CloseTicketOf(id, ticket);
    if (ended.contains(ticket.request)) ticket.request = 0;
  }
}

Progress StateMachine::IntakeDesk::TakeRecord(SessionEntry& session, BatchEndRecord& record) {
  constexpr double kUsToSeconds = 1e-6;
  session.metrics->wait_seconds.Add(static_cast<double>(machine_.now_us_ - record.came_us) * kUsToSeconds);
  machine_.Send(session, BatchDoneEvent{record.number});
  return Progress::kDone;
}

Progress StateMachine::IntakeDesk::TakeRecord(SessionEntry& session, BadRecord& record) {
  if (!record.results.empty()) {
    const TensorPointer failed = MakeFailedTensor(session, record.results[0], record.status);
    for (HandleId handle : record.results) AddFailedTensor(session, handle, failed);
  }
  for (HandleId handle : record.last_uses) machine_.DropHandle(session, handle);
  if (record.request != 0) machine_.Send(session, SettledEvent{record.request, record.status});
  return Progress::kDone;
}

}  // namespace tessera
