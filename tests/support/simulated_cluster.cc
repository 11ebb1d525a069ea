#include "tests/support/simulated_cluster.h"

#include <utility>

#include "schemas/types/layout.h"

namespace tessera {

CoordinatorConfig SimulatedCluster::RoomyConfig() {
  CoordinatorConfig config;
  config.max_outstanding_per_worker = 1024;
  config.max_outstanding_us_per_worker = 1'000'000;
  config.max_outstanding_us_shared = 1'000'000;
  config.max_unmeasured_instances = 1024;
  return config;
}

SimulatedCluster::SimulatedCluster(int workers, int64_t memory_bytes, const CoordinatorConfig& config, int hosts,
                                   int64_t spill_bytes)
    : machine_(config) {
  for (int i = 0; i < workers; ++i) {
    WorkerJoinedEvent event;
    event.worker = WorkerIndex(i);
    event.incarnation = static_cast<uint64_t>(i) + 1;
    event.host = hosts == 1 ? "host" : "host " + std::to_string(i * hosts / workers);
    event.memory_bytes = memory_bytes;
    event.spill_bytes = spill_bytes;
    Apply(event);
  }
}

SimulatedCluster::~SimulatedCluster() = default;

Effects SimulatedCluster::Apply(const Event& event) {
  Effects effects = ApplyOne(event);
  while (machine_.has_more()) {
    for (Effect& effect : ApplyOne(ContinuedEvent{})) effects.push_back(std::move(effect));
  }
  return effects;
}

Effects SimulatedCluster::ApplyOne(const Event& event) {
  Effects effects = machine_.Apply(now_us_, event);
  for (const Effect& effect : effects) {
    log_.push_back(ToText(effect));
    if (const auto* to = std::get_if<ToWorkers>(&effect)) {
      for (WorkerIndex worker : *to->workers) pending_[worker].push_back(to->message);
      const auto* window = std::get_if<TransferWindow>(&to->message);
      if (window != nullptr && window->spill_file != 0) spills_.push_back(*window);
    } else if (const auto* client = std::get_if<ToClient>(&effect)) {
      events_[client->session].push_back(client->event);
    } else if (const auto* end = std::get_if<EndSession>(&effect)) {
      ended_[end->session] = end->reason;
    }
  }
  return effects;
}

SessionId SimulatedCluster::Open(int64_t lease_us) {
  const SessionId session(next_session_++);
  Apply(SessionOpenedEvent{session, 77, "tenant", "test", lease_us});
  return session;
}

void SimulatedCluster::Submit(SessionId session, std::vector<Record> records) {
  Apply(BatchEvent{session, ++batches_[session], std::move(records)});
}

void SimulatedCluster::Advance(int64_t us) {
  now_us_ += us;
  Apply(TickEvent{});
}

void SimulatedCluster::CompleteAll(Ordinal failing, absl::Status failure) {
  bool moved = true;
  while (moved) {
    moved = false;
    std::vector<WorkerIndex> busy;
    for (const auto& [worker, messages] : pending_) {
      if (!messages.empty() && !dead_.contains(worker)) busy.push_back(worker);
    }
    for (WorkerIndex worker : busy) {
      moved = true;
      CompleteOn(worker, failing, failure);
    }
  }
}

void SimulatedCluster::CompleteOn(WorkerIndex worker, Ordinal failing, absl::Status failure) {
  WorkerReportEvent report{worker, static_cast<uint64_t>(worker.value) + 1, {}, {}};
  for (const WorkerMessage& message : std::exchange(pending_[worker], {})) {
    CompletionReport done;
    if (const auto* run = std::get_if<Instance>(&message)) done.ordinal = run->ordinal;
    if (const auto* window = std::get_if<TransferWindow>(&message)) done.ordinal = window->ordinal;
    if (const auto* write = std::get_if<InlineWrite>(&message)) done.ordinal = write->ordinal;
    if (const auto* read = std::get_if<InlineRead>(&message)) {
      done.ordinal = read->ordinal;
      const auto position = read->spec.mesh.PositionAt(*read->spec.mesh.FindWorker(worker));
      done.inline_bytes.assign(
          static_cast<size_t>(NumElements(LocalBox(read->spec, position)) * SizeBytes(read->spec.dtype)),
          static_cast<char>('a' + worker.value));
    }
    if (const auto* close = std::get_if<CloseTicket>(&message))
      report.transfers.push_back({close->ticket, absl::OkStatus()});
    if (done.ordinal.value == 0) continue;
    if (done.ordinal == failing) done.status = failure;
    report.completions.push_back(std::move(done));
  }
  Apply(report);
}

void SimulatedCluster::Kill(WorkerIndex worker) {
  dead_[worker] = true;
  Apply(WorkerLostEvent{worker, static_cast<uint64_t>(worker.value) + 1, "killed"});
}

void SimulatedCluster::FinishUpload(TicketId ticket, absl::Status status) {
  for (const auto& [worker, info] : machine_.workers()) {
    Apply(WorkerReportEvent{worker, info.info.incarnation, {}, {{ticket, status}}});
  }
}

std::vector<WorkerMessage> SimulatedCluster::MessagesAt(WorkerIndex worker) const {
  const auto found = pending_.find(worker);
  if (found == pending_.end()) return {};
  return {found->second.begin(), found->second.end()};
}

std::vector<Instance> SimulatedCluster::InstancesAt(WorkerIndex worker) const {
  std::vector<Instance> instances;
  auto found = pending_.find(worker);
  if (found == pending_.end()) return instances;
  for (const WorkerMessage& message : found->second) {
    if (const auto* run = std::get_if<Instance>(&message)) instances.push_back(*run);
  }
  return instances;
}

std::vector<std::shared_ptr<const Plan>> SimulatedCluster::PlansAt(WorkerIndex worker) const {
  std::vector<std::shared_ptr<const Plan>> plans;
  auto found = pending_.find(worker);
  if (found == pending_.end()) return plans;
  for (const WorkerMessage& message : found->second) {
    if (const auto* define = std::get_if<DefineTemplate>(&message)) plans.push_back(*define->plan);
  }
  return plans;
}

CallRecord FullRecord(const Mesh& mesh, std::vector<int64_t> shape, Placements placements, uint64_t handle) {
  CallRecord record;
  record.call.op = OpId::kFull;
  record.call.attributes.Set(attribute::dtype, DType::kF32);
  record.call.attributes.Set(attribute::shape, Shape(shape.begin(), shape.end()));
  record.call.attributes.Set(attribute::mesh, mesh);
  record.call.attributes.Set(attribute::placements, std::move(placements));
  record.call.scalars = {Scalar::Float(1)};
  record.results = {HandleId(handle)};
  return record;
}

CallRecord OpRecord(OpId op, std::vector<uint64_t> operands, uint64_t result, bool last_use) {
  CallRecord record;
  record.call.op = op;
  for (uint64_t operand : operands) record.operands.push_back({HandleId(operand), last_use});
  record.results = {HandleId(result)};
  return record;
}

CallRecord RedistributeRecord(uint64_t operand, Placements placements, uint64_t result) {
  CallRecord record = OpRecord(OpId::kRedistribute, {operand}, result);
  record.call.attributes.Set(attribute::placements, std::move(placements));
  return record;
}

}  // namespace tessera
