#include "server/coordinator/rpc/snapshot_decoder.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include <capnp/serialize-packed.h>
#include <kj/io.h>
#include <xxhash.h>

#include "schemas/codec/values.h"
#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/journal.h"
#include "server/coordinator/rpc/record_codec.h"
#include "server/coordinator/rpc/snapshot_pieces.h"
#include "server/coordinator/rpc/tenants_codec.h"
#include "server/plan/rpc/instance_codec.h"

namespace tessera {
namespace {

constexpr capnp::ReaderOptions kReaderOptions{UINT64_MAX >> 4, 64};  // checksums say that we wrote it

}  // namespace

absl::Status NotAsWritten(std::string_view what) {
  return absl::DataLossError(StrCat("a row names a ", what, " that is not there"));
}

absl::StatusOr<Snapshot::Loaded> Snapshot::Load(absl::Span<const std::byte> bytes) {
  Decoder decoder;
  size_t at = 0;
  const auto broken = [&](std::string_view why) {
    return absl::DataLossError(StrCat("snapshot: at byte ", at, " of ", bytes.size(), ": ", why));
  };
  while (!decoder.is_whole()) {
    uint64_t head[2] = {0, 0};
    if (bytes.size() - at < sizeof(head)) return broken("it ends before its last part");
    std::memcpy(head, bytes.data() + at, sizeof(head));
    if (head[0] > bytes.size() - at - sizeof(head)) return broken("it ends in the middle of a part");
    const auto* const begin = reinterpret_cast<const kj::byte*>(bytes.data() + at + sizeof(head));
    if (XXH3_64bits(begin, head[0]) != head[1]) return broken("this is not what was written there");
    absl::Status status;
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&]() {
                   kj::ArrayInputStream in(kj::arrayPtr(begin, head[0]));
                   capnp::PackedMessageReader message(in, kReaderOptions);
                   status = decoder.Take(message.getRoot<wire::SnapshotPart>());
                 })) {
      return broken(exception->getDescription().cStr());
    }
    if (!status.ok()) return WithMessage(status, std::string(broken(StdView(status.message())).message()));
    at += sizeof(head) + head[0];
  }
  if (at != bytes.size()) return broken("something is behind its last part");
  TESSERA_RETURN_IF_ERROR(decoder.Finish());
  return decoder.Result();
}

absl::Status Snapshot::Decoder::Take(Part::Reader part) {
  if (part.isHeader() != (parts_ == 0)) return absl::DataLossError("it does not begin with its header");
  if (part.isEnd()) {
    is_whole_ = part.getEnd() == parts_;
    return is_whole_ ? absl::OkStatus() : absl::DataLossError(StrCat(parts_, " parts are there of ", part.getEnd()));
  }
  ++parts_;
  if (part.isHeader()) return Header(part.getHeader());
  return TakeTable(part);
}

absl::Status Snapshot::Decoder::TakeTable(Part::Reader part) {
  switch (part.which()) {
    case Part::NUMBERS: return Numbers(part.getNumbers());
    case Part::TENANTS: return Tenants(part.getTenants());
    case Part::LISTED_TENANTS:
      for (const auto name : part.getListedTenants()) machine_->tenants_.listed_[TextOf(name)] = true;
      machine_->tenants_.Recount();
      return absl::OkStatus();
    case Part::WORKERS: return Workers(part.getWorkers());
    case Part::JOIN_TOKENS: return JoinTokens(part.getJoinTokens());
    case Part::LAYOUTS: return Layouts(part.getLayouts());
    case Part::GROUPS: return Groups(part.getGroups());
    case Part::MEASURED: return Measured(part.getMeasured());
    case Part::BUFFERS: return Buffers(part.getBuffers());
    case Part::TOUCHED: return Touched(part.getTouched());
    case Part::TENSORS: return Tensors(part.getTensors());
    case Part::SESSION_LINES: return SessionLines(part.getSessionLines());
    case Part::WORKER_LINES: return WorkerLines(part.getWorkerLines());
    default: return TakeWork(part);
  }
}

absl::Status Snapshot::Decoder::TakeWork(Part::Reader part) {
  switch (part.which()) {
    case Part::SESSIONS: return Sessions(part.getSessions());
    case Part::HELD_TENSORS: return Held(part.getHeldTensors());
    case Part::QUEUED: return Queued(part.getQueued());
    case Part::PLANS: return Plans(part.getPlans());
    case Part::OPS: return Ops(part.getOps());
    case Part::TICKETS: return Tickets(part.getTickets());
    case Part::FREED: return Freed(part.getFreed());
    case Part::TURNS: return Turns(part.getTurns());
    case Part::LOSSES: return Losses(part.getLosses());
    case Part::SWEEP:
      machine_->long_work_.sweep = LossSweep{SessionId(part.getSweep().getSession()),
                                             HandleId(part.getSweep().getNext()), part.getSweep().getEndLoss()};
      return absl::OkStatus();
    case Part::GIVEN_UP: return GivenUp(part.getGivenUp());
    case Part::PUBLICATIONS: return Publications(part.getPublications());
    case Part::PUBLISHERS: return Publishers(part.getPublishers());
    case Part::PROCESS_GROUPS: return ProcessGroupRows(part.getProcessGroups());
    default: return absl::DataLossError(StrCat("a part of an unknown kind, ", static_cast<int>(part.which())));
  }
}

absl::Status Snapshot::Decoder::Header(wire::SnapshotHeader::Reader in) {
  TESSERA_RETURN_IF_ERROR(CheckFileVersion("it", in.getVersion(), kOldestSnapshotVersion, kSnapshotVersion));
  core_ = std::make_unique<Core>(ConfigFromJson(TextOf(in.getConfig())), nullptr);
  machine_ = &core_->machine_;
  place_ = {in.getSegment(), in.getEvents(), in.getVersion()};
  core_->events_ = place_.events;
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::Numbers(wire::SnapshotNumbers::Reader in) {
  StateMachine& m = *machine_;
  core_->now_us_ = m.now_us_ = in.getNowUs();
  m.given_ = {in.getEpoch(), in.getSession(), in.getConnection(), in.getIncarnation()};
  m.joins_ = in.getJoins();
  m.has_lost_ = in.getHasLost();
  m.rejoined_ = in.getRejoined();
  m.has_more_ = in.getHasMore();
  m.long_work_.is_seen = in.getLossesAreSeen();
  m.closed_windows_ = in.getClosedWindows();
  m.next_ordinal_ = in.getNextOrdinal();
  m.next_template_ = in.getNextTemplate();
  m.next_ticket_ = in.getNextTicket();
  m.process_groups_.next_ = in.getNextGroup();
  for (Topology& topology : m.topologies_) {
    topology.version = in.getTopologyVersion();
    ReadList(in.getHosts(), topology.host_of_worker);
  }
  core_->peer_key_ = in.getPeerKey();
  m.plans_.hits_ = in.getPlanHits();
  m.plans_.misses_ = in.getPlanMisses();
  m.spills_.next_file = in.getNextSpillFile();
  m.spills_.turn = SessionId(in.getSpillTurn());
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::Tenants(Rows<wire::SnapshotTenant> rows) {
  for (const auto in : rows) {
    TenantEntry& tenant = machine_->tenants_.Of(TextOf(in.getLimits().getName()));
    tenant.limits = DecodeTenantLimits(in.getLimits());
    tenant.is_removed = in.getIsRemoved();
    tenant.sessions = in.getSessions();
    tenant.device_ns = in.getDeviceNs();
    tenant.spilled_bytes = in.getSpilledBytes();
    tenant.share.level_ticks_ = in.getShareTicks();
    tenant.share.at_us_ = in.getShareAtUs();
    ReadList(in.getUsedBytes(), tenant.used_bytes);
  }
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::JoinTokens(Rows<wire::SnapshotJoinToken> rows) {
  for (const auto in : rows) {
    std::set<WorkerIndex>& used_for = machine_->join_token_uses_[TextOf(in.getId())];
    for (const int32_t worker : in.getWorkers()) used_for.insert(WorkerIndex(worker));
  }
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::Workers(Rows<wire::SnapshotWorker> rows) {
  for (const auto in : rows) {
    TESSERA_ASSIGN_OR_RETURN(Event joined, DecodeEvent(in.getJoined()));
    const auto* info = std::get_if<WorkerJoinedEvent>(&joined);
    if (info == nullptr || in.getState() > static_cast<uint8_t>(WorkerState::kDead) ||
        in.getLanes().size() != kLaneCount) {
      return NotAsWritten("worker");
    }
    WorkerEntry& worker = machine_->workers_[info->worker];
    worker.info = *info;
    worker.state = static_cast<WorkerState>(in.getState());
    worker.last_heard_us = in.getLastHeardUs();
    worker.last_kill_us = in.getLastKillUs();
    for (unsigned i = 0; i < kLaneCount; ++i) {
      const auto lane = in.getLanes()[i];
      worker.windows.lanes[i] = {lane.getOutstanding(), lane.getOutstandingUs(), lane.getFull()};
    }
    worker.received_bytes = in.getReceivedBytes();
    worker.working_since_us = in.getWorkingSinceUs();
    worker.at_work_us = in.getAtWorkUs();
    worker.probe = Ordinal(in.getProbe());
    worker.probed_us = in.getProbedUs();
    worker.stalled = TextOf(in.getStalled());
    worker.lost_reason = TextOf(in.getLostReason());
    worker.done_us = in.getDoneUs();
    worker.join_number = in.getJoinNumber();
    worker.first_ordinal = Ordinal(in.getFirstOrdinal());
    if (in.getAdmits() > static_cast<uint8_t>(Admits::kNobody)) return NotAsWritten("worker");
    worker.admits = static_cast<Admits>(in.getAdmits());
    worker.newest_admitted = SessionId(in.getNewestAdmitted());
    worker.spilled_bytes = in.getSpilledBytes();
    worker.spilled_to_host_bytes = in.getSpilledToHostBytes();
    worker.spill_failed_us = in.getSpillFailedUs();
    if (worker.state != WorkerState::kDead) machine_->memory_.AddWorker(info->worker, info->memory_bytes);
  }
  return absl::OkStatus();
}

// ---- what is numbered ---------------------------------------------------------------------------

absl::Status Snapshot::Decoder::Layouts(Rows<wire::SnapshotLayout> rows) {
  for (const auto in : rows) {
    TESSERA_ASSIGN_OR_RETURN(const TensorSpec spec, DecodeTensorSpec(in.getSpec()));
    Strides strides;
    ReadList(in.getStrides(), strides);
    layouts_.push_back(machine_->layouts_.Of(spec, strides));
  }
  return absl::OkStatus();
}

absl::StatusOr<SharedLayout> Snapshot::Decoder::LayoutAt(uint32_t number) const {
  if (number == 0) return UnknownLayout();
  return At(layouts_, number, "layout");
}

absl::Status Snapshot::Decoder::Groups(capnp::List<capnp::List<int32_t>>::Reader rows) {
  for (const auto in : rows) {
    std::vector<WorkerIndex> workers;
    ReadIds(in, workers);
    groups_.push_back(std::make_shared<const std::vector<WorkerIndex>>(std::move(workers)));
  }
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::Measured(Rows<wire::SnapshotMeasured> rows) {
  for (const auto in : rows) {
    measured_.push_back(std::make_shared<MeasuredCost>(MeasuredCost{in.getTicks(), in.getUnderWay()}));
  }
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::ReadHistory(wire::SnapshotHistory::Reader in, History& history) const {
  const auto read = [this](Rows<wire::SnapshotAccess> rows, auto& list) -> absl::Status {
    for (const auto row : rows) {
      TESSERA_ASSIGN_OR_RETURN(const WorkerGroup workers, At(groups_, row.getGroup(), "group"));
      if (workers == nullptr) return NotAsWritten("group");
      list.push_back({row.getStream(), Ordinal(row.getOrdinal()), workers});
    }
    return absl::OkStatus();
  };
  TESSERA_RETURN_IF_ERROR(read(in.getWrites(), history.writes_));
  TESSERA_RETURN_IF_ERROR(read(in.getReads(), history.reads_));
  return read(in.getPeerReads(), history.peer_reads_);
}

absl::Status Snapshot::Decoder::Buffers(Rows<wire::SnapshotBuffer> rows) {
  StateMachine& m = *machine_;
  for (const auto in : rows) {
    BufferPointer buffer = m.buffers_.Add();
    TESSERA_ASSIGN_OR_RETURN(buffer->workers, At(groups_, in.getGroup(), "group"));
    if (buffer->workers == nullptr) return NotAsWritten("group");
    if (in.getTenant() > m.tenants_.all().size()) return NotAsWritten("tenant");
    if (in.getTenant() > 0) buffer->tenant = &m.tenants_.at(static_cast<int32_t>(in.getTenant() - 1));
    buffer->offset_bytes = in.getOffsetBytes();
    buffer->bytes = in.getBytes();
    buffer->owner = SessionId(in.getOwner());
    buffer->born = in.getBorn();
    buffer->is_published = in.getIsPublished();
    if (in.hasHistory()) {
      buffer->history = m.histories_.Add();
      TESSERA_RETURN_IF_ERROR(ReadHistory(in.getHistory(), *buffer->history));
    }
    if (in.hasSpill()) TESSERA_RETURN_IF_ERROR(ReadSpill(in.getSpill(), buffer));
    buffers_.push_back(std::move(buffer));
  }
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::ReadSpill(wire::SnapshotSpill::Reader in, const BufferPointer& buffer) {
  if (in.getPlace() > static_cast<uint8_t>(SpillPlace::kComing)) return NotAsWritten("place");
  buffer->spill_slot = machine_->spills_.Add(buffer.number());
  SpillEntry& entry = machine_->spills_.at(buffer->spill_slot);
  entry.place = static_cast<SpillPlace>(in.getPlace());
  entry.file = in.getFile();
  entry.last_use = in.getLastUse();
  entry.wanted_by = SessionId(in.getWantedBy());
  if (in.hasFailure()) entry.failure = DecodeStatus(in.getFailure());
  for (const int32_t worker : in.getInHostMemory()) {
    if (!machine_->workers_.contains(WorkerIndex(worker))) return NotAsWritten("inHostMemory");
    entry.in_host_memory.emplace_back(worker);
  }
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::Touched(capnp::List<uint32_t>::Reader rows) {
  for (const uint32_t number : rows) {
    TESSERA_ASSIGN_OR_RETURN(const BufferPointer buffer, At(buffers_, number, "buffer"));
    machine_->touched_.push_back(buffer.number());
  }
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::Tensors(Rows<wire::SnapshotTensor> rows) {
  for (const auto in : rows) {
    TensorPointer tensor = machine_->tensors_.Add();
    TESSERA_ASSIGN_OR_RETURN(tensor->layout, LayoutAt(in.getLayout()));
    TESSERA_ASSIGN_OR_RETURN(tensor->buffer, At(buffers_, in.getBuffer(), "buffer"));
    tensor->session = SessionId(in.getSession());
    tensor->handle = HandleId(in.getHandle());
    tensor->offset_bytes = in.getOffsetBytes();
    tensor->producer = Ordinal(in.getProducer());
    tensor->uploading = in.getIsUploading();
    tensor->unmatched = in.getIsUnmatched();
    // Tensors of no session are a window's, or published.
    if (tensor->session != SessionId() && tensor->buffer && tensor->buffer->spill_slot != 0) {
      machine_->spills_.at(tensor->buffer->spill_slot).tensors.push_back(tensor.number());
    }
    if (in.hasStatus()) tensor->status = DecodeStatus(in.getStatus());
    if (in.hasFormer()) {
      TESSERA_ASSIGN_OR_RETURN(Mesh mesh, DecodeMesh(in.getFormer().getMesh()));
      tensor->former = std::make_unique<FormerMesh>(FormerMesh{std::move(mesh), {}});
      ReadIds(in.getFormer().getLost(), tensor->former->lost);
    }
    // Its session's entry comes with its other rows.
    if (in.getIsHeld()) machine_->sessions_[tensor->session].tensors.emplace(tensor->handle, tensor);
    tensors_.push_back(std::move(tensor));
  }
  return absl::OkStatus();
}

// A lost worker's ranges that were given back went with it (StateMachine::GiveBack).
void Snapshot::Decoder::RestoreMemory() {
  for (const BufferPointer& buffer : buffers_) {
    const uint32_t slot = buffer->spill_slot;
    if (slot != 0 && machine_->spills_.at(slot).place == SpillPlace::kAway) continue;
    std::vector<WorkerIndex> owners = *buffer->workers;
    std::erase_if(owners, [&](WorkerIndex worker) {
      const auto found = machine_->workers_.find(worker);
      return found == machine_->workers_.end() || found->second.join_number > buffer->born;
    });
    machine_->memory_.Restore(owners, buffer->offset_bytes, buffer->bytes);
  }
  machine_->memory_.MergeClasses();
}

absl::Status Snapshot::Decoder::Finish() {
  RestoreMemory();
  // Their holders are there: the numbers hold them no more.
  tensors_.clear();
  buffers_.clear();
  core_->is_recovered_ = true;
  return absl::OkStatus();
}

// ---- outboxes -----------------------------------------------------------------------------------

absl::Status Snapshot::Decoder::SessionLines(Rows<wire::SnapshotSessionLine> rows) {
  for (const auto in : rows) {
    Core::SessionLine& line = core_->sessions_[SessionId(in.getSession())];
    line.logged = in.getLogged();
    for (const auto event : in.getEvents()) {
      TESSERA_ASSIGN_OR_RETURN(SessionEvent decoded, DecodeSessionEvent(event));
      line.outbox.Add(std::move(decoded));
    }
  }
  return absl::OkStatus();
}

absl::Status Snapshot::Decoder::WorkerLines(Rows<wire::SnapshotWorkerLine> rows) {
  for (const auto in : rows) {
    Core::WorkerLine& line = core_->workers_[WorkerIndex(in.getWorker())];
    line.incarnation = in.getIncarnation();
    line.reports = in.getReports();
    line.epoch = in.getEpoch();
    line.outbox.first_ = in.getFirst();
    for (const auto message : in.getMessages()) {
      TESSERA_ASSIGN_OR_RETURN(WorkerMessage decoded, DecodeWorkerMessage(message));
      if (const auto* define = std::get_if<DefineTemplate>(&decoded)) TESSERA_RETURN_IF_ERROR(define->plan.status());
      line.outbox.Add(std::make_shared<const WorkerMessage>(std::move(decoded)));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
