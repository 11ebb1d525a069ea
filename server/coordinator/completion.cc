// Completion: what workers report, poison, and who is told.

#include <algorithm>
#include <cstring>
#include <utility>

#include "schemas/types/call_origin.h"
#include "schemas/types/errors.h"
#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/completion_desk.h"
#include "server/coordinator/failure.h"
#include "server/coordinator/spill_desk.h"
#include "server/coordinator/turn_desk.h"

namespace tessera {
namespace {

// A worker's status of an op, with the op's name in front.
absl::Status NamedAfter(std::string_view op, const absl::Status& status) {
  const std::string_view message = StdView(status.message());
  if (message.substr(0, op.size()) == op) return status;
  return WithMessage(status, StrCat(op, ": ", message));
}

// The cause as what the op makes has it; a download makes nothing.
absl::Status InheritedBy(const OpEntry& op, TensorTable& tensors, const absl::Status& cause) {
  if (op.kind != OpEntry::Kind::kRun) return cause;
  if (op.way != nullptr) {
    absl::Status inherited = cause;
    for (const WayStep& step : *op.way) inherited = OnTheWay(inherited, step.name, &step.result);
    return inherited;
  }
  const TensorPointer result = op.outputs.empty() ? nullptr : tensors.Find(op.outputs[0]);
  return OnTheWay(cause, op.name, result ? &result->spec() : nullptr);
}

bool Remove(std::vector<WorkerIndex>& list, WorkerIndex worker) {
  auto found = std::find(list.begin(), list.end(), worker);
  if (found == list.end()) return false;
  *found = list.back();
  list.pop_back();
  return true;
}

// A profile's text for a transfer.
std::string TextOf(const std::vector<TensorPointer>& tensors) {
  const std::string first = ToText(tensors[0]->spec());
  return tensors.size() == 1 ? first : StrCat(first, " and ", tensors.size() - 1, " more");
}

// Copies a shard's row-major elements to their places in the whole tensor.
void PlaceShard(const TensorSpec& spec, const Box& box, const std::string& shard, std::string& whole) {
  const auto size = static_cast<size_t>(SizeBytes(spec.dtype));
  const Strides strides = RowMajorStrides(spec.shape);
  const int64_t count = NumElements(box);
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i;
    int64_t target = 0;
    for (size_t d = box.size(); d-- > 0;) {
      target += (box[d].start + rest % box[d].size()) * strides[d];
      rest /= box[d].size();
    }
    std::memcpy(&whole[static_cast<size_t>(target) * size], &shard[static_cast<size_t>(i) * size], size);
  }
}

}  // namespace

void StateMachine::On(const WorkerReportEvent& event) {
  auto found = workers_.find(event.worker);
  if (found == workers_.end() || found->second.info.incarnation != event.incarnation ||
      found->second.state == WorkerState::kDead) {
    return;  // a former process of that number, or one that was declared dead
  }
  found->second.last_heard_us = now_us_;
  for (const CompletionReport& report : event.completions) {
    auto op = ops_.find(report.ordinal);
    if (op != ops_.end()) CompletionDesk(*this).Complete(OpPointer(op->second), event.worker, report);
  }
  for (const TransferReport& report : event.transfers) CompletionDesk(*this).TransferDone(event.worker, report);
  ForgetHistories(event.completions.size());
  TurnDesk(*this).Pump();
}

void StateMachine::CompletionDesk::Complete(const OpPointer& op, WorkerIndex worker, const CompletionReport& report) {
  if (!Remove(op->missing, worker)) return;
  WorkerEntry& entry = machine_.workers_.at(worker);
  entry.windows.Remove(op->lane, op->cost_us, machine_.config_, TurnDesk(machine_).WindowUs());
  entry.working_since_us = machine_.now_us_;
  entry.done_us = machine_.now_us_;
  if (op->ordinal == entry.probe) entry.probe = Ordinal(0);
  CountTraffic(*op, worker, report);
  AddRun(*op, worker, report);
  if (!report.status.ok()) Blame(op, OfCall(NamedAfter(op->name, report.status), op->first_result.value));
  if (op->kind == OpEntry::Kind::kInlineRead && report.status.ok()) {
    op->parts.emplace_back(op->mesh.FindWorker(worker).value_or(0), report.inline_bytes);
  }
  if (!op->missing.empty()) return;
  TurnDesk(machine_).EndWork(*op);
  if (!op->broken_connection.ok()) Poison(op, op->broken_connection);  // unless the worker is lost
  Remember(*op);
  LeaveScopes(op->session, op->comm_scopes);
  for (const OpShare& share : op->shares) LeaveScopes(share.session, share.comm_scopes);
  SettleIfDone(op);
}

void StateMachine::CompletionDesk::AddRun(OpEntry& op, WorkerIndex worker, const CompletionReport& report) {
  // An op's workers read, verify and lower its template side by side: each report pays its part of the mean.
  if (report.prepared_ns > 0 && machine_.sessions_.contains(op.session)) {
    machine_.turns_.Pay(op.session, TicksOfNs(report.prepared_ns) / static_cast<int64_t>(op.workers->size()));
  }
  if (!report.times.has_run()) return;
  ProfiledRun& run = op.runs.emplace_back();
  run.worker = worker;
  run.times = report.times;
  for (const auto& [source, bytes] : report.received_bytes) run.received_bytes += bytes;
  for (const auto& [destination, bytes] : report.pushed_bytes) run.pushed_bytes += bytes;
  run.transferred_bytes = static_cast<int64_t>(report.inline_bytes.size()) + report.written_bytes;
}

namespace {

void CountInMetrics(TenantMetrics& metrics, const OpEntry& op, int64_t now_us) {
  metrics.AddOp(op.name, op.status, static_cast<double>(now_us - op.issued_us) * 1e-6);
  for (const ProfiledRun& run : op.runs) metrics.AddDeviceTime(run.worker, op.lane, run.times.busy_ns);
}

}  // namespace

// A window's bytes come when it is open: its ticket says of them.
void StateMachine::CompletionDesk::Remember(OpEntry& op) {
  if (op.kind == OpEntry::Kind::kWindow) return;
  for (const OpShare& share : op.shares) {
    auto member = machine_.sessions_.find(share.session);
    if (member == machine_.sessions_.end()) continue;
    member->second.profile.Add({.number = share.profile_number,
                                .name = op.name,
                                .plan = op.plan,
                                .predicted_us = op.predicted_us,
                                .code = op.status.code(),
                                .result = share.result,
                                .runs = op.runs},
                               machine_.config_.max_profiled_runs);
  }
  auto session = machine_.sessions_.find(op.session);
  if (session == machine_.sessions_.end()) return;
  CountInMetrics(*session->second.metrics, op, machine_.now_us_);
  const bool is_run = op.kind == OpEntry::Kind::kRun;
  session->second.profile.Add({.number = op.profile_number,
                               .name = op.name,
                               .way = op.way,
                               .plan = std::move(op.plan),
                               .output = is_run ? "" : ToText(op.tensor->spec()),
                               .predicted_us = op.predicted_us,
                               .code = op.status.code(),
                               .result = op.first_result,
                               .runs = std::move(op.runs)},
                              machine_.config_.max_profiled_runs);
}

uint64_t StateMachine::CountUnderWay(SessionId session, uint64_t first_op, uint64_t end_op) const {
  const auto counts = [&](SessionId owner, uint64_t number) {
    return owner == session && number >= first_op && number < end_op ? uint64_t{1} : uint64_t{0};
  };
  uint64_t under_way = 0;
  for (const auto& [ordinal, op] : ops_) {
    const bool is_under_way = op->kind != OpEntry::Kind::kWindow && !op->missing.empty();
    if (!is_under_way) continue;
    under_way += counts(op->session, op->profile_number);
    for (const OpShare& share : op->shares) under_way += counts(share.session, share.profile_number);
  }
  for (const auto& [id, ticket] : tickets_) under_way += counts(ticket.session, ticket.profile_number);
  return under_way;
}

// A connection to a worker that is being killed breaks: why that is done is said when the worker is gone.
void StateMachine::CompletionDesk::Blame(const OpPointer& op, const absl::Status& cause) {
  const bool is_being_killed = std::any_of(op->missing.begin(), op->missing.end(), [this](WorkerIndex worker) {
    const WorkerEntry& entry = machine_.workers_.at(worker);
    return entry.last_kill_us > entry.last_heard_us || !entry.stalled.empty();
  });
  if (!is_being_killed || !absl::IsUnavailable(cause)) return Poison(op, cause);
  if (op->broken_connection.ok()) op->broken_connection = cause;
}

void StateMachine::CompletionDesk::LeaveScopes(SessionId id, const ScopeNumbers& scopes) {
  if (scopes.empty()) return;
  auto session = machine_.sessions_.find(id);
  if (session == machine_.sessions_.end()) return;
  for (const uint64_t number : scopes) {
    --session->second.scopes.at(number).pending;
    machine_.EndScopeIfDone(session->second, number);
  }
}

std::vector<CommScope*> StateMachine::CompletionDesk::ScopesOf(SessionId id, const ScopeNumbers& scopes) {
  std::vector<CommScope*> found;
  if (scopes.empty()) return found;
  if (auto session = machine_.sessions_.find(id); session != machine_.sessions_.end()) {
    for (const uint64_t number : scopes) found.push_back(&session->second.scopes.at(number));
  }
  return found;
}

void StateMachine::CompletionDesk::CountTransfer(SessionId session, const ScopeNumbers& scopes,
                                                 TransferDirection direction, WorkerIndex worker, int64_t bytes) {
  const auto at = static_cast<size_t>(worker.value);
  if (const auto owner = machine_.sessions_.find(session); bytes > 0 && owner != machine_.sessions_.end()) {
    TenantMetrics& metrics = *owner->second.metrics;
    SessionUsage& usage = owner->second.usage;
    const bool is_upload = direction == TransferDirection::kUpload;
    (is_upload ? metrics.uploaded_bytes : metrics.downloaded_bytes) += bytes;
    (is_upload ? usage.uploaded_bytes : usage.downloaded_bytes) += bytes;
  }
  for (CommScope* scope : ScopesOf(session, scopes)) {
    std::vector<int64_t>& counted =
        direction == TransferDirection::kUpload ? scope->uploaded_bytes : scope->downloaded_bytes;
    if (counted.size() <= at) counted.resize(at + 1);
    counted[at] += bytes;
  }
}

void StateMachine::CompletionDesk::CountTraffic(const OpEntry& op, WorkerIndex worker, const CompletionReport& report) {
  std::vector<CommScope*> scopes = ScopesOf(op.session, op.comm_scopes);
  for (const OpShare& share : op.shares) {
    const std::vector<CommScope*> members = ScopesOf(share.session, share.comm_scopes);
    scopes.insert(scopes.end(), members.begin(), members.end());
  }
  const auto count = [&](WorkerIndex from, WorkerIndex to, int64_t bytes) {
    if (!machine_.workers_.contains(from) || !machine_.workers_.contains(to)) return;
    machine_.workers_.at(to).received_bytes += bytes;
    const size_t size = static_cast<size_t>(std::max(from.value, to.value)) + 1;
    for (CommScope* scope : scopes) {
      if (scope->received_bytes.size() < size) scope->received_bytes.resize(size);
      if (scope->sent_bytes.size() < size) scope->sent_bytes.resize(size);
      scope->received_bytes[static_cast<size_t>(to.value)] += bytes;
      scope->sent_bytes[static_cast<size_t>(from.value)] += bytes;
    }
  };
  for (const auto& [source, bytes] : report.received_bytes) count(source, worker, bytes);
  for (const auto& [destination, bytes] : report.pushed_bytes) count(worker, destination, bytes);
  CountTransfer(op.session, op.comm_scopes, TransferDirection::kDownload, worker,
                static_cast<int64_t>(report.inline_bytes.size()));
  CountTransfer(op.session, op.comm_scopes, TransferDirection::kUpload, worker, report.written_bytes);
}

void StateMachine::CompletionDesk::PoisonTensor(TensorEntry& tensor, const absl::Status& cause) {
  if (!tensor.status.ok()) return;
  tensor.status = cause;
  auto session = machine_.sessions_.find(tensor.session);
  if (session != machine_.sessions_.end() && session->second.tensors.contains(tensor.handle)) {
    machine_.Send(session->second, FailedHandleEvent{tensor.handle, cause});
  }
}

void StateMachine::CompletionDesk::Poison(const OpPointer& first, const absl::Status& cause) {
  std::vector<std::pair<OpPointer, absl::Status>> work = {{first, cause}};
  while (!work.empty()) {
    auto [op, why] = std::move(work.back());
    work.pop_back();
    if (!op->status.ok()) continue;
    op->status = why;
    for (const EntryNumber output : op->outputs) {
      if (TensorPointer tensor = machine_.tensors_.Find(output)) PoisonTensor(*tensor, why);
    }
    for (const Waiter& waiter : op->waiters) machine_.SendTo(waiter.session, SettledEvent{waiter.request, why});
    op->waiters.clear();
    if (op->kind != OpEntry::Kind::kRun && op->request != 0) {
      // The tensor's own cause says what was lost, not only that its download was.
      const bool known = op->tensor != nullptr && !op->tensor->status.ok();
      machine_.SendTo(op->session, SettledEvent{op->request, known ? op->tensor->status : why});
      ForgetRequest(*op);
    }
    for (const Ordinal child : op->children) {
      const auto next = machine_.ops_.find(child);
      if (next != machine_.ops_.end() && next->second->status.ok())
        work.emplace_back(next->second, InheritedBy(*next->second, machine_.tensors_, why));
    }
  }
}

void StateMachine::CompletionDesk::SettleIfDone(const OpPointer& first) {
  std::vector<OpPointer> work = {first};
  while (!work.empty()) {
    OpPointer op = std::move(work.back());
    work.pop_back();
    if (op->settled || !op->missing.empty() || op->unsettled_parents > 0) continue;
    Settled(op);
    for (const Ordinal child : op->children) {
      const auto next = machine_.ops_.find(child);
      if (next == machine_.ops_.end()) continue;
      --next->second->unsettled_parents;
      work.push_back(next->second);
    }
    op->children.clear();
  }
}

void StateMachine::CompletionDesk::Settled(const OpPointer& op) {
  op->settled = true;
  for (const Waiter& waiter : op->waiters) {
    machine_.SendTo(waiter.session, SettledEvent{waiter.request, waiter.tensor->status});
  }
  op->waiters.clear();
  if (op->kind != OpEntry::Kind::kRun) AnswerRequest(*op);
  op->tensor = nullptr;
  machine_.ops_.erase(op->ordinal);
  if (machine_.spills_.size() > 0) ++machine_.closed_windows_;  // what it was about may leave now
}

void StateMachine::CompletionDesk::AnswerRequest(OpEntry& op) {
  const absl::Status status = op.status.ok() ? op.tensor->status : op.status;
  if (op.kind == OpEntry::Kind::kWindow) {
    auto ticket = tickets_.find(op.ticket);
    if (ticket == tickets_.end()) return;
    if (status.ok() && ticket->second.is_spill()) return;
    if (status.ok() && op.request != 0) {
      machine_.SendTo(op.session, TicketEvent{op.request, op.ticket, ticket->second.secret, op.tensor->spec()});
      return;
    }
    if (ticket->second.status.ok()) ticket->second.status = status;
    machine_.CloseTicketOf(op.ticket, ticket->second);
  }
  if (op.request == 0) return;  // answered when it failed, or cancelled
  if (!status.ok()) {
    machine_.SendTo(op.session, SettledEvent{op.request, status});
    ForgetRequest(op);
    return;
  }
  TensorSpec spec = op.tensor->spec();
  spec.mesh = op.mesh;  // a worker that was lost since may have left the tensor another one
  InlineValueEvent value{op.request,
                         std::string(static_cast<size_t>(NumElements(spec.shape) * SizeBytes(spec.dtype)), '\0')};
  for (const auto& [flat, bytes] : op.parts) {
    const Box box = LocalBox(spec, spec.mesh.PositionAt(flat));
    if (static_cast<int64_t>(bytes.size()) != NumElements(box) * SizeBytes(spec.dtype)) {
      machine_.SendTo(
          op.session,
          SettledEvent{op.request, absl::InternalError(StrCat("download: a worker sent ", bytes.size(), " bytes for ",
                                                              ToText(box), " of ", ToText(spec)))});
      return;
    }
    PlaceShard(spec, box, bytes, value.bytes);
  }
  machine_.SendTo(op.session, std::move(value));
}

void StateMachine::CompletionDesk::ForgetRequest(OpEntry& op) {
  op.request = 0;
  if (auto ticket = tickets_.find(op.ticket); ticket != tickets_.end()) ticket->second.request = 0;
}

void StateMachine::CompletionDesk::TransferDone(WorkerIndex worker, const TransferReport& report) {
  auto found = tickets_.find(report.ticket);
  if (found == tickets_.end() || !Remove(found->second.missing, worker)) return;
  TicketEntry& ticket = found->second;
  CountTransfer(ticket.session, ticket.comm_scopes, ticket.direction, worker, report.bytes);
  if (report.times.has_run()) {
    ticket.runs.push_back({.worker = worker, .times = report.times, .transferred_bytes = report.bytes});
  }
  const bool is_leaving = ticket.is_spill() && ticket.direction == TransferDirection::kDownload;
  if (!report.status.ok() && is_leaving) SpillDesk(machine_).Failed(worker);
  if (report.status.ok() && is_leaving && report.in_host_memory) SpillDesk(machine_).KeptByHost(ticket, worker);
  if (!report.status.ok() && ticket.status.ok()) {
    ticket.status = report.status;
    // A broken upload is over everywhere.
    if (ticket.direction == TransferDirection::kUpload) machine_.CloseTicketOf(report.ticket, ticket);
  }
  if (ticket.missing.empty()) FinishTicket(report.ticket, ticket);
}

void StateMachine::CompletionDesk::FinishTicket(TicketId id, TicketEntry& ticket) {
  TicketEntry gone = std::move(ticket);
  tickets_.erase(id);
  machine_.closing_.erase(id);
  ++machine_.closed_windows_;
  if (gone.is_spill()) return SpillDesk(machine_).Ended(gone);
  const bool is_upload = gone.direction == TransferDirection::kUpload;
  if (auto session = machine_.sessions_.find(gone.session); session != machine_.sessions_.end()) {
    --session->second.tickets;
    TurnDesk(machine_).PayForRuns(session->second, gone.runs);
    session->second.profile.Add({.number = gone.profile_number,
                                 .name = is_upload ? "upload" : "download",
                                 .output = TextOf(gone.tensors),
                                 .code = gone.status.code(),
                                 .runs = std::move(gone.runs)},
                                machine_.config_.max_profiled_runs);
    LeaveScopes(gone.session, gone.comm_scopes);
  }
  for (const TensorPointer& tensor : gone.tensors) {
    tensor->uploading = tensor->uploading && !is_upload;
    if (!tensor->status.ok() && tensor->former != nullptr) machine_.GiveUpRest(*tensor);
  }
  if (!is_upload) return;
  // A window that never opens, as those of lost workers, answers nothing any more.
  if (const OpPointer window = gone.window.lock()) window->request = 0;
  if (gone.status.ok() && !gone.closing) {
    machine_.SendTo(gone.session, UploadDoneEvent{gone.request});
    return;
  }
  const absl::Status why = gone.status.ok() ? absl::CancelledError("upload: given up by the client") : gone.status;
  for (const TensorPointer& tensor : gone.tensors) PoisonTensor(*tensor, why);
  if (gone.request != 0) machine_.SendTo(gone.session, SettledEvent{gone.request, why});
}

}  // namespace tessera
