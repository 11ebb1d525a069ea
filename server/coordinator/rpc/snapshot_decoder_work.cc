// The reading half of snapshot.h: sessions, what they have under way, and turns.

#include <set>
#include <string>
#include <utility>

#include "schemas/codec/values.h"
#include "schemas/ops/catalog.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/journal.h"
#include "server/coordinator/rpc/record_codec.h"
#include "server/coordinator/rpc/snapshot_decoder.h"
#include "server/coordinator/rpc/snapshot_pieces.h"

namespace tessera {
namespace {

std::string BytesOf(capnp::Data::Reader bytes) { return {reinterpret_cast<const char*>(bytes.begin()), bytes.size()}; }

// Names of ops live as long as the process does; there are as many as the catalog and its speakers have.
std::string_view Lasting(const std::string& name) {
  static auto* const kNames = new std::set<std::string>();
  return *kNames->insert(name).first;
}

template <typename Enum>
absl::StatusOr<Enum> EnumOf(uint8_t value, Enum last, std::string_view what) {
  if (value > static_cast<uint8_t>(last)) return NotAsWritten(what);
  return static_cast<Enum>(value);
}

ProfiledRuns RunsOf(capnp::List<wire::SnapshotRun>::Reader rows) {
  ProfiledRuns runs;
  for (const auto in : rows) {
    const auto times = in.getTimes();
    runs.push_back({.worker = WorkerIndex(in.getWorker()),
                    .times = {times.getStartedNs(), times.getEndedNs(), times.getWorkNs(), times.getBusyNs()},
                    .received_bytes = in.getReceivedBytes(),
                    .pushed_bytes = in.getPushedBytes(),
                    .transferred_bytes = in.getTransferredBytes()});
  }
  return runs;
}

CommScope ScopeOf(wire::SnapshotScope::Reader in) {
  CommScope scope;
  ReadList(in.getReceivedBytes(), scope.received_bytes);
  ReadList(in.getSentBytes(), scope.sent_bytes);
  ReadList(in.getUploadedBytes(), scope.uploaded_bytes);
  ReadList(in.getDownloadedBytes(), scope.downloaded_bytes);
  for (const auto item : in.getCollectives()) scope.collectives[TextOf(item.getName())] = item.getCount();
  scope.first_op = in.getFirstOp();
  scope.end_op = in.getEndOp();
  scope.pending = in.getPending();
  scope.ended = in.getEnded();
  scope.request = in.getRequest();
  return scope;
}

absl::StatusOr<Record> ReadQueued(wire::SnapshotQueued::Reader in, int64_t now_us) {
  switch (in.which()) {
    case wire::SnapshotQueued::RECORD: return DecodeRecord(in.getRecord());
    case wire::SnapshotQueued::BATCH_END: return BatchEndRecord{static_cast<uint64_t>(in.getBatchEnd()), now_us};
    case wire::SnapshotQueued::BAD: {
      BadRecord bad;
      bad.status = DecodeStatus(in.getBad().getStatus());
      bad.request = in.getBad().getRequest();
      ReadIds(in.getBad().getResults(), bad.results);
      ReadIds(in.getBad().getLastUses(), bad.last_uses);
      return bad;
    }
  }
  return NotAsWritten("record");
}

template <typename Operands>
absl::Status ReadOperands(capnp::List<wire::SnapshotKeyOperand>::Reader rows, Operands& operands) {
  for (const auto in : rows) {
    PlanKeyOperand& operand = operands.emplace_back();
    operand.value = in.getValue();
    operand.scalar_dtype = static_cast<DType>(in.getScalarDtype());
    TESSERA_ASSIGN_OR_RETURN(operand.scalar_strength,
                             EnumOf(in.getScalarStrength(), ScalarStrength::kStrong, "strength"));
    operand.scalar_special_dtypes = in.getSpecialDtypes();
    operand.scalar_is_negative = in.getIsNegative();
  }
  return absl::OkStatus();
}

}  // namespace

// ---- sessions -----------------------------------------------------------------------------------

absl::StatusOr<SessionEntry*> Snapshot::Decoder::SessionAt(uint64_t id) const {
  const auto found = machine_->sessions_.find(SessionId(id));
  if (found == machine_->sessions_.end()) return NotAsWritten("session");
  return &found->second;
}

absl::Status Snapshot::Decoder::ReadSession(wire::SnapshotSession::Reader in, SessionEntry& session) {
  StateMachine& m = *machine_;
  if (in.getTenant() > m.tenants_.all().size()) return NotAsWritten("tenant");
  if (in.getTenant() > 0) session.tenant = &m.tenants_.at(static_cast<int32_t>(in.getTenant() - 1));
  session.metrics = &m.metrics_.Of(session.info.tenant);
  session.seen_losses = in.getSeenLosses();
  for (const auto item : in.getNames()) {
    session.names[TextOf(item.getName())] = HandleId(item.getHandle());
    session.name_of[HandleId(item.getHandle())] = TextOf(item.getName());
  }
  session.queue_weight = in.getQueueWeight();
  session.lone_calls = in.getLoneCalls();
  session.bytes = in.getBytes();
  session.awaits_upload = in.getAwaitsUpload();
  if (in.hasMemoryWait()) {
    session.memory_wait = MemoryWait{TicketId(in.getMemoryWait().getBefore()), in.getMemoryWait().getClosedWindows()};
  }
  session.wants_spilled = in.getWantsSpilled();
  session.spilled_bytes = in.getSpilledBytes();
  session.last_batch = in.getLastBatch();
  session.last_event = in.getLastEvent();
  session.recent_use.level_us_ = in.getRecentUs();
  session.recent_use.at_us_ = in.getRecentAtUs();
  session.recent_use.is_heavy_ = in.getIsHeavy();
  session.connected = in.getIsConnected();
  session.connection = in.getConnection();
  session.lease_deadline_us = in.getLeaseDeadlineUs();
  for (const auto scope : in.getScopes()) session.scopes[scope.getNumber()] = ScopeOf(scope);
  ReadList(in.getOpenScopes(), session.open_scopes);
  session.tickets = in.getTickets();
  for (const uint64_t group : in.getGroups()) session.groups.insert(group);
  session.parked_weight = in.getParkedWeight();
  session.profile.next_number_ = in.getProfileNumber();
  const auto usage = in.getUsage();
  session.usage = {usage.getDeviceNs(), usage.getUploadedBytes(), usage.getDownloadedBytes(), usage.getRefused()};
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::Sessions(Rows<wire::SnapshotSession> rows) {
  for (const auto in : rows) {
    TESSERA_ASSIGN_OR_RETURN(Event opened, DecodeEvent(in.getOpened()));
    const auto* info = std::get_if<SessionOpenedEvent>(&opened);
    if (info == nullptr) return NotAsWritten("session");
    SessionEntry& session = machine_->sessions_[info->session];
    session.info = *info;
    TESSERA_RETURN_IF_ERROR(ReadSession(in, session));
  }
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::Held(Rows<wire::SnapshotHeld> rows) {
  for (const auto in : rows) {
    TESSERA_ASSIGN_OR_RETURN(SessionEntry* const session, SessionAt(in.getSession()));
    TESSERA_ASSIGN_OR_RETURN(TensorPointer tensor, TensorAt(in.getTensor()));
    if (!tensor) return NotAsWritten("tensor");
    session->tensors.emplace(HandleId(in.getHandle()), std::move(tensor));
  }
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::Queued(Rows<wire::SnapshotQueued> rows) {
  for (const auto in : rows) {
    TESSERA_ASSIGN_OR_RETURN(Record record, ReadQueued(in, machine_->now_us_));
    if (in.getIsUnparked()) {
      machine_->unparked_.emplace_back(SessionId(in.getSession()), std::move(record));
      continue;
    }
    TESSERA_ASSIGN_OR_RETURN(SessionEntry* const session, SessionAt(in.getSession()));
    if (in.getParkedAt() != 0) {
      session->parked[HandleId(in.getParkedAt())].push_back(std::move(record));
    } else {
      session->queue.push_back(std::move(record));
    }
  }
  return absl::OkStatus();
}

// ---- plans, ops, tickets ------------------------------------------------------------------------

absl::StatusOr<PlanKey> Snapshot::Decoder::ReadKey(wire::SnapshotPlan::Reader in) const {
  PlanKey key;
  for (const uint32_t number : in.getInputs()) {
    TESSERA_ASSIGN_OR_RETURN(SharedLayout layout, LayoutAt(number));
    key.inputs.push_back({std::move(layout)});
  }
  for (const auto item : in.getCalls()) {
    PlanKeyCall& call = key.calls.emplace_back();
    TESSERA_ASSIGN_OR_RETURN(OpCall decoded, DecodeOpCall(item.getCall()));
    call.op = decoded.op;
    call.attributes = std::move(decoded.attributes);
    TESSERA_RETURN_IF_ERROR(ReadOperands(item.getOperands(), call.operands));
    TESSERA_RETURN_IF_ERROR(ReadOperands(item.getScalars(), call.scalars));
  }
  ReadList(in.getKept(), key.kept);
  key.topology_version = in.getTopologyVersion();
  key.temporary_bytes = in.getTemporaryBytes();
  return key;
}

absl::Status Snapshot::Decoder::Plans(Rows<wire::SnapshotPlan> rows) {
  PlanCache& plans = machine_->plans_;
  for (const auto in : rows) {
    PlanCache::Entry entry;
    TESSERA_ASSIGN_OR_RETURN(entry.key, ReadKey(in));
    entry.bytes = in.getBytes();
    entry.value.id = TemplateId(in.getId());
    TESSERA_ASSIGN_OR_RETURN(entry.value.measured, At(measured_, in.getMeasured(), "measured cost"));
    if (entry.value.measured == nullptr) return NotAsWritten("measured cost");
    ReadIds(in.getDefinedOn(), entry.value.defined_on);
    entry.value.text_hash = in.getTextHash();
    plans.bytes_ += entry.bytes;
    plans.entries_.push_back(std::move(entry));
    if (!plans.index_.insert(std::prev(plans.entries_.end())).second) return NotAsWritten("second plan of one key");
  }
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::ReadOp(wire::SnapshotOp::Reader in, OpEntry& op) {
  op.ordinal = Ordinal(in.getOrdinal());
  TESSERA_ASSIGN_OR_RETURN(op.kind, EnumOf(in.getKind(), OpEntry::Kind::kInlineWrite, "kind of op"));
  op.name = Lasting(TextOf(in.getName()));
  if (in.hasWay()) {
    std::vector<WayStep> way;
    for (const auto step : in.getWay()) {
      TESSERA_ASSIGN_OR_RETURN(TensorSpec result, DecodeTensorSpec(step.getResult()));
      way.push_back({Lasting(TextOf(step.getName())), std::move(result)});
    }
    op.way = std::make_shared<const std::vector<WayStep>>(std::move(way));
  }
  op.works_alone = in.getWorksAlone();
  op.first_result = HandleId(in.getFirstResult());
  op.session = SessionId(in.getSession());
  TESSERA_ASSIGN_OR_RETURN(op.workers, At(groups_, in.getGroup(), "group"));
  if (op.workers == nullptr) return NotAsWritten("group");
  ReadIds(in.getMissing(), op.missing);
  op.cost_us = in.getCostUs();
  op.predicted_us = in.getPredictedUs();
  op.issued_us = in.getIssuedUs();
  TESSERA_ASSIGN_OR_RETURN(op.lane, EnumOf(in.getLane(), static_cast<Lane>(kLaneCount - 1), "lane"));
  op.charge = {SessionId(in.getChargedSession()), in.getChargedTenant(), in.getChargedTicks()};
  TESSERA_ASSIGN_OR_RETURN(op.measured, At(measured_, in.getMeasured(), "measured cost"));
  if (in.hasStatus()) op.status = DecodeStatus(in.getStatus());
  if (in.hasBrokenConnection()) op.broken_connection = DecodeStatus(in.getBrokenConnection());
  op.unsettled_parents = in.getUnsettledParents();
  ReadIds(in.getChildren(), op.children);
  for (const uint32_t output : in.getOutputs()) {
    TESSERA_ASSIGN_OR_RETURN(const TensorPointer tensor, TensorAt(output));
    op.outputs.push_back(tensor.number());
  }
  for (const auto row : in.getWaiters()) {
    TESSERA_ASSIGN_OR_RETURN(TensorPointer tensor, TensorAt(row.getTensor()));
    if (!tensor) return NotAsWritten("tensor");
    op.waiters.push_back({SessionId(row.getSession()), row.getRequest(), std::move(tensor)});
  }
  ReadList(in.getScopes(), op.comm_scopes);
  op.request = in.getRequest();
  op.ticket = TicketId(in.getTicket());
  TESSERA_ASSIGN_OR_RETURN(op.tensor, TensorAt(in.getTensor()));
  if (in.hasMesh()) {
    TESSERA_ASSIGN_OR_RETURN(op.mesh, DecodeMesh(in.getMesh()));
  }
  for (const auto part : in.getParts()) op.parts.emplace_back(part.getPosition(), BytesOf(part.getBytes()));
  op.profile_number = in.getProfileNumber();
  for (const auto row : in.getShares()) {
    OpShare& share = op.shares.emplace_back();
    share.session = SessionId(row.getSession());
    ReadList(row.getScopes(), share.comm_scopes);
    share.profile_number = row.getProfileNumber();
    share.result = HandleId(row.getResult());
  }
  op.runs = RunsOf(in.getRuns());
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::Ops(Rows<wire::SnapshotOp> rows) {
  for (const auto in : rows) {
    auto op = std::make_shared<OpEntry>();
    TESSERA_RETURN_IF_ERROR(ReadOp(in, *op));
    machine_->ops_[op->ordinal] = std::move(op);
  }
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::Tickets(Rows<wire::SnapshotTicket> rows) {
  for (const auto in : rows) {
    const TicketId id(in.getTicket());
    TicketEntry& ticket = machine_->tickets_[id];
    ticket.session = SessionId(in.getSession());
    ticket.secret = in.getSecret();
    ticket.request = in.getRequest();
    if (const auto window = machine_->ops_.find(Ordinal(in.getWindow())); window != machine_->ops_.end()) {
      ticket.window = window->second;
    }
    TESSERA_ASSIGN_OR_RETURN(ticket.direction, EnumOf(in.getDirection(), TransferDirection::kDownload, "direction"));
    for (const uint32_t number : in.getTensors()) {
      TESSERA_ASSIGN_OR_RETURN(TensorPointer tensor, TensorAt(number));
      if (!tensor) return NotAsWritten("tensor");
      ticket.tensors.push_back(std::move(tensor));
    }
    TESSERA_ASSIGN_OR_RETURN(ticket.workers, At(groups_, in.getGroup(), "group"));
    ReadIds(in.getMissing(), ticket.missing);
    ticket.closing = in.getIsClosing();
    if (in.getAwaitsWorkers()) machine_->closing_.insert(id);
    if (in.hasStatus()) ticket.status = DecodeStatus(in.getStatus());
    ticket.profile_number = in.getProfileNumber();
    ticket.runs = RunsOf(in.getRuns());
    ReadList(in.getScopes(), ticket.comm_scopes);
  }
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::Freed(Rows<wire::SnapshotFreed> rows) {
  for (const auto in : rows) {
    FreedRange range{in.getStart(), in.getStop(), nullptr, {}};
    TESSERA_ASSIGN_OR_RETURN(range.workers, At(groups_, in.getGroup(), "group"));
    if (range.workers == nullptr) return NotAsWritten("group");
    TESSERA_RETURN_IF_ERROR(ReadHistory(in.getHistory(), range.history));
    machine_->freed_.push_back(std::move(range));
  }
  return absl::OkStatus();
}

// ---- turns, long work, process groups -----------------------------------------------------------

absl::Status Snapshot::Decoder::Turns(wire::SnapshotTurns::Reader in) {
  FairTurns& turns = machine_->turns_;
  for (const auto row : in.getTenants()) {
    FairTurns::Tenant& tenant = turns.TenantOf(row.getNumber());
    tenant.key = row.getKey();
    tenant.weight = row.getWeight();
    tenant.rest = row.getRest();
    tenant.present = row.getPresent();
    tenant.latest = row.getLatest();
    tenant.backlogged = row.getBacklogged();
    tenant.under_way = row.getUnderWay();
    tenant.last_work_us = row.getLastWorkUs();
    tenant.is_recent = row.getIsRecent();
    if (row.getIsReady()) turns.ready_.Push(tenant);
  }
  for (const int32_t gate : in.getClosed()) turns.closed_.insert(gate);
  for (const auto row : in.getSessions()) {
    auto session = std::make_unique<FairTurns::Session>();
    session->number = row.getId();
    session->key = row.getKey();
    if (!turns.tenants_.contains(row.getTenant())) return NotAsWritten("tenant");
    session->tenant = &turns.TenantOf(row.getTenant());
    session->has_work = row.getHasWork();
    session->gate = row.getGate();
    if (session->has_work) {
      session->tenant->waiting[session->gate].Push(*session);
      if (session->gate != FairTurns::kNoGate) turns.at_[session->gate].insert(row.getTenant());
    }
    turns.sessions_.emplace(SessionId(row.getId()), std::move(session));
  }
  for (const int32_t number : in.getRecent()) {
    if (!turns.tenants_.contains(number)) return NotAsWritten("tenant");
    turns.recent_.push_back(&turns.TenantOf(number));
  }
  turns.next_look_us_ = in.getNextLookUs();
  turns.now_us_ = in.getNowUs();
  turns.present_ = in.getPresent();
  turns.latest_ = in.getLatest();
  turns.backlogged_ = in.getBacklogged();
  turns.under_way_ = in.getUnderWay();
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::Losses(Rows<wire::SnapshotLoss> rows) {
  for (const auto in : rows) {
    machine_->long_work_.losses.push_back({WorkerIndex(in.getWorker()), DecodeStatus(in.getCause()), in.getJoins()});
  }
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::GivenUp(Rows<wire::SnapshotGivenUp> rows) {
  for (const auto in : rows) {
    if (in.getHandles().size() != in.getTensors().size()) return NotAsWritten("tensor");
    auto& tensors = machine_->long_work_.given_up.emplace_back();
    for (unsigned i = 0; i < in.getHandles().size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(TensorPointer tensor, TensorAt(in.getTensors()[i]));
      tensors.emplace(HandleId(in.getHandles()[i]), std::move(tensor));
    }
  }
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::Publications(Rows<wire::SnapshotPublication> rows) {
  TenantTable& tenants = machine_->tenants_;
  for (const auto in : rows) {
    const int32_t tenant = in.getTenant();
    if (tenant < 0 || static_cast<size_t>(tenant) >= tenants.all().size()) return NotAsWritten("tenant");
    if (in.getNames().size() != in.getTensors().size()) return NotAsWritten("tensor");
    PublishedEntry entry;
    entry.name = TextOf(in.getName());
    entry.tenant = &tenants.at(tenant);
    for (unsigned i = 0; i < in.getNames().size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(TensorPointer tensor, TensorAt(in.getTensors()[i]));
      entry.tensors.push_back({TextOf(in.getNames()[i]), std::move(tensor)});
    }
    for (const auto reader : in.getReaders()) entry.readers.push_back(TextOf(reader));
    entry.bytes = in.getBytes();
    entry.seen_losses = in.getSeenLosses();
    PublicationTable& publications = machine_->publications_;
    const std::string name = entry.name;
    publications.Put(std::move(entry));
    publications.entries_.find(name)->second.version = in.getVersion();
  }
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::Publishers(Rows<wire::SnapshotPublisher> rows) {
  for (const auto in : rows) {
    machine_->publications_.own_[in.getTenant()].removed_version = in.getRemovedVersion();
  }
  return absl::OkStatus();
}

absl::StatusOr<ArrivedCall> Snapshot::Decoder::ReadArrived(wire::SnapshotArrived::Reader in) const {
  ArrivedCall call;
  call.rank = in.getRank();
  call.session = SessionId(in.getSession());
  TESSERA_ASSIGN_OR_RETURN(call.signature.kind, EnumOf(in.getKind(), kLastCollectiveKind, "collective"));
  TESSERA_ASSIGN_OR_RETURN(call.signature.op, EnumOf(in.getReduceOp(), kLastReduceOp, "reduce op"));
  call.signature.root = in.getRoot();
  call.signature.dtype = static_cast<DType>(in.getDtype());
  call.signature.elements = in.getElements();
  call.signature.on_devices = in.getOnDevices();
  call.request = in.getRequest();
  TESSERA_ASSIGN_OR_RETURN(call.operand, TensorAt(in.getOperand()));
  TESSERA_ASSIGN_OR_RETURN(call.result, TensorAt(in.getResult()));
  return call;
}

absl::Status Snapshot::Decoder::ReadGroup(wire::SnapshotGroup::Reader in, ProcessGroupEntry& group) const {
  for (const auto row : in.getMembers()) {
    GroupMember& member = group.members.emplace_back();
    TESSERA_ASSIGN_OR_RETURN(member.state, EnumOf(row.getState(), GroupMember::State::kGone, "member's state"));
    member.session = SessionId(row.getSession());
    member.worker = WorkerIndex(row.getWorker());
    member.process = TextOf(row.getProcess());
    member.meeting = TextOf(row.getMeeting());
    member.request = row.getRequest();
    member.why = TextOf(row.getWhy());
    member.next_call = row.getNextCall();
  }
  group.is_formed = in.getIsFormed();
  group.forming_deadline_us = in.getFormingDeadlineUs();
  group.forming_timeout_us = in.getFormingTimeoutUs();
  for (const auto row : in.getCalls()) {
    GroupCall& call = group.calls.emplace_back();
    call.number = row.getNumber();
    for (const auto arrived : row.getArrived()) {
      TESSERA_ASSIGN_OR_RETURN(ArrivedCall decoded, ReadArrived(arrived));
      call.arrived.push_back(std::move(decoded));
    }
    if (row.hasFailed()) call.failed = DecodeStatus(row.getFailed());
    call.deadline_us = row.getDeadlineUs();
    call.timeout_us = row.getTimeoutUs();
  }
  for (const auto row : in.getMessages()) {
    WaitingMessage& message = group.messages.emplace_back();
    TESSERA_ASSIGN_OR_RETURN(message.call, ReadArrived(row.getCall()));
    message.peer = row.getPeer();
    message.tag = row.getTag();
    message.claim = row.getClaim();
    message.deadline_us = row.getDeadlineUs();
    message.timeout_us = row.getTimeoutUs();
    message.is_blocked = row.getIsBlocked();
    message.has_failed = row.getHasFailed();
  }
  for (const auto row : in.getFlight()) {
    FlightCall& call = group.flight.emplace_back();
    call.number = row.getNumber();
    call.what = TextOf(row.getWhat());
    ReadList(row.getArrivedUs(), call.arrived_us);
    call.matched_us = row.getMatchedUs();
    call.failure = TextOf(row.getFailure());
  }
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::ProcessGroupRows(Rows<wire::SnapshotGroup> rows) {
  ProcessGroups& groups = machine_->process_groups_;
  for (const auto in : rows) {
    ProcessGroupEntry& group = groups.groups_[in.getId()];
    group.id = in.getId();
    group.tenant = TextOf(in.getTenant());
    group.key = TextOf(in.getKey());
    TESSERA_RETURN_IF_ERROR(ReadGroup(in, group));
    if (in.getIsNamed()) groups.by_key_[{group.tenant, group.key}] = group.id;
  }
  return absl::OkStatus();
}

}  // namespace tessera
