
#include <algorithm>
#include <utility>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/issue_desk.h"
#include "server/coordinator/spill_desk.h"
#include "server/coordinator/turn_desk.h"
#include "server/plan/verify.h"

namespace tessera {

StateMachine::StateMachine(const CoordinatorConfig& config)
    : MachineTables(config, [this](BufferEntry& buffer) { GiveBack(buffer); }) {}

StateMachine::~StateMachine() { is_ending_ = true; }

Effects StateMachine::Apply(int64_t now_us, Event event) {
  now_us_ = now_us;
  turns_.SetNow(now_us);
  intake_left_us_ = config_.max_intake_us;
  std::visit([this](auto& e) { On(e); }, event);
  FillFreed();
  return std::exchange(effects_, {});
}

bool StateMachine::IsComplete(Ordinal ordinal) const {
  auto found = ops_.find(ordinal);
  return found == ops_.end() || found->second->missing.empty();
}

absl::StatusOr<OpPlan> StateMachine::Explain(SessionId session, const OpCall& call,
                                             const std::vector<std::variant<HandleId, Scalar, OperandLayout>>& operands,
                                             const std::vector<MemoryMap::Request>& held) const {
  auto found = sessions_.find(session);
  if (found == sessions_.end()) return absl::NotFoundError("explain: the session is closed");
  std::vector<PlanOperand> plan_operands;
  for (const auto& operand : operands) {
    if (const auto* scalar = std::get_if<Scalar>(&operand)) {
      plan_operands.emplace_back(*scalar);
    } else if (const auto* layout = std::get_if<OperandLayout>(&operand)) {
      plan_operands.emplace_back(*layout);
    } else {
      TESSERA_ASSIGN_OR_RETURN(TensorPointer tensor, FindTensor(found->second, std::get<HandleId>(operand), "explain"));
      plan_operands.emplace_back(OperandLayout{tensor->spec(), tensor->strides()});
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const Topology* topology, CheckMeshes(call, plan_operands));
  TESSERA_ASSIGN_OR_RETURN(OpPlan whole, PlanOp(call, plan_operands, *topology));
  TESSERA_RETURN_IF_ERROR(VerifyPlan(whole.plan));  // its figures can be counted
  // As it would be issued now; a plan that fits nowhere is shown as it would be with more memory.
  if (FitsNow(whole.plan, held)) return whole;
  for (const PlanLimits& limits : LimitsFor(whole.plan, held)) {
    absl::StatusOr<OpPlan> smaller = PlanOp(call, plan_operands, *topology, limits);
    if (smaller.ok()) return smaller;
  }
  return whole;
}

WorkerGroup StateMachine::AliveOf(const WorkerGroup& workers) {
  const auto is_dead = [this](WorkerIndex worker) {
    auto found = workers_.find(worker);
    return found == workers_.end() || found->second.state == WorkerState::kDead;
  };
  if (std::none_of(workers->begin(), workers->end(), is_dead)) return workers;
  std::vector<WorkerIndex> alive = *workers;
  std::erase_if(alive, is_dead);
  return MakeGroup(std::move(alive));
}

void StateMachine::ToGroup(const WorkerGroup& workers, WorkerMessage message) {
  effects_.push_back(ToWorkers{workers, std::move(message)});
}

OpEntry* StateMachine::ProducerOf(const TensorEntry& tensor) const {
  if (tensor.producer.value == 0) return nullptr;
  const auto found = ops_.find(tensor.producer);
  return found == ops_.end() ? nullptr : found->second.get();
}

History& StateMachine::HistoryOf(const BufferPointer& buffer) {
  if (!buffer->history) {
    buffer->history = histories_.Add();
    touched_.push_back(buffer.number());
  }
  buffer->history->Prune([this](Ordinal ordinal) { return IsComplete(ordinal); });
  return *buffer->history;
}

// Buffers come in the order in which they were first touched, so what is touched once goes soon after its op.
void StateMachine::ForgetHistories(size_t completions) {
  size_t looks = std::min(touched_.size(), 2 * completions + 16);
  for (; looks > 0; --looks) {
    const EntryNumber number = touched_.front();
    touched_.pop_front();
    const BufferPointer buffer = buffers_.Find(number);
    if (!buffer) continue;
    if (HistoryOf(buffer).empty()) {
      buffer->history = nullptr;
    } else {
      touched_.push_back(number);
    }
  }
}

absl::StatusOr<BufferPointer> StateMachine::NewBuffer(SessionId owner, const WorkerGroup& workers, int64_t bytes,
                                                      std::string_view op, Lane lane) {
  TESSERA_ASSIGN_OR_RETURN(TenantEntry* const tenant, ChargeMemory(owner, *workers, bytes, op));
  const int64_t from = lane == Lane::kLight ? IssueDesk(*this).QuietPlace(*workers, bytes) : 0;
  absl::StatusOr<int64_t> placed = memory_.Allocate(*workers, bytes, op, from);
  if (!placed.ok()) return Unplaced(owner, tenant, *workers, bytes, placed.status());
  const int64_t offset = *placed;
  if (auto session = sessions_.find(owner); session != sessions_.end()) session->second.bytes += bytes;
  BufferPointer buffer = buffers_.Add();
  buffer->workers = workers;
  buffer->offset_bytes = offset;
  buffer->bytes = bytes;
  buffer->tenant = tenant;
  buffer->owner = owner;
  buffer->born = joins_;
  SpillDesk(*this).Watch(buffer);
  // Instructions of the range's former owners may still run: the new owner's history begins there.
  for (size_t i = 0; i < freed_.size();) {
    FreedRange& range = freed_[i];
    if (range.start >= offset + bytes || offset >= range.stop) {
      ++i;
      continue;
    }
    range.history.Prune([this](Ordinal ordinal) { return IsComplete(ordinal); });
    if (!range.history.empty()) HistoryOf(buffer).Merge(range.history);
    // A range that is taken over whole lives on in its new owner's history.
    const bool whole = offset <= range.start && range.stop <= offset + bytes && *range.workers == *workers;
    if (whole || range.history.empty()) {
      freed_[i] = std::move(freed_.back());
      freed_.pop_back();
    } else {
      ++i;
    }
  }
  return buffer;
}

void StateMachine::GiveBack(BufferEntry& buffer) {
  if (is_ending_ || SpillDesk(*this).LetGo(buffer)) return;
  if (config_.debug_fill > 0 && !buffer.is_filled && buffer.bytes > 0) {
    BufferPointer kept = buffers_.Add();
    *kept = std::move(buffer);
    kept->is_filled = true;
    unfilled_.push_back(std::move(kept));
    return;
  }
  if (auto session = sessions_.find(buffer.owner); session != sessions_.end()) session->second.bytes -= buffer.bytes;
  // The range went with a worker that was lost; one that joined under its number never had it.
  const auto is_new = [&](WorkerIndex worker) {
    auto found = workers_.find(worker);
    return found != workers_.end() && found->second.join_number > buffer.born;
  };
  if (std::none_of(buffer.workers->begin(), buffer.workers->end(), is_new)) {
    if (buffer.tenant != nullptr) tenants_.Return(*buffer.tenant, *buffer.workers, buffer.bytes, memory_);
    memory_.Free(*buffer.workers, buffer.offset_bytes, buffer.bytes);
  } else {
    std::vector<WorkerIndex> owners = *buffer.workers;
    std::erase_if(owners, is_new);
    if (buffer.tenant != nullptr) tenants_.Return(*buffer.tenant, owners, buffer.bytes, memory_);
    memory_.Free(owners, buffer.offset_bytes, buffer.bytes);
  }
  if (!buffer.history) return;
  buffer.history->Prune([this](Ordinal ordinal) { return IsComplete(ordinal); });
  if (!buffer.history->empty() && buffer.bytes > 0) {
    freed_.push_back(
        {buffer.offset_bytes, buffer.offset_bytes + buffer.bytes, buffer.workers, std::move(*buffer.history)});
  }
}

OpPointer StateMachine::NewOp(OpEntry::Kind kind, std::string_view name, SessionId session, const WorkerGroup& workers,
                              int64_t cost_us, Lane lane) {
  auto op = std::make_shared<OpEntry>();
  op->kind = kind;
  op->ordinal = Ordinal(next_ordinal_++);
  op->name = name;
  op->session = session;
  op->workers = workers;
  op->missing = *workers;
  op->cost_us = cost_us;
  op->lane = lane;
  op->issued_us = now_us_;
  if (turn_ != SessionId()) {
    op->charge = turns_.Issue(turn_, cost_us * kTicksPerUs);
    AddToShare(tenants_.at(op->charge.tenant), op->charge.ticks * static_cast<int64_t>(workers->size()));
  }
  const int64_t window_us = TurnDesk(*this).WindowUs();
  for (WorkerIndex worker : *workers) {
    WorkerEntry& entry = workers_.at(worker);
    if (entry.windows.outstanding() == 0) entry.working_since_us = now_us_;
    entry.windows.Add(lane, cost_us, config_, window_us);
  }
  ops_[op->ordinal] = op;
  return op;
}

void StateMachine::AddParent(const OpPointer& op, const TensorEntry& tensor) {
  OpEntry* const producer = ProducerOf(tensor);
  if (producer == nullptr) return;
  ++op->unsettled_parents;
  producer->children.push_back(op->ordinal);
}

absl::StatusOr<const Topology*> StateMachine::CheckMeshes(const OpCall& call, absl::Span<const PlanOperand> operands,
                                                          Meshes known) const {
  const std::string_view name = NameOf(call.op);
  std::vector<const Mesh*> meshes;
  if (call.attributes.Get(attribute::mesh) != nullptr) meshes.push_back(call.attributes.Get(attribute::mesh));
  for (const PlanOperand& operand : operands) {
    const auto* layout = std::get_if<OperandLayout>(&operand);
    if (layout != nullptr) meshes.push_back(&layout->spec.mesh);
  }
  std::optional<WorkerIndex> first;
  bool is_mixed = false;
  for (const Mesh* mesh : meshes) {
    if (known == Meshes::kChecked) TESSERA_RETURN_IF_ERROR(CheckWorkers(name, mesh->workers()));
    if (!first.has_value()) first = mesh->workers()[0];
    for (const WorkerIndex worker : mesh->workers()) {
      if (KindOf(worker) == KindOf(*first)) continue;
      if (known == Meshes::kChecked) TESSERA_RETURN_IF_ERROR(CheckMove(call.op, *first, worker, meshes));
      is_mixed = true;
    }
  }
  if (is_mixed) return &topologies_[static_cast<size_t>(DeviceKind::kCpu)];
  return &topologies_[static_cast<size_t>(first.has_value() ? KindOf(*first) : DeviceKind::kCpu)];
}

absl::Status StateMachine::CheckMove(OpId op, WorkerIndex one, WorkerIndex other,
                                     absl::Span<const Mesh* const> meshes) const {
  const std::string both = StrCat(NameOf(op), ": worker ", one.value, " is ", ToText(KindOf(one)), " and worker ",
                                  other.value, " is ", ToText(KindOf(other)));
  if (op != OpId::kRedistribute) {
    return absl::InvalidArgumentError(StrCat(both, "; an op's workers are of one kind"));
  }
  for (const Mesh* mesh : meshes) {
    for (const WorkerIndex worker : mesh->workers()) {
      const auto found = workers_.find(worker);
      if (found == workers_.end() || found->second.info.messages != MessageNetwork::kNone) continue;
      return absl::InvalidArgumentError(
          StrCat(both, "; bytes go from one kind of device to another in messages, and worker ", worker.value,
                 " has none: start all workers with --transport ucx, shm+ucx or shm+tls"));
    }
  }
  return absl::OkStatus();
}

DeviceKind StateMachine::KindOf(WorkerIndex worker) const {
  const auto found = workers_.find(worker);
  return found == workers_.end() ? DeviceKind::kCpu : found->second.info.device;
}

const Topology& StateMachine::TopologyOf(const Mesh& mesh) const {
  return topologies_[static_cast<size_t>(KindOf(mesh.workers()[0]))];
}

absl::Status StateMachine::CheckWorkers(std::string_view op, absl::Span<const WorkerIndex> workers) const {
  for (WorkerIndex worker : workers) {
    auto found = workers_.find(worker);
    if (found == workers_.end()) {
      return absl::InvalidArgumentError(StrCat(op, ": the mesh names worker ", worker.value, "; the cluster has ",
                                               workers_.size(), " workers, numbered from 0"));
    }
    if (found->second.state == WorkerState::kDead) {
      return absl::UnavailableError(
          StrCat(op, ": worker ", worker.value, " was lost (", found->second.lost_reason, ")"));
    }
    const SessionId newest = found->second.newest_admitted;
    if (newest != SessionId() && turn_.value > newest.value) {
      return absl::UnavailableError(StrCat(op, ": worker ", worker.value, " is cordoned: session ", turn_.value,
                                           " began after that; take a mesh of other workers"));
    }
  }
  return absl::OkStatus();
}

}  // namespace tessera
