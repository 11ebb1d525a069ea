// Which lane of the workers an instruction runs in (lanes.h).

#include <algorithm>

#include "server/coordinator/issue_desk.h"
#include "server/coordinator/turn_desk.h"

namespace tessera {

bool StateMachine::IssueDesk::IsWrittenIn(Lane lane, const BufferPointer& buffer) const {
  if (!buffer || !buffer->history) return false;
  buffer->history->Prune([this](Ordinal ordinal) { return machine_.IsComplete(ordinal); });
  return buffer->history->IsWrittenIn(lane);
}

Lane StateMachine::IssueDesk::UsualLane(SessionEntry& session) const {
  const bool is_light = session.recent_use.IsLight(machine_.now_us_, config_);
  switch (session.tenant == nullptr ? kLanesAuto : session.tenant->limits.lanes) {
    case kLanesInteractive: return Lane::kLight;
    case kLanesBatch: return Lane::kBatch;
    default: return is_light ? Lane::kLight : Lane::kBatch;
  }
}

Lane StateMachine::IssueDesk::LaneForRead(SessionEntry& session, const TensorEntry& tensor) const {
  return IsWrittenIn(Lane::kBatch, tensor.buffer) ? Lane::kBatch : UsualLane(session);
}

Lane StateMachine::IssueDesk::LaneFor(SessionEntry& session, const PlanTemplate& plan,
                                      absl::Span<const TensorPointer> inputs) const {
  if (plan.measured->CostUs(plan.cost_us) > config_.max_light_us) return Lane::kBatch;
  // A library of collectives wants its calls in one order on all workers.
  if (!plan.collectives.empty() && MakesCalls(plan)) return Lane::kBatch;
  const auto waits = [this](const TensorPointer& tensor) { return IsWrittenIn(Lane::kBatch, tensor->buffer); };
  return std::any_of(inputs.begin(), inputs.end(), waits) ? Lane::kBatch : UsualLane(session);
}

uint8_t StateMachine::IssueDesk::ChooseStream(OpEntry& op, StreamId stream, std::vector<InstanceWait>& waits,
                                              CollectWaits collect) {
  const auto collect_for = [&](Lane lane) {
    const uint8_t chosen = NumberOf(InLane(stream, lane));
    waits.clear();
    collect(chosen, waits);
    machine_.DropRejoined(waits);
    return chosen;
  };
  const uint8_t chosen = collect_for(op.lane);
  const auto is_batch = [](const InstanceWait& wait) {
    return LaneOf(static_cast<StreamId>(wait.stream)) == Lane::kBatch;
  };
  if (op.lane == Lane::kBatch || std::none_of(waits.begin(), waits.end(), is_batch)) return chosen;
  for (const WorkerIndex worker : *op.workers) {
    LaneWindows& windows = machine_.workers_.at(worker).windows;
    windows.Remove(op.lane, op.cost_us, config_, TurnDesk(machine_).WindowUs());
    windows.Add(Lane::kBatch, op.cost_us, config_, TurnDesk(machine_).WindowUs());
  }
  op.lane = Lane::kBatch;
  return collect_for(Lane::kBatch);
}

// Freed memory is handed out again at once, and who gets it waits for those who still use it.
int64_t StateMachine::IssueDesk::QuietPlace(absl::Span<const WorkerIndex> workers, int64_t bytes) {
  constexpr int kMaxTries = 16;  // docs/limits.md: max_light_places
  if (bytes == 0 || bytes > config_.max_light_place_bytes) return 0;
  int64_t from = 0;
  for (int tries = 0; tries < kMaxTries; ++tries) {
    const std::optional<int64_t> start = machine_.memory_.FirstFit(workers, bytes, from);
    if (!start.has_value()) break;
    int64_t stop = *start;
    for (FreedRange& range : machine_.freed_) {
      if (range.start >= *start + bytes || *start >= range.stop) continue;
      range.history.Prune([this](Ordinal ordinal) { return machine_.IsComplete(ordinal); });
      if (range.history.IsTouchedIn(Lane::kBatch)) stop = std::max(stop, range.stop);
    }
    if (stop == *start) return *start;
    from = stop;
  }
  return 0;
}

}  // namespace tessera
