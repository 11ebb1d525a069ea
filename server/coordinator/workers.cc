// Workers of the state machine: joining, silence, death.

#include <algorithm>
#include <tuple>
#include <utility>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/catalog.h"
#include "schemas/types/living_mesh.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/completion_desk.h"
#include "server/coordinator/loss_desk.h"
#include "server/coordinator/turn_desk.h"

namespace tessera {

void StateMachine::On(const WorkerJoinedEvent& event) {
  given_.incarnation = std::max(given_.incarnation, event.incarnation);
  plans_.ForgetWorker(event.worker);
  memory_.AddWorker(event.worker, event.memory_bytes);
  tenants_.ForgetWorker(event.worker);
  // The workers that are here hear of the new one, and it hears of them.
  const WorkerGroup self = MakeGroup(std::vector<WorkerIndex>{event.worker});
  std::vector<WorkerIndex> others;
  for (const auto& [index, worker] : workers_) {
    if (worker.state == WorkerState::kDead || index == event.worker) continue;
    others.push_back(index);
    const WorkerJoinedEvent& info = worker.info;
    const bool mapped = info.map_peers && event.map_peers && info.host == event.host && info.device == event.device;
    ToGroup(self, PeerJoined{index, info.incarnation, info.host, info.data_address, info.message_address, mapped,
                             info.remote_address});
    ToGroup(MakeGroup(std::vector<WorkerIndex>{index}),
            PeerJoined{event.worker, event.incarnation, event.host, event.data_address, event.message_address, mapped,
                       event.remote_address});
  }
  for (auto& [id, session] : sessions_) {
    Send(session, WorkerJoinedNotice{event.worker, event.data_address, event.remote_address, event.device});
  }
  const bool again = workers_.contains(event.worker);
  WorkerEntry& entry = workers_[event.worker];
  entry = WorkerEntry{};
  if (again) entry.first_ordinal = Ordinal(next_ordinal_);
  rejoined_ = rejoined_ || again;
  entry.info = event;
  entry.last_heard_us = now_us_;
  entry.done_us = now_us_;
  entry.join_number = ++joins_;
  // Workers share a host of the topology when they map each other's memory, which is of one kind of device.
  std::vector<std::tuple<std::string, int32_t, DeviceKind>> hosts;
  std::vector<int32_t> host_of_worker(static_cast<size_t>(workers_.rbegin()->first.value) + 1, 0);
  for (const auto& [index, worker] : workers_) {
    constexpr int32_t kShared = -1;
    const std::tuple host = {worker.info.host, worker.info.map_peers ? kShared : index.value, worker.info.device};
    auto known = std::find(hosts.begin(), hosts.end(), host);
    host_of_worker[static_cast<size_t>(index.value)] = static_cast<int32_t>(known - hosts.begin());
    if (known == hosts.end()) hosts.push_back(host);
  }
  for (Topology& topology : topologies_) {
    topology.host_of_worker = host_of_worker;
    ++topology.version;
  }
}

void StateMachine::DropRejoined(std::vector<InstanceWait>& waits) const {
  if (!rejoined_) return;
  std::erase_if(waits, [this](InstanceWait& wait) {
    if (wait.workers.empty()) return false;
    std::erase_if(wait.workers, [&](WorkerIndex worker) {
      auto found = workers_.find(worker);
      return found != workers_.end() && wait.ordinal < found->second.first_ordinal;
    });
    return wait.workers.empty();
  });
}

void StateMachine::On(const WorkerHeardEvent& event) {
  auto found = workers_.find(event.worker);
  if (found == workers_.end() || found->second.state == WorkerState::kDead) return;
  found->second.last_heard_us = now_us_;
  if (event.is_at_work) found->second.at_work_us = now_us_;
  const bool was_suspect = found->second.state == WorkerState::kSuspect;
  if (!found->second.stalled.empty()) return;
  found->second.state = WorkerState::kAlive;
  if (was_suspect) TurnDesk(*this).Pump();
}

void StateMachine::On(const WorkerAdmitsEvent& event) {
  auto found = workers_.find(event.worker);
  if (found == workers_.end() || found->second.state == WorkerState::kDead) return;
  WorkerEntry& entry = found->second;
  // One that is cordoned when a drain begins, and is refused, is cordoned as it was.
  if (event.admits == Admits::kFormerSessions && entry.admits == Admits::kEveryone) {
    entry.newest_admitted = SessionId(given_.session);
  }
  if (event.admits == Admits::kEveryone) entry.newest_admitted = SessionId();
  entry.admits = event.admits;
  TurnDesk(*this).Pump();
}

void StateMachine::On(const WorkerDrainedEvent& event) {
  auto found = workers_.find(event.worker);
  if (found == workers_.end() || found->second.info.incarnation != event.incarnation ||
      found->second.state == WorkerState::kDead) {
    return;
  }
  found->second.admits = Admits::kNobody;
  ToGroup(MakeGroup(std::vector<WorkerIndex>{event.worker}), Shutdown{event.reason});
}

void StateMachine::On(const WorkerLostEvent& event) {
  auto found = workers_.find(event.worker);
  if (found == workers_.end() || found->second.info.incarnation != event.incarnation ||
      found->second.state == WorkerState::kDead) {
    return;
  }
  const WorkerEntry& entry = found->second;
  const bool was_silent = entry.last_kill_us > entry.last_heard_us;
  LoseWorker(event.worker, !entry.stalled.empty() ? entry.stalled
                           : was_silent           ? StrCat("silent for ", config_.worker_timeout_us / 1'000'000, " s")
                                                  : event.reason);
  TurnDesk(*this).Pump();
}

bool StateMachine::IsMappedByPeers(WorkerIndex index) const {
  auto found = workers_.find(index);
  if (found == workers_.end() || !found->second.info.map_peers) return false;
  const WorkerJoinedEvent& info = found->second.info;
  return std::any_of(workers_.begin(), workers_.end(), [&](const auto& other) {
    const WorkerEntry& entry = other.second;
    return other.first != index && entry.state != WorkerState::kDead && entry.info.map_peers &&
           entry.info.host == info.host && entry.info.device == info.device;
  });
}

void StateMachine::LoseWorker(WorkerIndex lost, const std::string& reason) {
  WorkerEntry& entry = workers_.at(lost);
  entry.state = WorkerState::kDead;
  entry.lost_reason = reason;
  has_lost_ = true;
  const uint64_t incarnation = entry.info.incarnation;
  memory_.RemoveWorker(lost);
  tenants_.ForgetWorker(lost);
  std::vector<WorkerIndex> others;
  for (const auto& [index, worker] : workers_) {
    if (worker.state != WorkerState::kDead) others.push_back(index);
  }
  if (!others.empty()) ToGroup(MakeGroup(std::move(others)), PeerDied{lost, incarnation, reason});
  for (auto& [id, session] : sessions_) Send(session, WorkerLostNotice{lost, incarnation, reason});

  const absl::Status cause = absl::UnavailableError(StrCat("worker ", lost.value, " was lost (", reason, ")"));
  for (auto& [id, session] : sessions_) {
    for (Record& record : session.queue) KeepFromLost(record);
  }
  long_work_.losses.push_back({lost, cause, joins_});
  long_work_.is_seen = false;
  LossDesk(*this).GoOnWithLongWork();
  // Ops that it had not reported are over for it; in order of issue, so that first causes come first.
  std::vector<OpPointer> waiting;
  for (const auto& [ordinal, op] : ops_) {
    if (std::find(op->missing.begin(), op->missing.end(), lost) != op->missing.end()) waiting.push_back(op);
  }
  std::sort(waiting.begin(), waiting.end(), [](const auto& a, const auto& b) { return a->ordinal < b->ordinal; });
  for (const OpPointer& op : waiting) {
    CompletionReport report;
    report.ordinal = op->ordinal;
    // Where each worker of an op works alone, the others' results are good, if they have all of it.
    bool is_whole = true;
    for (const EntryNumber output : op->outputs) {
      const TensorPointer tensor = tensors_.Find(output);
      if (!tensor) continue;
      LossDesk(*this).LoseShard(*tensor, long_work_.losses.back());
      is_whole = is_whole && tensor->status.ok();
    }
    if (!op->works_alone || !is_whole) {
      report.status = absl::UnavailableError(
          StrCat(op->name, ": ", std::string_view(cause.message().data(), cause.message().size())));
    }
    CompletionDesk(*this).Complete(op, lost, report);
  }
  std::vector<TicketId> open;
  for (const auto& [id, ticket] : tickets_) open.push_back(id);
  for (TicketId id : open) CompletionDesk(*this).TransferDone(lost, {id, cause});
}

void StateMachine::On(const JoinTokenUsedEvent& event) { join_token_uses_[event.token].insert(event.worker); }

void StateMachine::On(const JoinTokenForgottenEvent& event) { join_token_uses_.erase(event.token); }

bool StateMachine::IsDead(WorkerIndex worker) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && found->second.state == WorkerState::kDead;
}

void StateMachine::KeepFromLost(Record& record) const {
  auto* call = has_lost_ ? std::get_if<CallRecord>(&record) : nullptr;
  if (call == nullptr) return;
  const Mesh* mesh = call->call.attributes.Get(attribute::mesh);
  const Placements* placements = call->call.attributes.Get(attribute::placements);
  if (mesh == nullptr || placements == nullptr || placements->size() != mesh->shape().size()) return;
  const absl::StatusOr<const OpRow*> row = FindOp(call->call.op);
  if (!row.ok() || (*row)->family == OpFamily::kCreation || (*row)->family == OpFamily::kRedistribute) return;
  const std::optional<Mesh> living = LivingMesh(*mesh, *placements, [this](WorkerIndex w) { return IsDead(w); });
  if (living.has_value()) call->call.attributes.Set(attribute::mesh, *living);
}

}  // namespace tessera
