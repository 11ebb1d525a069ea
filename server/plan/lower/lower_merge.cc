#include "server/plan/lower/lower_merge.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "schemas/types/layout.h"
#include "server/plan/lower/operand_at.h"
#include "server/plan/merge_ranges.h"
#include "server/plan/merged_runs.h"

namespace tessera {
namespace {

// A merge of runs that lie apart: the reader's kernel has an input for each run, in the memory of its holder.
class MergeLowering {
 public:
  MergeLowering(const Plan& plan, const LocalStep& step, WorkerIndex worker, PhaseShare share)
      : plan_(plan),
        step_(step),
        output_(Value(step.output)),
        mesh_(output_.spec.mesh),
        worker_(worker),
        sample_step_(share == PhaseShare::kAlone && AreContiguous()
                         ? SampleStepOf(Value(step.inputs[0]).spec, output_.spec)
                         : 0) {}

  void Lower(MessageDrafts* drafts, Phase& phase) const {
    for (int64_t flat = 0; flat < mesh_.size(); ++flat) {
      const Box box = LocalBox(output_.spec, mesh_.PositionAt(flat));
      if (IsEmpty(box)) continue;
      const WorkerIndex reader = mesh_.workers()[static_cast<size_t>(flat)];
      if (reader == worker_) AddKernel(box, drafts, phase);
      if (reader != worker_) AddReader(reader, drafts, phase);
    }
  }

 private:
  const PlanValue& Value(int value) const { return plan_.values[static_cast<size_t>(value)]; }
  // So that what travels of a run is sent from where it lies.
  bool AreContiguous() const {
    return std::all_of(step_.inputs.begin(), step_.inputs.end(),
                       [this](int input) { return Value(input).strides[0] == 1; });
  }
  std::vector<PlacedRun> RunsOf(int input, WorkerIndex reader) const {
    return RunsAt(Value(input).spec, mesh_.PositionAt(*mesh_.FindWorker(reader)));
  }
  // It is wanted whole before any of it is merged.
  static constexpr CutRule kWhole = {.whole_dims = 1};

  // The begin of every message: the samples of the sender's run.
  DraftPart SamplesOf(const PlacedRun& run) const {
    const PlanValue& values = Value(step_.inputs[0]);
    Operand samples = OperandAt(values, run.holder);
    samples.strides[0] *= sample_step_;
    return {.dtype = values.spec.dtype,
            .extents = {SampleCount(run.range.size(), sample_step_)},
            .rule = kWhole,
            .is_alone = true,
            .sources = {std::move(samples)},
            .source_dtype = values.spec.dtype};
  }
  bool is_ranged() const { return sample_step_ > 0; }

  void AddKernel(const Box& box, MessageDrafts* drafts, Phase& phase) const {
    const int number = static_cast<int>(phase.instructions.size());
    KernelInstruction kernel;
    kernel.op = step_.op;
    kernel.output = OperandAt(output_, worker_);
    kernel.output_extents = BoxShape(box);
    kernel.output_dtype = output_.spec.dtype;
    kernel.output_box = box;
    for (const int input : step_.inputs) {
      const PlanValue& value = Value(input);
      for (const PlacedRun& run : RunsOf(input, worker_)) {
        const bool is_peer = run.holder != worker_;
        const Shape extents = {run.range.size()};
        if (is_peer && drafts != nullptr) {
          DraftMessage& message = drafts->incoming[run.holder];
          if (is_ranged() && message.parts.empty()) message.parts.push_back(SamplesOf(run));
          message.operands.push_back(
              {number, static_cast<int>(kernel.inputs.size()), static_cast<int>(message.parts.size()), {0}});
          message.parts.push_back(
              {.dtype = value.spec.dtype, .extents = extents, .rule = kWhole, .is_alone = is_ranged()});
        }
        kernel.inputs.push_back(OperandAt(value, run.holder));
        kernel.input_extents.push_back(extents);
        kernel.input_dtypes.push_back(value.spec.dtype);
        kernel.input_is_zero.push_back(0);
        kernel.input_received_bytes.push_back(is_peer ? SizeBytes(value.spec.dtype) : 0);
        (is_peer ? phase.buffers.reads_of_peers : phase.buffers.reads).push_back(value.buffer);
        if (is_peer) phase.peers.reads_from.push_back(run.holder);
      }
    }
    if (sample_step_ > 0) phase.kind = RangedMerge{sample_step_};
    phase.buffers.writes.push_back(output_.buffer);
    phase.instructions.emplace_back(std::move(kernel));
  }

  void AddReader(WorkerIndex reader, MessageDrafts* drafts, Phase& phase) const {
    for (const int input : step_.inputs) {
      const PlanValue& value = Value(input);
      for (const PlacedRun& run : RunsOf(input, reader)) {
        if (run.holder != worker_) continue;
        phase.peers.read_by.push_back(reader);
        phase.buffers.reads.push_back(value.buffer);
        if (drafts == nullptr) continue;
        std::vector<DraftPart>& parts = drafts->outgoing[reader].parts;
        if (is_ranged() && parts.empty()) parts.push_back(SamplesOf(run));
        parts.push_back({.dtype = value.spec.dtype,
                         .extents = {run.range.size()},
                         .rule = kWhole,
                         .is_alone = is_ranged(),
                         .sources = {OperandAt(value, worker_)},
                         .source_dtype = value.spec.dtype});
      }
    }
  }

  const Plan& plan_;
  const LocalStep& step_;
  const PlanValue& output_;
  const Mesh& mesh_;
  const WorkerIndex worker_;
  const int64_t sample_step_;
};

void AddInput(const PlanValue& value, WorkerIndex holder, Shape extents, int64_t received_bytes,
              KernelInstruction& kernel) {
  kernel.inputs.push_back(OperandAt(value, holder));
  kernel.input_extents.push_back(std::move(extents));
  kernel.input_dtypes.push_back(value.spec.dtype);
  kernel.input_is_zero.push_back(0);
  kernel.input_received_bytes.push_back(received_bytes);
}

}  // namespace

void LowerGather(const Plan& plan, const LocalStep& step, WorkerIndex worker, Phase& phase) {
  const PlanValue& output = plan.values[static_cast<size_t>(step.output)];
  const PlanValue& array = plan.values[static_cast<size_t>(step.inputs[0])];
  const PlanValue& indices = plan.values[static_cast<size_t>(step.inputs[1])];
  const int64_t dim = std::get<GatherOp>(step.op).dim;
  const Mesh& mesh = output.spec.mesh;
  for (int64_t flat = 0; flat < mesh.size(); ++flat) {
    const Position position = mesh.PositionAt(flat);
    const Box box = LocalBox(output.spec, position);
    if (IsEmpty(box)) continue;
    const WorkerIndex reader = mesh.workers()[static_cast<size_t>(flat)];
    KernelInstruction kernel;
    for (const PlacedRun& shard : ShardsAlong(array.spec, dim, position)) {
      if (reader != worker) {
        if (shard.holder != worker) continue;
        phase.peers.read_by.push_back(reader);
        phase.buffers.reads.push_back(array.buffer);
        continue;
      }
      const bool is_peer = shard.holder != worker;
      Shape extents = BoxShape(LocalBox(array.spec, position));
      extents[static_cast<size_t>(dim)] = shard.range.size();
      AddInput(array, shard.holder, std::move(extents), is_peer ? SizeBytes(array.spec.dtype) : 0, kernel);
      (is_peer ? phase.buffers.reads_of_peers : phase.buffers.reads).push_back(array.buffer);
      if (is_peer) phase.peers.reads_from.push_back(shard.holder);
    }
    if (reader != worker) continue;
    AddInput(indices, worker, BoxShape(LocalBox(indices.spec, position)), 0, kernel);
    kernel.op = step.op;
    kernel.output = OperandAt(output, worker);
    kernel.output_extents = BoxShape(box);
    kernel.output_dtype = output.spec.dtype;
    kernel.output_box = box;
    phase.buffers.reads.push_back(indices.buffer);
    phase.buffers.writes.push_back(output.buffer);
    phase.instructions.emplace_back(std::move(kernel));
  }
}

void LowerMerge(const Plan& plan, const LocalStep& step, WorkerIndex worker, PhaseShare share, MessageDrafts* drafts,
                Phase& phase) {
  MergeLowering(plan, step, worker, share).Lower(drafts, phase);
}

}  // namespace tessera
