// Sessions of the state machine: opening, leases, batches, events to clients.

#include <algorithm>
#include <utility>

#include "schemas/types/str_cat.h"
#include "server/coordinator/group_desk.h"
#include "server/coordinator/intake_desk.h"
#include "server/coordinator/loss_desk.h"
#include "server/coordinator/spill_desk.h"
#include "server/coordinator/stall_desk.h"
#include "server/coordinator/turn_desk.h"

namespace tessera {
namespace {

constexpr ptrdiff_t kMaxDropsAtATime = 1024;

}  // namespace

void StateMachine::On(const StartedEvent& event) { given_.epoch = std::max(given_.epoch, event.epoch); }

void StateMachine::On(const SessionOpenedEvent& event) {
  given_.session = std::max(given_.session, event.session.value);
  given_.connection = std::max(given_.connection, event.connection);
  const auto is_alike = [&](const auto& session) { return session.second.info.role == event.role; };
  const auto is_of_user = [&](const auto& session) {
    return is_alike(session) && session.second.info.uid == event.uid;
  };
  // Sessions are counted where there are as many of all kinds as the limit.
  const auto count = [&](int64_t limit, const auto& is_counted) {
    return static_cast<int64_t>(sessions_.size()) < limit
               ? 0
               : static_cast<int64_t>(std::count_if(sessions_.begin(), sessions_.end(), is_counted));
  };
  const bool is_admins = event.role == Role::kAdmin;
  const int64_t limit = is_admins ? config_.max_admin_sessions : config_.max_sessions;
  const int64_t open = count(limit, is_alike), of_user = count(config_.max_sessions_per_uid, is_of_user);
  const bool is_known = !is_admins && event.uid != kNoUid;
  if (is_known && of_user >= config_.max_sessions_per_uid && !MakeRoomFor(event.role, event.uid)) {
    effects_.push_back(EndSession{
        event.session,
        absl::ResourceExhaustedError(StrCat("connect: ", of_user, " sessions of uid ", event.uid,
                                            " are open, max_sessions_per_uid is ", config_.max_sessions_per_uid))});
    return;
  }
  if (open >= limit && !MakeRoomFor(event.role, std::nullopt)) {
    effects_.push_back(EndSession{event.session, absl::ResourceExhaustedError(StrCat(
                                                     "connect: ", open,
                                                     is_admins ? " admins' sessions are open, max_admin_sessions is "
                                                               : " sessions are open, max_sessions is ",
                                                     limit))});
    return;
  }
  TenantEntry& tenant = tenants_.Of(event.tenant);
  if (absl::Status status = is_admins ? absl::OkStatus() : CheckSessions(tenant); !status.ok()) {
    effects_.push_back(EndSession{event.session, std::move(status)});
    return;
  }
  SessionEntry& session = sessions_[event.session];
  session.tenant = &tenant;
  ++tenant.sessions;
  turns_.AddSession(event.session, tenant.number);
  session.info = event;
  session.seen_losses = long_work_.losses.size();
  session.metrics = &metrics_.Of(event.tenant);
  session.connection = event.connection;
}

// A session that nobody is connected to and that has nothing is worth less than one that begins: the one whose lease is
// over first goes. With a `uid`, one of that user's.
bool StateMachine::MakeRoomFor(Role role, std::optional<int64_t> uid) {
  std::optional<SessionId> idle;
  int64_t deadline_us = 0;
  for (const auto& [id, session] : sessions_) {
    const bool is_idle = session.info.role == role && session.info.uid == uid.value_or(session.info.uid) &&
                         !session.connected && session.tensors.empty() && session.queue.empty() && session.tickets == 0;
    if (!is_idle || (idle.has_value() && session.lease_deadline_us >= deadline_us)) continue;
    idle = id;
    deadline_us = session.lease_deadline_us;
  }
  if (idle.has_value()) {
    CloseSession(
        *idle, absl::ResourceExhaustedError("the session had neither client nor tensors when others wanted its place"));
  }
  return idle.has_value();
}

void StateMachine::On(const SessionClosedEvent& event) {
  CloseSession(event.session, absl::CancelledError("the session was closed"));
}

void StateMachine::On(const ConnectionLostEvent& event) {
  auto found = sessions_.find(event.session);
  if (found == sessions_.end() || found->second.connection != event.connection) return;
  found->second.connected = false;
  found->second.lease_deadline_us = now_us_ + found->second.info.lease_us;
  if (found->second.info.lease_us <= 0)
    return CloseSession(event.session, absl::UnavailableError("the client is gone"));
  EndBeyondDetached(*found->second.tenant);
}

void StateMachine::On(const SessionResumedEvent& event) {
  given_.connection = std::max(given_.connection, event.connection);
  auto found = sessions_.find(event.session);
  if (found == sessions_.end()) return;
  found->second.connected = true;
  found->second.connection = event.connection;
  if (event.who != Returning::kNewClient) return;
  EndTransfers(found->second);
  GroupDesk(*this).LeaveGroups(event.session, std::exchange(found->second.groups, {}),
                               "another process has its session");
  TurnDesk(*this).Pump();
}

// Ends the transfers of a client that is gone: nobody brings or takes those bytes, neither what is under way nor what
// waits in the queue.
void StateMachine::EndTransfers(SessionEntry& session) {
  const auto gone = [](std::string_view op) { return absl::UnavailableError(StrCat(op, ": its client is gone")); };
  for (auto& [id, ticket] : tickets_) {
    if (ticket.session != session.info.session) continue;
    const bool is_upload = ticket.direction == TransferDirection::kUpload;
    if (ticket.status.ok()) ticket.status = gone(is_upload ? "upload" : "download");
    CloseTicketOf(id, ticket);
  }
  session.memory_wait.reset();  // the first may be one of them
  turns_.Retry(session.info.session);
  session.queue_weight = 0;
  for (Record& record : session.queue) {
    if (const auto* upload = std::get_if<UploadRecord>(&record)) {
      record = BadRecord{gone("upload"), upload->request, ResultsOf(*upload), {}};
    } else if (const auto* download = std::get_if<DownloadRecord>(&record)) {
      record = BadRecord{gone("download"), download->request, {}, {}};
    }
    session.queue_weight += WeightOf(record);
  }
  TurnDesk(*this).Pump();
}

void StateMachine::On(BatchEvent& event) {
  auto found = sessions_.find(event.session);
  if (found == sessions_.end()) return;
  SessionEntry& session = found->second;
  if (event.number <= session.last_batch) return;  // seen before: a resend
  if (event.number != session.last_batch + 1) {
    CloseSession(event.session, absl::FailedPreconditionError(StrCat("batch ", event.number, " came after batch ",
                                                                     session.last_batch, "; batches are dense")));
    return;
  }
  int64_t weight = 0;
  for (const Record& record : event.records) weight += WeightOf(record);
  const int64_t held = session.queue_weight + session.parked_weight;
  if (held + weight > config_.max_queued_records) {
    CloseSession(event.session, absl::ResourceExhaustedError(
                                    StrCat("the session has ", held, " records in its queue and sent ", weight,
                                           " more; max_queued_records is ", config_.max_queued_records)));
    return;
  }
  RefuseBeyondQueue(session, weight, event.records);
  session.last_batch = event.number;
  Cancels cancels;
  for (Record& record : event.records) {
    if (const auto* cancel = std::get_if<CancelRecord>(&record)) {
      if (cancel->request != 0) cancels.requests.insert(cancel->request);
    } else if (const auto* calls = std::get_if<CancelCallsRecord>(&record)) {
      cancels.calls_before = session.queue.size();
      cancels.needed.insert(calls->needed.begin(), calls->needed.end());
    } else if (const auto* release = std::get_if<ReleaseRecord>(&record)) {
      IntakeDesk(*this).ReleaseTicket(session, *release);
    } else {
      KeepFromLost(record);
      Queue(session, std::move(record));
    }
  }
  IntakeDesk(*this).Cancel(session, cancels);
  session.queue.push_back(BatchEndRecord{event.number, now_us_});
  ++session.queue_weight;
  turns_.SetReady(event.session);
  TurnDesk(*this).Pump();
}

// A drop of many handles in parts, between which others have their turn.
void StateMachine::Queue(SessionEntry& session, Record record) {
  auto* const drop = std::get_if<DropRecord>(&record);
  while (drop != nullptr && drop->handles.size() > kMaxDropsAtATime) {
    DropRecord part;
    part.handles.assign(drop->handles.begin(), drop->handles.begin() + kMaxDropsAtATime);
    drop->handles.erase(drop->handles.begin(), drop->handles.begin() + kMaxDropsAtATime);
    Queue(session, std::move(part));
  }
  session.queue_weight += WeightOf(record);
  session.queue.push_back(std::move(record));
}

void StateMachine::On(const ContinuedEvent&) {
  LossDesk(*this).GoOnWithLongWork();
  TurnDesk(*this).Pump();
}

void StateMachine::On(const TickEvent&) {
  std::vector<SessionId> over;
  for (const auto& [id, session] : sessions_) {
    if (!session.connected && now_us_ >= session.lease_deadline_us) over.push_back(id);
  }
  for (SessionId id : over) CloseSession(id, absl::DeadlineExceededError("the session's lease is over"));
  StallDesk(*this).WatchWork();
  StallDesk(*this).AskIdle();
  GroupDesk(*this).WatchGroups();
  for (auto& [index, worker] : workers_) {
    if (worker.state == WorkerState::kDead) continue;
    const bool is_stalled = !worker.stalled.empty();
    const int64_t quiet_us = now_us_ - worker.last_heard_us;
    const bool is_suspect = quiet_us >= config_.suspect_us || is_stalled ||
                            (worker.probe.value != 0 && now_us_ - worker.probed_us >= config_.suspect_us);
    worker.state = is_suspect ? WorkerState::kSuspect : WorkerState::kAlive;
    // It is lost when it is gone. A process that can't be ended is tried again.
    const bool was_never_killed = worker.last_kill_us == 0;
    const int64_t last_us = is_stalled ? worker.last_kill_us : std::max(worker.last_heard_us, worker.last_kill_us);
    if (now_us_ - last_us < config_.worker_timeout_us && !(is_stalled && was_never_killed)) continue;
    worker.last_kill_us = now_us_;
    effects_.push_back(KillWorker{index, worker.info.incarnation, worker.info.pid,
                                  is_stalled ? "answers and does no work" : "is silent"});
  }
  std::erase_if(freed_, [this](FreedRange& range) {
    range.history.Prune([this](Ordinal ordinal) { return IsComplete(ordinal); });
    return range.history.empty();
  });
  TurnDesk(*this).Pump();
}

bool StateMachine::AwaitsClient(SessionId id) const {
  auto found = sessions_.find(id);
  if (found == sessions_.end() || !found->second.awaits_upload) return false;
  return std::none_of(ops_.begin(), ops_.end(), [id](const auto& op) { return op.second->session == id; });
}

void StateMachine::CloseSession(SessionId id, const absl::Status& reason) {
  auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  for (auto& [ticket_id, ticket] : tickets_) {
    if (ticket.session == id) CloseTicketOf(ticket_id, ticket);
  }
  SpillDesk(*this).HandTurnOn(id);
  SessionEntry gone = std::move(found->second);
  sessions_.erase(found);
  turns_.RemoveSession(id);
  --gone.tenant->sessions;
  GroupDesk(*this).LeaveGroups(id, gone.groups, std::string(StdView(reason.message())));
  gone.queue.clear();
  if (!gone.tensors.empty()) long_work_.given_up.push_back(std::move(gone.tensors));
  LossDesk(*this).GoOnWithLongWork();
  effects_.push_back(EndSession{id, reason, gone.info.tenant, gone.info.name, gone.usage});
  TurnDesk(*this).Pump();
}

void StateMachine::CloseTicketOf(TicketId id, TicketEntry& ticket) {
  if (ticket.closing) return;
  ticket.closing = true;
  closing_.insert(id);
  ToGroup(ticket.workers, CloseTicket{id});
}

void StateMachine::DropHandle(SessionEntry& session, HandleId handle) {
  session.tensors.erase(handle);
  LoseName(session, handle);
}

void StateMachine::LoseName(SessionEntry& session, HandleId handle) {
  const auto named = session.name_of.find(handle);
  if (named == session.name_of.end()) return;
  session.names.erase(named->second);
  session.name_of.erase(named);
}

void StateMachine::Send(SessionEntry& session, SessionEventBody body) {
  effects_.push_back(ToClient{session.info.session, {++session.last_event, std::move(body)}});
}

void StateMachine::SendTo(SessionId id, SessionEventBody body) {
  auto found = sessions_.find(id);
  if (found != sessions_.end()) Send(found->second, std::move(body));
}

void StateMachine::EndScopeIfDone(SessionEntry& session, uint64_t scope_id) {
  auto found = session.scopes.find(scope_id);
  if (found == session.scopes.end() || !found->second.ended || found->second.pending > 0) return;
  CommScope& scope = found->second;
  Send(session, CommReportEvent{scope.request,
                                std::move(scope.received_bytes),
                                std::move(scope.sent_bytes),
                                std::move(scope.uploaded_bytes),
                                std::move(scope.downloaded_bytes),
                                {scope.collectives.begin(), scope.collectives.end()},
                                scope.first_op,
                                scope.end_op});
  session.scopes.erase(found);
}

}  // namespace tessera
