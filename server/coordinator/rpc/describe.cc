#include "server/coordinator/rpc/describe.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "schemas/codec/values.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/step_lines.h"
#include "server/plan/cost.h"
#include "server/plan/flows.h"

namespace tessera {
namespace {

constexpr size_t kMaxTensorsListed = 1'000;  // docs/limits.md: max_tensors_listed
constexpr double kHeartbeatsOfSilence = 4;
constexpr size_t kMaxHeldResults = 10'000;  // docs/limits.md: max_held_results

wire::WorkerInfo::State StateOf(const WorkerEntry& worker) {
  switch (worker.state) {
    case WorkerState::kAlive: return wire::WorkerInfo::State::ALIVE;
    case WorkerState::kSuspect: return wire::WorkerInfo::State::SUSPECT;
    case WorkerState::kDead: break;
  }
  return wire::WorkerInfo::State::DEAD;
}

// As sessions that begin see them, or the `asking` one does. `tenant`: whose memory on them is told; null: that of all.
void DescribeWorkers(const Hub& hub, const TenantEntry* tenant, capnp::List<wire::WorkerInfo>::Builder list,
                     std::optional<SessionId> asking = std::nullopt) {
  const StateMachine& machine = hub.machine();
  unsigned i = 0;
  for (const auto& [index, worker] : machine.workers()) {
    auto info = list[i++];
    info.setIndex(index.value);
    info.setIncarnation(worker.info.incarnation);
    info.setHost(worker.info.host.c_str());
    info.setDataAddress(worker.info.data_address.c_str());
    info.setMemoryBytes(worker.info.memory_bytes);
    info.setUsedBytes(tenant == nullptr ? machine.memory().UsedBytes(index) : tenant->UsedOn(index));
    info.setState(StateOf(worker));
    info.setPid(worker.info.pid);
    info.setDevice(std::string(ToText(worker.info.device)).c_str());
    info.setReceivedBytes(worker.received_bytes);
    info.setOutstanding(worker.windows.outstanding());
    info.setActivity(hub.ActivityOf(index));
    info.setRemoteAddress(worker.info.remote_address.c_str());
    const bool is_cordoned = worker.newest_admitted != SessionId();
    info.setCordoned(is_cordoned && (!asking.has_value() || asking->value > worker.newest_admitted.value));
    info.setDraining(worker.admits == Admits::kNobody);
    info.setSpilledBytes(tenant == nullptr ? worker.spilled_bytes
                                           : std::min(worker.spilled_bytes, tenant->spilled_bytes));
    info.setSpillBytes(worker.info.spill_bytes);
    info.setSpilledToHostBytes(std::min<int64_t>(worker.spilled_to_host_bytes, info.getSpilledBytes()));
  }
}

// The tenant whose a session sees; null: it is an admin's, and sees all.
const TenantEntry* SeenBy(const SessionEntry& session) {
  return session.info.role == Role::kAdmin ? nullptr : session.tenant;
}

wire::TensorInfo::State StateOf(const StateMachine& machine, const TensorEntry& tensor) {
  if (!tensor.status.ok()) return wire::TensorInfo::State::FAILED;
  if (tensor.uploading) return wire::TensorInfo::State::UPLOADING;
  if (tensor.unmatched) return wire::TensorInfo::State::QUEUED;
  if (machine.IsInHostMemory(tensor)) return wire::TensorInfo::State::SPILLED_TO_HOST;
  if (!IsInMemory(machine.PlaceOf(tensor))) return wire::TensorInfo::State::SPILLED;
  return machine.ProducerOf(tensor) != nullptr ? wire::TensorInfo::State::ISSUED : wire::TensorInfo::State::READY;
}

void DescribeTensor(const StateMachine& machine, HandleId handle, const TensorEntry& tensor,
                    wire::TensorInfo::Builder info) {
  info.setHandle(handle.value);
  EncodeTensorSpec(tensor.spec(), info.initSpec());
  info.setBytesPerWorker(tensor.buffer->bytes);
  info.setState(StateOf(machine, tensor));
  if (!tensor.status.ok()) EncodeStatus(tensor.status, info.initStatus());
}

void DescribeSession(SessionId id, const SessionEntry& session, wire::SessionInfo::Builder info) {
  info.setId(id.value);
  info.setTenant(session.info.tenant.c_str());
  info.setClient(session.info.client.c_str());
  info.setTensors(session.tensors.size());
  info.setBytes(session.bytes);
  info.setQueued(session.queue.size());
  info.setConnected(session.connected);
  info.setName(session.info.name.c_str());
  info.setSpilledBytes(session.spilled_bytes);
}

// By their handles. A refused tensor has no spec here and nothing on the workers.
void DescribeTensors(const StateMachine& machine, const SessionEntry& session, const StatusView& view,
                     wire::ClusterStatus::Builder builder) {
  const size_t most = std::min(view.max_tensors, kMaxTensorsListed);
  std::vector<std::pair<HandleId, const TensorEntry*>> tensors;
  auto at = session.tensors.upper_bound(view.after);
  for (; at != session.tensors.end() && tensors.size() < most; ++at) {
    if (at->second->buffer) tensors.emplace_back(at->first, at->second.get());
  }
  builder.setHasMoreTensors(at != session.tensors.end());
  auto list = builder.initTensors(static_cast<unsigned>(tensors.size()));
  for (unsigned t = 0; t < tensors.size(); ++t) {
    DescribeTensor(machine, tensors[t].first, *tensors[t].second, list[t]);
    const auto named = session.name_of.find(tensors[t].first);
    if (named != session.name_of.end()) list[t].setName(named->second.c_str());
  }
}

template <typename Builder>
void Fill(Builder list, absl::Span<const int64_t> values) {
  for (unsigned i = 0; i < values.size(); ++i) list.set(i, values[i]);
}

template <typename Builder>
void FillText(Builder list, const std::vector<std::string>& lines) {
  for (unsigned i = 0; i < lines.size(); ++i) list.set(i, lines[i].c_str());
}

struct HeldMemory {
  std::vector<WorkerIndex> workers;
  int64_t bytes = 0;
};

absl::StatusOr<std::vector<HeldMemory>> DecodeHeld(capnp::List<wire::HeldMemory>::Reader reader) {
  if (reader.size() > kMaxHeldResults) {
    return absl::InvalidArgumentError(StrCat("explain: ", reader.size(), " planned results are held; ", kMaxHeldResults,
                                             " are allowed (max_held_results)"));
  }
  std::vector<HeldMemory> held;
  for (const auto item : reader) {
    HeldMemory& memory = held.emplace_back();
    memory.bytes = item.getBytes();
    for (const int32_t worker : item.getWorkers()) memory.workers.emplace_back(worker);
    const bool is_sound = memory.bytes >= 0 && std::all_of(memory.workers.begin(), memory.workers.end(),
                                                           [](WorkerIndex worker) { return worker.value >= 0; });
    if (!is_sound) return absl::InvalidArgumentError("explain: memory that no result can have");
  }
  return held;
}

// Where results lie, for the client to know what it has of results that were planned only.
void DescribeOutputMemory(const Plan& plan, wire::PlanText::Builder builder) {
  auto operands = builder.initOutputOperands(static_cast<unsigned>(plan.outputs.size()));
  auto bytes = builder.initOutputBytes(static_cast<unsigned>(plan.outputs.size()));
  for (unsigned i = 0; i < plan.outputs.size(); ++i) {
    const int buffer = plan.values[static_cast<size_t>(plan.outputs[i])].buffer;
    const auto operand = std::find_if(plan.inputs.begin(), plan.inputs.end(), [&](int input) {
      return plan.values[static_cast<size_t>(input)].buffer == buffer;
    });
    const bool is_view = operand != plan.inputs.end();
    operands.set(i, is_view ? static_cast<int32_t>(operand - plan.inputs.begin()) : -1);
    bytes.set(i, is_view ? 0 : plan.buffers[static_cast<size_t>(buffer)].bytes);
  }
}

// An operand that lies within another one, as one that is given twice does, takes no memory of its own.
void TakeBackRepeated(const SessionEntry& session,
                      absl::Span<const std::variant<HandleId, Scalar, OperandLayout>> operands, const Plan& plan,
                      absl::Span<const WorkerIndex> workers, std::vector<int64_t>& peak_bytes) {
  struct Range {
    const BufferEntry* buffer;
    int64_t start, stop;
  };
  std::vector<Range> seen;
  size_t input = 0;
  for (const auto& operand : operands) {
    if (std::holds_alternative<Scalar>(operand)) continue;
    const PlanValue& value = plan.values[static_cast<size_t>(plan.inputs[input++])];
    const auto* handle = std::get_if<HandleId>(&operand);
    if (handle == nullptr) continue;
    const TensorEntry& tensor = *session.tensors.at(*handle);
    const int64_t bytes = plan.buffers[static_cast<size_t>(value.buffer)].bytes;
    const Range range = {tensor.buffer.get(), tensor.offset_bytes, tensor.offset_bytes + bytes};
    const bool is_within = std::any_of(seen.begin(), seen.end(), [&range](const Range& other) {
      return range.buffer == other.buffer && other.start <= range.start && range.stop <= other.stop;
    });
    seen.push_back(range);
    if (!is_within) continue;
    for (size_t i = 0; i < workers.size(); ++i) {
      const bool is_there = value.spec.mesh.FindWorker(workers[i]).has_value();
      if (is_there) peak_bytes[i] -= bytes;
    }
  }
}

}  // namespace

void DescribeWelcome(const Hub& hub, const Hub::Opened& opened, wire::Welcome::Builder builder) {
  builder.setSessionId(opened.session.value);
  builder.setSecret(opened.secret);
  builder.setEpoch(hub.epoch());
  builder.setConnection(opened.connection);
  const SessionEntry& session = hub.machine().sessions().at(opened.session);
  DescribeWorkers(hub, SeenBy(session), builder.initWorkers(static_cast<unsigned>(hub.machine().workers().size())),
                  opened.session);
  builder.setLastBatch(session.last_batch);
  builder.setLeaseS(static_cast<double>(session.info.lease_us) * 1e-6);
  builder.setServerVersion(kServerVersion);
  builder.setPid(getpid());
  builder.setMaxInlineBytes(static_cast<uint32_t>(hub.options().config.max_inline_bytes));
  builder.setHeartbeatS(hub.options().session_silence_s / kHeartbeatsOfSilence);
}

void DescribeCluster(const Hub& hub, const StatusView& view, wire::ClusterStatus::Builder builder) {
  const StateMachine& machine = hub.machine();
  builder.setEpoch(hub.epoch());
  builder.setUptimeS(hub.uptime_s());
  const auto asking = machine.sessions().find(view.asking);
  const TenantEntry* const tenant = asking == machine.sessions().end() ? nullptr : SeenBy(asking->second);
  DescribeWorkers(hub, tenant, builder.initWorkers(static_cast<unsigned>(machine.workers().size())));
  builder.setNextOrdinal(machine.next_ordinal());
  builder.setPlansCached(machine.plans().size());
  builder.setPlanHits(machine.plans().hits());
  builder.setPlanMisses(machine.plans().misses());
  uint64_t session_count = 0, tensor_count = 0;
  for (const auto& [id, session] : machine.sessions()) {
    if (tenant != nullptr && session.tenant != tenant) continue;
    ++session_count;
    tensor_count += session.tensors.size();
  }
  builder.setSessionCount(session_count);
  builder.setTensorCount(tensor_count);
  if (asking == machine.sessions().end()) return;
  if (view.role == Role::kAdmin) {
    auto sessions = builder.initSessions(static_cast<unsigned>(machine.sessions().size()));
    unsigned i = 0;
    for (const auto& [id, session] : machine.sessions()) {
      sessions[i].setAwaitsClient(id == view.asking && machine.AwaitsClient(id));
      sessions[i].setAwaitsRanks(id == view.asking && machine.AwaitsRanks(id));
      DescribeSession(id, session, sessions[i++]);
    }
  } else {
    auto sessions = builder.initSessions(1);
    sessions[0].setAwaitsClient(machine.AwaitsClient(view.asking));
    sessions[0].setAwaitsRanks(machine.AwaitsRanks(view.asking));
    DescribeSession(view.asking, asking->second, sessions[0]);
  }
  DescribeTensors(machine, asking->second, view, builder);
}

void DescribeFlows(const Plan& plan, wire::PlanText::Builder builder) {
  const std::vector<StepFlows> steps = FlowsOf(plan);
  auto list = builder.initFlows(static_cast<unsigned>(steps.size()));
  for (unsigned s = 0; s < list.size(); ++s) {
    const StepFlows& step = steps[s];
    list[s].setTitle(step.title.c_str());
    list[s].setIsExchange(step.is_exchange);
    list[s].setJoinsLast(step.joins_last);
    auto workers = list[s].initWorkers(static_cast<unsigned>(step.workers.size()));
    for (unsigned i = 0; i < workers.size(); ++i) workers.set(i, step.workers[i].value);
    auto flows = list[s].initFlows(static_cast<unsigned>(step.flows.size()));
    for (unsigned i = 0; i < flows.size(); ++i) {
      flows[i].setFrom(step.flows[i].from.value);
      flows[i].setTo(step.flows[i].to.value);
      flows[i].setBytes(step.flows[i].bytes);
    }
  }
}

absl::Status DescribePlan(const StateMachine& machine, SessionId session, wire::Session::ExplainParams::Reader params,
                          wire::PlanText::Builder builder) {
  TESSERA_ASSIGN_OR_RETURN(OpCall call, DecodeOpCall(params.getCall()));
  std::vector<std::variant<HandleId, Scalar, OperandLayout>> operands;
  if (params.getOperands().size() > static_cast<uint64_t>(kMaxOperands)) {
    return absl::InvalidArgumentError(
        StrCat("explain: ", params.getOperands().size(), " operands; ", kMaxOperands, " are allowed (max_operands)"));
  }
  for (auto item : params.getOperands()) {
    switch (item.which()) {
      case wire::ExplainOperand::HANDLE: operands.emplace_back(HandleId(item.getHandle())); break;
      case wire::ExplainOperand::SCALAR: {
        TESSERA_ASSIGN_OR_RETURN(Scalar scalar, DecodeScalar(item.getScalar()));
        operands.emplace_back(scalar);
        break;
      }
      case wire::ExplainOperand::SPEC: {
        TESSERA_ASSIGN_OR_RETURN(TensorSpec spec, DecodeTensorSpec(item.getSpec()));
        TESSERA_ASSIGN_OR_RETURN(Strides strides, DecodeStrides(spec, item.getStrides()));
        operands.emplace_back(OperandLayout{std::move(spec), std::move(strides)});
        break;
      }
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<HeldMemory> held, DecodeHeld(params.getHeld()));
  std::vector<MemoryMap::Request> requests;
  for (const HeldMemory& memory : held) requests.push_back({memory.workers, memory.bytes});
  TESSERA_ASSIGN_OR_RETURN(OpPlan planned, machine.Explain(session, call, operands, requests));
  const Plan& plan = planned.plan;
  const PlanTraffic traffic = TrafficOf(plan);
  std::vector<int64_t> peak = PeakBytes(plan);
  TakeBackRepeated(machine.sessions().at(session), operands, plan, traffic.workers, peak);
  builder.setText(ToText(plan).c_str());
  const Topology& topology = machine.TopologyOf(plan.buffers[0].mesh);
  const auto has_nccl = [&machine](WorkerIndex worker) {
    const auto known = machine.workers().find(worker);
    return known != machine.workers().end() && known->second.info.has_nccl;
  };
  const std::vector<std::string> steps = StepLinesOn(topology, has_nccl, plan);
  FillText(builder.initSteps(static_cast<unsigned>(steps.size())), steps);
  FillText(builder.initImplicit(static_cast<unsigned>(plan.implicit.size())), plan.implicit);
  Fill(builder.initReceivedBytes(static_cast<unsigned>(traffic.received_bytes.size())), traffic.received_bytes);
  Fill(builder.initSentBytes(static_cast<unsigned>(traffic.sent_bytes.size())), traffic.sent_bytes);
  Fill(builder.initPeakBytes(static_cast<unsigned>(peak.size())), peak);
  auto workers = builder.initWorkers(static_cast<unsigned>(traffic.workers.size()));
  for (unsigned i = 0; i < workers.size(); ++i) workers.set(i, traffic.workers[i].value);
  builder.setPredictedSeconds(PredictSeconds(plan, topology));
  if (!plan.outputs.empty()) {
    EncodeTensorSpec(plan.values[static_cast<size_t>(plan.outputs[0])].spec, builder.initOutput());
  }
  auto outputs = builder.initOutputs(static_cast<unsigned>(plan.outputs.size()));
  auto strides = builder.initOutputStrides(static_cast<unsigned>(plan.outputs.size()));
  for (unsigned i = 0; i < outputs.size(); ++i) {
    const PlanValue& value = plan.values[static_cast<size_t>(plan.outputs[i])];
    EncodeTensorSpec(value.spec, outputs[i]);
    Fill(strides.init(i, static_cast<unsigned>(value.strides.size())), value.strides);
  }
  DescribeOutputMemory(plan, builder);
  DescribeFlows(plan, builder);
  builder.setGrid(plan.grid.c_str());
  FillText(builder.initRunnersUp(static_cast<unsigned>(plan.runners_up.size())), plan.runners_up);
  return absl::OkStatus();
}

}  // namespace tessera
