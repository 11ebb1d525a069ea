// Turns: whose records are taken up next, and what each pays. The order is FairTurns'; here are its gates, which are
// the windows of the workers, and its costs.
//
// An op is charged when it is issued by what it is expected to take: the average of what workers measured of its plan,
// or the model's prediction where they measured none. When it has ended the charge becomes what it took on the slowest
// of its workers. The coordinator's own work is charged by estimates, so that a replay gives the same. One event does
// at most max_intake_us of it: then others have their turn, and ContinuedEvent goes on.

#include <algorithm>
#include <utility>

#include "server/coordinator/group_desk.h"
#include "server/coordinator/intake_desk.h"
#include "server/coordinator/loss_desk.h"
#include "server/coordinator/spill_desk.h"
#include "server/coordinator/turn_desk.h"

namespace tessera {
namespace {

// A worker's lane is a gate.
int32_t GateOf(WorkerIndex worker, Lane lane) {
  return worker.value * static_cast<int32_t>(kLaneCount) + static_cast<int32_t>(lane);
}
Lane LaneOfGate(int32_t gate) { return static_cast<Lane>(gate % static_cast<int32_t>(kLaneCount)); }

constexpr int64_t kRecordUs = 10;       // of an event's time that one takes, to be on the safe side
constexpr int64_t kRecordChargeUs = 2;  // that its session pays for it, about what it takes
constexpr int64_t kAverageParts = 4;    // of a measured cost: the last one is one of them

// The time of a device. A worker that doesn't measure it says the time that passed.
int64_t DeviceNs(const ProfiledRun& run) { return run.times.busy_ns > 0 ? run.times.busy_ns : run.times.work_ns; }

// Gates below those that FairTurns names are of tenants: one that had its device_share waits there.
constexpr int32_t kFirstTenantGate = FairTurns::kAnyChange - 1;
int32_t GateOf(const TenantEntry& tenant) { return kFirstTenantGate - tenant.number; }
int32_t TenantOfGate(int32_t gate) { return kFirstTenantGate - gate; }

// Drops, watches and the like are taken up however much the tenant had: they give back, or cost the devices nothing.
bool NeedsDevices(const Record& record) {
  return std::holds_alternative<CallRecord>(record) || std::holds_alternative<UploadRecord>(record) ||
         std::holds_alternative<DownloadRecord>(record) || std::holds_alternative<CollectiveRecord>(record);
}

int64_t SumOfNs(const ProfiledRuns& runs) {
  int64_t ns = 0;
  for (const ProfiledRun& run : runs) ns += DeviceNs(run);
  return ns;
}

int64_t SlowestOf(const ProfiledRuns& runs) {
  int64_t work_ns = 0;
  for (const ProfiledRun& run : runs) work_ns = std::max(work_ns, DeviceNs(run));
  return work_ns;
}

}  // namespace

void StateMachine::TurnDesk::Pump() {
  machine_.has_more_ = false;
  const auto is_open = [this](int32_t gate) {
    if (gate <= kFirstTenantGate) return !machine_.IsOverShare(machine_.tenants_.at(TenantOfGate(gate)));
    return IsOpen(WorkerIndex(gate / static_cast<int32_t>(kLaneCount)), LaneOfGate(gate));
  };
  turns_.Reopen(is_open);
  for (;;) {
    GroupDesk(machine_).TakeBackParked();
    machine_.FillFreed();
    const std::optional<SessionId> next = turns_.Next();
    if (!next.has_value()) {
      if (machine_.unparked_.empty()) return;
      continue;
    }
    if (const int32_t gate = turns_.GateOf(*next); (gate >= 0 || gate <= kFirstTenantGate) && !is_open(gate)) {
      turns_.Close(gate);
      continue;
    }
    if (machine_.intake_left_us_ <= 0) {
      machine_.has_more_ = true;
      return;
    }
    turn_ = *next;
    TakeTurn(machine_.sessions_.at(turn_));
    turn_ = SessionId();
  }
}

void StateMachine::TurnDesk::TakeTurn(SessionEntry& session) {
  gate_ = FairTurns::kAnyChange;
  if (!LossDesk(machine_).IsSwept(session)) return turns_.SetBlocked(turn_, gate_);
  if (NeedsDevices(session.queue.front()) && machine_.IsOverShare(*session.tenant)) {
    session.awaits_upload = false;
    SpillDesk(machine_).HandTurnOn(turn_);
    return turns_.SetBlocked(turn_, GateOf(*session.tenant));
  }
  size_t taken = 1;
  int64_t weight = WeightOf(session.queue.front());  // which a record has that isn't taken yet
  const Progress progress = IntakeDesk(machine_).Take(session, taken);
  session.awaits_upload = progress == Progress::kAwaitsUpload;
  if (progress != Progress::kDone) {
    if (gate_ != FairTurns::kAnyChange || session.awaits_upload) SpillDesk(machine_).HandTurnOn(turn_);
    return turns_.SetBlocked(turn_, gate_);
  }
  SpillDesk(machine_).Taken(session);
  int64_t taken_weight = 0;
  for (; taken > 0; --taken) {
    taken_weight += weight;
    session.queue.pop_front();
    if (taken > 1) weight = WeightOf(session.queue.front());
  }
  session.queue_weight -= taken_weight;
  machine_.intake_left_us_ -= taken_weight * kRecordUs;
  turns_.Pay(turn_, taken_weight * kRecordChargeUs * kTicksPerUs);
  session.queue.empty() ? turns_.SetIdle(turn_) : turns_.SetReady(turn_);
}

void StateMachine::TurnDesk::Charge(SessionEntry& session, int64_t own_us) {
  if (&session == &machine_.nobody_) return;
  turns_.Pay(session.info.session, own_us * kTicksPerUs);
  machine_.intake_left_us_ -= own_us;
}

void StateMachine::On(const SessionChargedEvent& event) {
  if (sessions_.contains(event.session)) turns_.Pay(event.session, event.us * kTicksPerUs);
}

// ---- device_share -------------------------------------------------------------------------------

DeviceShare::Rate MachineTables::RateOf(const TenantEntry& tenant) const {
  const auto lives = [](const auto& worker) { return worker.second.state != WorkerState::kDead; };
  return {tenant.limits.max_device_permille, std::count_if(workers_.begin(), workers_.end(), lives)};
}

void MachineTables::AddToShare(TenantEntry& tenant, int64_t ticks) {
  if (tenant.limits.max_device_permille == kUnlimited) return;
  tenant.share.Add(now_us_, ticks, RateOf(tenant));
}

// A pool without workers has no device time to share: its records are taken up, and refused by name.
bool MachineTables::IsOverShare(const TenantEntry& tenant) const {
  if (tenant.limits.max_device_permille == kUnlimited) return false;
  const DeviceShare::Rate rate = RateOf(tenant);
  return rate.workers > 0 && tenant.share.IsOver(now_us_, rate);
}

// ---- windows ------------------------------------------------------------------------------------

int64_t StateMachine::TurnDesk::WindowUs() {
  const int64_t alone_us = config_.max_outstanding_us_per_worker;
  return turns_.AreCompeting() ? std::min(alone_us, config_.max_outstanding_us_shared) : alone_us;
}

// A worker that isn't there is refused later, by name.
bool StateMachine::TurnDesk::IsOpen(WorkerIndex worker, Lane lane) {
  const auto found = machine_.workers_.find(worker);
  if (found == machine_.workers_.end() || found->second.state == WorkerState::kDead) return true;
  const WorkerEntry& entry = found->second;
  return entry.state != WorkerState::kSuspect && entry.admits != Admits::kNobody &&
         entry.windows.HasRoom(lane, config_, WindowUs());
}

bool StateMachine::TurnDesk::HasRoom(absl::Span<const WorkerIndex> workers, Lane lane) {
  for (const WorkerIndex worker : workers) {
    if (IsOpen(worker, lane)) continue;
    gate_ = GateOf(worker, lane);
    return false;
  }
  return true;
}

bool StateMachine::TurnDesk::HasRoomFor(const PlanTemplate& plan, Lane lane) {
  const MeasuredCost& measured = *plan.measured;
  const bool is_unknown = measured.ticks == 0 && measured.under_way >= config_.max_unmeasured_instances;
  return !is_unknown && HasRoom(*plan.workers, lane);
}

// ---- what work costs ----------------------------------------------------------------------------

OpPointer StateMachine::TurnDesk::NewRun(std::string_view name, SessionId session, const PlanTemplate& plan,
                                         Lane lane) {
  const int64_t cost_us = plan.measured->CostUs(plan.cost_us);
  OpPointer op = machine_.NewOp(OpEntry::Kind::kRun, name, session, plan.workers, cost_us, lane);
  op->plan = plan.plan;
  op->predicted_us = plan.cost_us;
  op->measured = plan.measured;
  ++op->measured->under_way;
  return op;
}

// A worker that was lost has measured nothing. Where none has, the charge stays as it is.
void StateMachine::TurnDesk::EndWork(OpEntry& op) {
  const int64_t took = TicksOfNs(SlowestOf(op.runs));
  if (op.measured != nullptr) {
    MeasuredCost& cost = *op.measured;
    --cost.under_way;
    const bool is_whole = op.runs.size() == op.workers->size() && op.status.ok();
    if (is_whole && took > 0)
      cost.ticks = cost.ticks == 0 ? took : std::max<int64_t>(1, cost.ticks + (took - cost.ticks) / kAverageParts);
    op.measured = nullptr;
  }
  const int64_t took_us = took / kTicksPerUs;
  if (auto session = machine_.sessions_.find(op.session); took_us > op.cost_us && session != machine_.sessions_.end()) {
    session->second.recent_use.Add(machine_.now_us_, took_us - op.cost_us, config_);
  }
  if (op.charge.tenant < 0) return;
  turns_.Settle(op.charge, took > 0 ? took : op.charge.ticks);
  const int64_t device_ns = SumOfNs(op.runs);
  TenantEntry& tenant = machine_.tenants_.at(op.charge.tenant);
  tenant.device_ns += device_ns;
  if (took > 0) {
    machine_.AddToShare(tenant, TicksOfNs(device_ns) - op.charge.ticks * static_cast<int64_t>(op.workers->size()));
  }
  if (auto session = machine_.sessions_.find(op.session); session != machine_.sessions_.end()) {
    session->second.usage.device_ns += device_ns;
  }
  op.charge = {};
}

void StateMachine::TurnDesk::PayForRuns(SessionEntry& session, const ProfiledRuns& runs) {
  turns_.Pay(session.info.session, TicksOfNs(SlowestOf(runs)));
  const int64_t device_ns = SumOfNs(runs);
  session.tenant->device_ns += device_ns;
  machine_.AddToShare(*session.tenant, TicksOfNs(device_ns));
  session.usage.device_ns += device_ns;
}

}  // namespace tessera
