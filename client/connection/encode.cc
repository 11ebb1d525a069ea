#include "client/connection/encode.h"

#include <unistd.h>

#include <utility>

#include "schemas/codec/values.h"
#include "schemas/types/status_macros.h"

namespace tessera {
namespace {

std::vector<std::string> TextsOf(capnp::List<capnp::Text>::Reader texts) {
  std::vector<std::string> out;
  for (capnp::Text::Reader text : texts) out.push_back(TextOf(text));
  return out;
}

std::vector<int64_t> IntegersOf(capnp::List<int64_t>::Reader values) {
  std::vector<int64_t> out;
  out.reserve(values.size());
  for (int64_t value : values) out.push_back(value);
  return out;
}

void EncodeCall(const Record& record, wire::Call::Builder builder) {
  EncodeOpCall(*record.call, builder.initCall());
  builder.setCalledAs(static_cast<uint16_t>(record.called_as));
  const unsigned operand_count = static_cast<unsigned>(record.operands.size());
  auto operands = builder.initOperands(operand_count);
  for (unsigned i = 0; i < operand_count; ++i) {
    const RecordOperand& operand = record.operands[i];
    if (operand.kind == RecordOperand::Kind::kHandle) {
      operands[i].setHandle(operand.handle);
    } else {
      EncodeScalar(operand.scalar, operands[i].initScalar());
    }
    operands[i].setLastUse(operand.last_use);
  }
  auto results = builder.initResults(1 + static_cast<unsigned>(record.more_results.size()));
  results.set(0, record.handle);
  for (unsigned i = 1; i < results.size(); ++i) results.set(i, record.more_results[i - 1]);
}

void EncodeHandles(const std::vector<uint64_t>& handles, capnp::List<uint64_t>::Builder list) {
  for (unsigned i = 0; i < list.size(); ++i) list.set(i, handles[i]);
}

void EncodeCollective(const Record& record, wire::Collective::Builder call) {
  const GroupRecord& group = *record.group;
  call.setRequest(record.request);
  call.setGroup(group.group);
  call.setKind(static_cast<uint8_t>(group.kind));
  call.setReduceOp(static_cast<uint8_t>(group.op));
  call.setPeer(group.peer);
  call.setTag(group.tag);
  call.setOperand(group.operand);
  call.setTimeoutUs(group.timeout_us);
  call.setNumber(group.number);
  call.setWaitedUs(group.waited_us);
  if (group.on_devices) {
    call.setOnDevices(true);
    call.setDtype(static_cast<uint8_t>(group.dtype));
    call.setElements(group.elements);
  }
  if (record.handle == 0) return;
  call.setResult(record.handle);
  EncodeTensorSpec(*record.spec, call.initResultSpec());
}

void EncodePublish(const Record& record, wire::Publish::Builder publish) {
  const PublicationRecord& publication = *record.publication;
  publish.setRequest(record.request);
  publish.setName(publication.name.c_str());
  auto tensors = publish.initTensors(static_cast<unsigned>(publication.tensors.size()));
  for (unsigned i = 0; i < tensors.size(); ++i) {
    tensors[i].setName(publication.tensors[i].first.c_str());
    tensors[i].setHandle(publication.tensors[i].second);
  }
  auto readers = publish.initReaders(static_cast<unsigned>(publication.readers.size()));
  for (unsigned i = 0; i < readers.size(); ++i) readers.set(i, publication.readers[i].c_str());
}

void EncodeRecord(const Record& record, wire::Record::Builder builder) {
  switch (record.kind) {
    case Record::Kind::kCall: EncodeCall(record, builder.initCall()); return;
    case Record::Kind::kUpload: {
      auto upload = builder.initUpload();
      upload.setRequest(record.request);
      upload.setResult(record.handle);
      EncodeTensorSpec(*record.spec, upload.initSpec());
      auto others = upload.initOthers(static_cast<unsigned>(record.more_results.size()));
      for (unsigned i = 0; i < others.size(); ++i) {
        others[i].setResult(record.more_results[i]);
        EncodeTensorSpec(*record.more_specs[i], others[i].initSpec());
      }
      if (!record.bytes.empty()) {
        upload.setBytes({reinterpret_cast<const capnp::byte*>(record.bytes.data()), record.bytes.size()});
      }
      return;
    }
    case Record::Kind::kDownload: {
      auto download = builder.initDownload();
      download.setRequest(record.request);
      download.setHandle(record.handle);
      download.setAllowInline(record.allow_inline);
      return;
    }
    case Record::Kind::kWatch:
    case Record::Kind::kCommEnd: {
      auto watch = record.kind == Record::Kind::kWatch ? builder.initWatch() : builder.initCommEnd();
      watch.setRequest(record.request);
      watch.setHandle(record.handle);
      return;
    }
    case Record::Kind::kDrop:
      EncodeHandles(record.drops, builder.initDrop(static_cast<unsigned>(record.drops.size())));
      return;
    case Record::Kind::kCommBegin: builder.setCommBegin(record.handle); return;
    case Record::Kind::kCancel:
      if (record.request != 0) return builder.setCancel(record.request);
      EncodeHandles(record.drops, builder.initCancelCalls(static_cast<unsigned>(record.drops.size())));
      return;
    case Record::Kind::kRelease:
      builder.setRelease(record.request);
      if (!record.reason.ok()) EncodeStatus(record.reason, builder.initReason());
      return;
    case Record::Kind::kName: {
      auto naming = builder.initName();
      naming.setHandle(record.handle);
      naming.setName(record.name.c_str());
      return;
    }
    case Record::Kind::kJoinGroup: {
      auto join = builder.initJoinGroup();
      join.setRequest(record.request);
      join.setKey(record.group->key.c_str());
      join.setSize(record.group->size);
      join.setRank(record.group->rank);
      join.setWorker(record.group->worker);
      join.setProcess(record.group->process.c_str());
      join.setTimeoutUs(record.group->timeout_us);
      join.setMeeting(record.group->meeting.c_str());
      return;
    }
    case Record::Kind::kCollective: EncodeCollective(record, builder.initCollective()); return;
    case Record::Kind::kLeaveGroup: builder.setLeaveGroup(record.group->group); return;
    case Record::Kind::kPublish: EncodePublish(record, builder.initPublish()); return;
    case Record::Kind::kUnpublish: {
      auto unpublish = builder.initUnpublish();
      unpublish.setRequest(record.request);
      unpublish.setName(record.publication->name.c_str());
      return;
    }
    case Record::Kind::kAttach: {
      auto attach = builder.initAttach();
      attach.setRequest(record.request);
      attach.setName(record.publication->name.c_str());
      attach.setFirstResult(record.handle);
      return;
    }
    case Record::Kind::kListPublished: {
      auto list = builder.initListPublished();
      list.setRequest(record.request);
      list.setAfter(record.publication->name.c_str());
      return;
    }
    case Record::Kind::kCancelled:
      EncodeHandles(record.drops, builder.initCancelled(static_cast<unsigned>(record.drops.size())));
      return;
  }
}

WorkerReport DecodeWorker(wire::WorkerInfo::Reader reader) {
  WorkerReport worker;
  worker.index = reader.getIndex();
  worker.incarnation = reader.getIncarnation();
  worker.host = TextOf(reader.getHost());
  worker.data_address = TextOf(reader.getDataAddress());
  worker.remote_address = TextOf(reader.getRemoteAddress());
  worker.memory_bytes = reader.getMemoryBytes();
  worker.used_bytes = reader.getUsedBytes();
  worker.spilled_bytes = reader.getSpilledBytes();
  worker.spilled_to_host_bytes = reader.getSpilledToHostBytes();
  worker.spill_bytes = reader.getSpillBytes();
  worker.state = static_cast<WorkerState>(reader.getState());
  worker.pid = reader.getPid();
  worker.device = ParseDeviceKind(TextOf(reader.getDevice())).value_or(DeviceKind::kCpu);
  worker.received_bytes = reader.getReceivedBytes();
  worker.outstanding = reader.getOutstanding();
  worker.activity = reader.getActivity();
  worker.is_cordoned = reader.getCordoned();
  worker.is_draining = reader.getDraining();
  return worker;
}

}  // namespace

std::string_view ToText(SessionState state) {
  switch (state) {
    case SessionState::kOpen: return "open";
    case SessionState::kReconnecting: return "reconnecting";
    case SessionState::kClosed: return "closed";
  }
  return "unknown";
}

std::string_view ToText(WorkerState state) {
  switch (state) {
    case WorkerState::kAlive: return "alive";
    case WorkerState::kSuspect: return "suspect";
    case WorkerState::kDead: return "dead";
  }
  return "unknown";
}

std::string_view ToText(TensorState state) {
  switch (state) {
    case TensorState::kQueued: return "queued";
    case TensorState::kIssued: return "issued";
    case TensorState::kReady: return "ready";
    case TensorState::kFailed: return "failed";
    case TensorState::kUploading: return "uploading";
    case TensorState::kSpilled: return "spilled";
    case TensorState::kSpilledToHost: return "spilled_to_host";
  }
  return "unknown";
}

void EncodeRecords(absl::Span<const Record> records, capnp::List<wire::Record>::Builder builder) {
  for (size_t i = 0; i < records.size(); ++i) EncodeRecord(records[i], builder[static_cast<unsigned>(i)]);
}

void EncodeHello(const ConnectionOptions& options, const std::optional<ResumeToken>& from, Returning returning,
                 wire::ClientHello::Builder builder) {
  builder.setProtocolVersion(wire::PROTOCOL_VERSION);
  builder.setToken(options.token.c_str());
  builder.setTenant(options.tenant.c_str());
  builder.setClient(options.client.c_str());
  builder.setPid(getpid());
  builder.setLeaseS(options.lease_s);
  builder.setName(options.name.c_str());
  if (from.has_value()) {
    auto resume = builder.initResume();
    resume.setSessionId(from->session_id);
    resume.setSecret(from->secret);
    resume.setLastEvent(from->last_event);
    resume.setGoesOn(returning == Returning::kSameClient);
  }
}

void EncodeHeldMemory(const HeldMemory& held, wire::HeldMemory::Builder builder) {
  const absl::Span<const WorkerIndex> workers = held.mesh.workers();
  auto list = builder.initWorkers(static_cast<unsigned>(workers.size()));
  for (unsigned i = 0; i < list.size(); ++i) list.set(i, workers[i].value);
  builder.setBytes(held.bytes);
}

void EncodeExplainOperand(const ExplainOperand& explained, wire::ExplainOperand::Builder builder) {
  const RecordOperand& operand = explained.operand;
  if (explained.spec != nullptr) {
    EncodeTensorSpec(*explained.spec, builder.initSpec());
    auto strides = builder.initStrides(static_cast<unsigned>(explained.strides.size()));
    for (unsigned i = 0; i < strides.size(); ++i) strides.set(i, explained.strides[i]);
  } else if (operand.kind == RecordOperand::Kind::kHandle) {
    builder.setHandle(operand.handle);
  } else {
    EncodeScalar(operand.scalar, builder.initScalar());
  }
}

// An event with a spec that can't be decoded has no publication.
static absl::Status DecodePublications(wire::Publications::Reader reader, ClientEvent& event) {
  event.request = reader.getRequest();
  event.has_more = reader.getHasMore();
  for (auto item : reader.getList()) {
    PublicationReport& one = event.publications.emplace_back();
    one.name = TextOf(item.getName());
    one.version = item.getVersion();
    one.readers = TextsOf(item.getReaders());
    one.tensor_count = item.getTensorCount();
    one.bytes = item.getBytes();
    for (auto tensor : item.getTensors()) {
      TESSERA_ASSIGN_OR_RETURN(TensorSpec spec, DecodeTensorSpec(tensor.getSpec()));
      one.tensors.emplace_back(TextOf(tensor.getName()), std::move(spec));
    }
  }
  event.handle = event.publications.empty() ? 0 : reader.getFirstResult();
  return absl::OkStatus();
}

std::optional<ClientEvent> DecodeEvent(wire::Event::Reader reader) {
  ClientEvent event;
  switch (reader.which()) {
    case wire::Event::SETTLED:
      event.kind = ClientEvent::Kind::kSettled;
      event.request = reader.getSettled().getRequest();
      event.status = DecodeStatus(reader.getSettled().getStatus());
      return event;
    case wire::Event::TICKET:
      event.kind = ClientEvent::Kind::kTicket;
      event.request = reader.getTicket().getRequest();
      event.ticket = reader.getTicket().getTicket();
      event.secret = reader.getTicket().getSecret();
      return event;
    case wire::Event::INLINE_VALUE: {
      event.kind = ClientEvent::Kind::kInlineValue;
      event.request = reader.getInlineValue().getRequest();
      auto bytes = reader.getInlineValue().getBytes();
      event.bytes.assign(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
      return event;
    }
    case wire::Event::COMM: {
      auto comm = reader.getComm();
      event.kind = ClientEvent::Kind::kComm;
      event.request = comm.getRequest();
      event.comm.received_bytes = IntegersOf(comm.getReceivedBytes());
      event.comm.sent_bytes = IntegersOf(comm.getSentBytes());
      event.comm.uploaded_bytes = IntegersOf(comm.getUploadedBytes());
      event.comm.downloaded_bytes = IntegersOf(comm.getDownloadedBytes());
      for (auto count : comm.getCollectives()) {
        event.comm.collective_counts[TextOf(count.getName())] += count.getCount();
      }
      event.comm.ops = {comm.getFirstOp(), comm.getEndOp()};
      return event;
    }
    case wire::Event::FAILED:
      event.kind = ClientEvent::Kind::kFailed;
      event.handle = reader.getFailed().getHandle();
      event.status = DecodeStatus(reader.getFailed().getStatus());
      return event;
    case wire::Event::WORKER_LOST:
      event.kind = ClientEvent::Kind::kWorkerLost;
      event.worker = reader.getWorkerLost().getWorker();
      event.reason = TextOf(reader.getWorkerLost().getReason());
      return event;
    case wire::Event::UPLOAD_DONE:
      event.kind = ClientEvent::Kind::kUploadDone;
      event.request = reader.getUploadDone();
      return event;
    case wire::Event::WORKER_JOINED:
      event.kind = ClientEvent::Kind::kWorkerJoined;
      event.worker = reader.getWorkerJoined().getWorker();
      event.device = ParseDeviceKind(TextOf(reader.getWorkerJoined().getDevice())).value_or(DeviceKind::kCpu);
      return event;
    case wire::Event::GROUP_JOINED:
      event.kind = ClientEvent::Kind::kGroupJoined;
      event.request = reader.getGroupJoined().getRequest();
      event.group = reader.getGroupJoined().getGroup();
      for (auto member : reader.getGroupJoined().getMembers()) {
        event.members.push_back({member.getWorker(), TextOf(member.getProcess()), TextOf(member.getMeeting())});
      }
      return event;
    case wire::Event::MATCHED:
      event.kind = ClientEvent::Kind::kMatched;
      event.request = reader.getMatched().getRequest();
      event.source = reader.getMatched().getSource();
      return event;
    case wire::Event::PUBLICATIONS:
      event.kind = ClientEvent::Kind::kPublications;
      event.status = DecodePublications(reader.getPublications(), event);
      return event;
    case wire::Event::BATCH_DONE: return std::nullopt;  // the connection takes it itself
    case wire::Event::SPEC_KNOWN: return std::nullopt;  // reserved
  }
  return std::nullopt;
}

WelcomeReport DecodeWelcome(wire::Welcome::Reader reader) {
  WelcomeReport welcome;
  welcome.session_id = reader.getSessionId();
  welcome.secret = reader.getSecret();
  welcome.epoch = reader.getEpoch();
  welcome.connection = reader.getConnection();
  welcome.last_batch = reader.getLastBatch();
  welcome.lease_s = reader.getLeaseS();
  welcome.server_version = TextOf(reader.getServerVersion());
  welcome.server_pid = reader.getPid();
  welcome.max_inline_bytes = reader.getMaxInlineBytes();
  welcome.heartbeat_s = reader.getHeartbeatS();
  for (auto worker : reader.getWorkers()) welcome.workers.push_back(DecodeWorker(worker));
  return welcome;
}

absl::StatusOr<ClusterReport> DecodeClusterStatus(wire::ClusterStatus::Reader reader) {
  ClusterReport report;
  report.epoch = reader.getEpoch();
  report.uptime_s = reader.getUptimeS();
  for (auto worker : reader.getWorkers()) report.workers.push_back(DecodeWorker(worker));
  for (auto session : reader.getSessions()) {
    report.sessions.push_back({session.getId(), TextOf(session.getTenant()), TextOf(session.getClient()),
                               TextOf(session.getName()), session.getTensors(), session.getBytes(), session.getQueued(),
                               session.getConnected(), session.getAwaitsClient(), session.getAwaitsRanks(),
                               session.getSpilledBytes()});
  }
  for (auto tensor : reader.getTensors()) {
    TensorReport out;
    out.handle = tensor.getHandle();
    TESSERA_ASSIGN_OR_RETURN(out.spec, DecodeTensorSpec(tensor.getSpec()));
    out.bytes_per_worker = tensor.getBytesPerWorker();
    out.state = static_cast<TensorState>(tensor.getState());
    out.status = DecodeStatus(tensor.getStatus());
    out.name = TextOf(tensor.getName());
    report.tensors.push_back(std::move(out));
  }
  report.has_more_tensors = reader.getHasMoreTensors();
  report.next_ordinal = reader.getNextOrdinal();
  report.plans_cached = reader.getPlansCached();
  report.plan_hits = reader.getPlanHits();
  report.plan_misses = reader.getPlanMisses();
  report.session_count = reader.getSessionCount();
  report.tensor_count = reader.getTensorCount();
  return report;
}

std::vector<TenantReport> DecodeTenants(capnp::List<wire::TenantInfo>::Reader reader) {
  std::vector<TenantReport> tenants;
  for (auto item : reader) {
    const auto limits = item.getLimits();
    tenants.push_back({.name = TextOf(limits.getName()),
                       .weight = limits.getWeight(),
                       .guaranteed_bytes = limits.getGuaranteedBytes(),
                       .max_bytes = limits.getMaxBytes(),
                       .max_sessions = limits.getMaxSessions(),
                       .max_connections = limits.getMaxConnections(),
                       .max_queued_records = limits.getMaxQueuedRecords(),
                       .max_spilled_bytes = limits.getMaxSpilledBytes(),
                       .max_device_permille = limits.getDeviceSharePermille(),
                       .max_detached_bytes = limits.getMaxDetachedBytes(),
                       .lanes = limits.getLanes(),
                       .used_bytes = item.getUsedBytes(),
                       .spilled_bytes = item.getSpilledBytes(),
                       .sessions = item.getSessions(),
                       .connections = item.getConnections(),
                       .queued = item.getQueued(),
                       .device_seconds = item.getDeviceSeconds(),
                       .is_removed = item.getRemoved()});
  }
  return tenants;
}

DrainStep DecodeDrain(wire::DrainReport::Reader reader) {
  DrainStep step;
  step.phase = static_cast<DrainStep::Phase>(reader.getPhase());
  step.tensors = reader.getTensors();
  step.bytes = reader.getBytes();
  step.outstanding = reader.getOutstanding();
  step.why = TextOf(reader.getWhy());
  for (auto loss : reader.getLosses()) {
    step.losses.push_back(
        {loss.getSession(), TextOf(loss.getTenant()), TextOf(loss.getName()), loss.getTensors(), loss.getBytes()});
  }
  return step;
}

FlightReport DecodeFlightRecord(wire::FlightRecord::Reader reader) {
  const auto ago = [now_us = reader.getNowUs()](int64_t us) {
    return us < 0 ? -1.0 : static_cast<double>(now_us - us) * 1e-6;
  };
  FlightReport report;
  for (auto member : reader.getMembers()) {
    report.members.push_back(
        {TextOf(member.getProcess()), TextOf(member.getWhy()), member.getConnected(), member.getNextCall()});
  }
  for (auto item : reader.getCalls()) {
    FlightReport::Call& call = report.calls.emplace_back();
    call.number = item.getNumber();
    call.what = TextOf(item.getWhat());
    for (const int64_t us : item.getArrivedUs()) call.arrived_s.push_back(ago(us));
    call.matched_s = ago(item.getMatchedUs());
    call.failure = TextOf(item.getFailure());
  }
  return report;
}

ProfileReport DecodeProfile(wire::Profile::Reader reader) {
  ProfileReport profile;
  profile.ops.reserve(reader.getOps().size());
  for (auto item : reader.getOps()) {
    ProfiledOp& op = profile.ops.emplace_back();
    op.number = item.getNumber();
    op.name = TextOf(item.getName());
    op.segment = TextsOf(item.getSegment());
    op.output = TextOf(item.getOutput());
    op.predicted_us = item.getPredictedUs();
    op.failure = TextOf(item.getFailure());
    op.result = item.getResult();
    for (auto run : item.getRuns()) {
      op.runs.push_back({run.getWorker(), run.getStartedNs(), run.getEndedNs(), run.getWorkNs(), run.getReceivedBytes(),
                         run.getPushedBytes(), run.getTransferredBytes()});
    }
  }
  profile.forgotten_ops = reader.getForgottenOps();
  profile.ops_under_way = reader.getOpsUnderWay();
  for (auto clock : reader.getClocks()) profile.clocks.push_back({clock.getWorker(), clock.getErrorNs()});
  return profile;
}

absl::StatusOr<PlanReport> DecodePlanText(wire::PlanText::Reader reader) {
  PlanReport plan;
  plan.text = TextOf(reader.getText());
  plan.steps = TextsOf(reader.getSteps());
  plan.implicit = TextsOf(reader.getImplicit());
  plan.received_bytes = IntegersOf(reader.getReceivedBytes());
  plan.sent_bytes = IntegersOf(reader.getSentBytes());
  plan.peak_bytes = IntegersOf(reader.getPeakBytes());
  plan.predicted_seconds = reader.getPredictedSeconds();
  TESSERA_ASSIGN_OR_RETURN(plan.outputs.emplace_back(), DecodeTensorSpec(reader.getOutput()));
  for (unsigned i = 1; i < reader.getOutputs().size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(plan.outputs.emplace_back(), DecodeTensorSpec(reader.getOutputs()[i]));
  }
  for (unsigned i = 0; i < plan.outputs.size(); ++i) {
    if (i >= reader.getOutputStrides().size())
      return absl::InternalError("explain: an output came without its strides");
    TESSERA_ASSIGN_OR_RETURN(plan.output_strides.emplace_back(),
                             DecodeStrides(plan.outputs[i], reader.getOutputStrides()[i]));
  }
  if (reader.getOutputOperands().size() != plan.outputs.size() ||
      reader.getOutputBytes().size() != plan.outputs.size()) {
    return absl::InternalError("explain: an output came without its memory");
  }
  for (const int32_t operand : reader.getOutputOperands()) plan.output_operands.push_back(operand);
  for (const int64_t bytes : reader.getOutputBytes()) plan.output_bytes.push_back(bytes);
  for (const int32_t worker : reader.getWorkers()) plan.workers.emplace_back(worker);
  plan.grid = TextOf(reader.getGrid());
  plan.runners_up = TextsOf(reader.getRunnersUp());
  for (auto item : reader.getFlows()) {
    StepFlowsReport& step = plan.flows.emplace_back();
    step.title = TextOf(item.getTitle());
    step.is_exchange = item.getIsExchange();
    step.joins_last = item.getJoinsLast();
    for (const int32_t worker : item.getWorkers()) step.workers.emplace_back(worker);
    for (auto flow : item.getFlows()) {
      step.flows.push_back({WorkerIndex(flow.getFrom()), WorkerIndex(flow.getTo()), flow.getBytes()});
    }
  }
  return plan;
}

}  // namespace tessera
