// Workers that answer pings and do no work: a probe tells them from those that wait for others.
//
// A worker has made no progress since its last report, or since it got something to do. After work_timeout, or many
// times what all that it has to do is predicted to take, it gets a probe: to read one byte of its own memory, on a
// stream of its own, on which nothing waits for anything. A worker whose other streams wait for a peer answers at once,
// and has as much time again. A worker that doesn't answer in half of work_timeout, and whose device doesn't work, is
// ended as a silent one is. One whose device works may be at an op that is far longer than predicted, on its only
// thread: it has an hour. A kernel that never ends looks the same; tessera kill-worker is for that.

#include <algorithm>
#include <memory>
#include <utility>

#include "schemas/types/layout.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/stall_desk.h"

namespace tessera {

void StateMachine::StallDesk::WatchWork() {
  // docs/limits.md: work_timeout_factor. Predictions are of a quiet machine, and of memory that is there.
  constexpr int64_t kPredictionFactor = 100;
  constexpr int64_t kAtWorkFactor = 60;
  std::vector<WorkerIndex> to_probe;
  for (auto& [index, worker] : machine_.workers_) {
    if (worker.state == WorkerState::kDead || worker.windows.outstanding() == 0) continue;
    if (worker.probe.value != 0) {
      const int64_t half_us = config_.work_timeout_us / 2;
      const bool is_at_work = machine_.now_us_ - worker.at_work_us < half_us;
      if (machine_.now_us_ - worker.probed_us < (is_at_work ? kAtWorkFactor * config_.work_timeout_us : half_us))
        continue;
      if (worker.stalled.empty()) worker.stalled = WhyStalled(index, worker);
      continue;
    }
    const int64_t allowed_us = std::max(config_.work_timeout_us, kPredictionFactor * worker.windows.outstanding_us());
    if (machine_.now_us_ - worker.working_since_us >= allowed_us) to_probe.push_back(index);
  }
  for (const WorkerIndex worker : to_probe) Probe(worker);
}

// A worker that has nothing to do shows by a read of a byte, in its light lane, that its device works.
void StateMachine::StallDesk::AskIdle() {
  if (config_.idle_check_us == 0) return;
  for (auto& [index, worker] : machine_.workers_) {
    const bool is_idle = worker.state == WorkerState::kAlive && worker.windows.outstanding() == 0;
    if (!is_idle || machine_.now_us_ - worker.done_us < config_.idle_check_us) continue;
    ReadByte(index, "health", StreamId::kIoLight, Lane::kLight);
  }
}

void StateMachine::StallDesk::Probe(WorkerIndex index) {
  WorkerEntry& worker = machine_.workers_.at(index);
  worker.probe = ReadByte(index, "probe", StreamId::kProbe, Lane::kBatch);
  worker.probed_us = machine_.now_us_;
}

Ordinal StateMachine::StallDesk::ReadByte(WorkerIndex worker, std::string_view name, StreamId stream, Lane lane) {
  const Mesh mesh = *Mesh::Make({1}, {}, {worker});
  const TensorSpec spec = *TensorSpec::Make(std::string(name), DType::kU8, {1}, mesh, {Placement::Replicate()});
  TensorPointer tensor = machine_.tensors_.Add();
  tensor->layout = machine_.layouts_.Of(spec, RowMajorStrides(spec.shape));
  const OpPointer op =
      machine_.NewOp(OpEntry::Kind::kInlineRead, name, SessionId(), machine_.groups_.Of(mesh), 1, lane);
  op->mesh = mesh;
  op->tensor = tensor;
  InlineRead read;
  read.stream = NumberOf(stream);
  read.ordinal = op->ordinal;
  read.spec = spec;
  read.strides = tensor->strides();
  machine_.ToGroup(op->workers, std::move(read));
  return op->ordinal;
}

std::string StateMachine::StallDesk::WhyStalled(WorkerIndex index, const WorkerEntry& worker) const {
  const OpEntry* oldest = nullptr;
  for (const auto& [ordinal, op] : machine_.ops_) {
    if (std::find(op->missing.begin(), op->missing.end(), index) == op->missing.end()) continue;
    if (oldest == nullptr || op->ordinal < oldest->ordinal) oldest = op.get();
  }
  const double waited_s = static_cast<double>(machine_.now_us_ - worker.working_since_us) * 1e-6;
  return StrCat("it answers and does no work: ", oldest == nullptr ? "" : StrCat(oldest->name, " has not ended in "),
                waited_s, " s, ", static_cast<double>(oldest == nullptr ? 0 : oldest->cost_us) * 1e-6,
                " s were predicted, and a byte of its memory is not read in ",
                static_cast<double>(machine_.now_us_ - worker.probed_us) * 1e-6, " s");
}

}  // namespace tessera
