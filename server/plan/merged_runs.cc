#include "server/plan/merged_runs.h"

#include <algorithm>
#include <map>

#include "schemas/types/layout.h"
#include "server/plan/merge_ranges.h"

namespace tessera {

bool MergesInPlace(const Plan& plan, const LocalStep& step) {
  if (!std::holds_alternative<MergeOp>(step.op) || step.inputs.empty()) return false;
  const int value = step.inputs[0];
  if (value < 0 || static_cast<size_t>(value) >= plan.values.size()) return false;
  const Placements& placements = plan.values[static_cast<size_t>(value)].spec.placements;
  return std::any_of(placements.begin(), placements.end(), [](const Placement& p) { return p.is_shard(); });
}

bool GathersInPlace(const Plan&, const LocalStep& step) {
  const auto* gather = std::get_if<GatherOp>(&step.op);
  return gather != nullptr && gather->from == GatherFrom::kApart;
}

size_t InputsAtPeers(const Plan& plan, const LocalStep& step) {
  if (MergesInPlace(plan, step)) return step.inputs.size();
  return GathersInPlace(plan, step) && !step.inputs.empty() ? 1 : 0;
}

Shape RunStarts(const TensorSpec& vector) {
  Shape starts;
  for (const PlacedRun& run : RunsAt(vector, vector.mesh.PositionAt(0))) starts.push_back(run.range.start);
  if (starts.empty()) starts.push_back(0);
  return starts;
}

std::vector<PlacedRun> RunsAt(const TensorSpec& vector, absl::Span<const int64_t> reader) {
  return ShardsAlong(vector, 0, reader);
}

std::vector<PlacedRun> ShardsAlong(const TensorSpec& spec, int64_t dim, absl::Span<const int64_t> reader) {
  const auto along = static_cast<size_t>(dim);
  const Box own = LocalBox(spec, reader);
  struct Holder {
    PlacedRun run;
    int64_t distance = 0;
  };
  std::map<int64_t, Holder> by_start;
  for (int64_t flat = 0; flat < spec.mesh.size(); ++flat) {
    const Position position = spec.mesh.PositionAt(flat);
    Box box = LocalBox(spec, position);
    const Interval range = box[along];
    box[along] = own[along];
    if (range.empty() || box != own) continue;
    int64_t distance = 0;
    for (size_t i = 0; i < position.size(); ++i) distance += position[i] != reader[i] ? 1 : 0;
    const WorkerIndex worker = spec.mesh.workers()[static_cast<size_t>(flat)];
    const auto [at, is_new] = by_start.try_emplace(range.start, Holder{{worker, range}, distance});
    if (!is_new && distance < at->second.distance) at->second = {{worker, range}, distance};
  }
  std::vector<PlacedRun> runs;
  for (const auto& [start, holder] : by_start) runs.push_back(holder.run);
  return runs;
}

int64_t SampleStepOf(const TensorSpec& vector, const TensorSpec& output) {
  if (WithDType(output, vector.dtype) != vector) return 0;
  Shape sizes;
  for (const PlacedRun& run : RunsAt(vector, vector.mesh.PositionAt(0))) sizes.push_back(run.range.size());
  return SampleStep(sizes);
}

MostMoved MostMovedBy(const TensorSpec& vector, const TensorSpec& output) {
  const Mesh& mesh = output.mesh;
  const std::vector<int64_t> none(static_cast<size_t>(mesh.size()));
  MostMoved most{none, none, none, none};
  const int64_t step = SampleStepOf(vector, output);
  for (int64_t flat = 0; flat < mesh.size(); ++flat) {
    const Position reader = mesh.PositionAt(flat);
    const size_t self = static_cast<size_t>(flat);
    const int64_t wanted = LocalBox(output, reader)[0].size();
    if (wanted == 0) continue;
    const std::vector<PlacedRun> runs = RunsAt(vector, reader);
    const auto count = static_cast<int64_t>(runs.size());
    const int64_t slack = step == 0 ? 0 : RangeSlack(count, step);
    for (const PlacedRun& run : runs) {
      if (run.holder == mesh.workers()[self]) continue;
      const size_t holder = static_cast<size_t>(*mesh.FindWorker(run.holder));
      const int64_t size = run.range.size();
      if (step == 0) {
        most.received[self] += size;
        most.sent[holder] += size;
        continue;
      }
      most.received[self] = std::min(wanted + slack, most.received[self] + size);
      // The ranges of parts that follow each other have no more than the slack in common.
      most.sent[holder] = std::min(size + (count - 1) * slack, most.sent[holder] + std::min(wanted + slack, size));
      most.samples_received[self] += SampleCount(size, step);
      most.samples_sent[holder] += SampleCount(size, step);
    }
  }
  return most;
}

MostMoved MostGathered(const TensorSpec& output) {
  const Mesh& mesh = output.mesh;
  const std::vector<int64_t> none(static_cast<size_t>(mesh.size()));
  MostMoved most{none, none, none, none};
  int64_t total = 0;
  for (int64_t flat = 0; flat < mesh.size(); ++flat) {
    const size_t self = static_cast<size_t>(flat);
    most.received[self] = NumElements(LocalBox(output, mesh.PositionAt(flat)));
    total += most.received[self];
  }
  for (size_t self = 0; self < most.sent.size(); ++self) most.sent[self] = total - most.received[self];
  return most;
}

}  // namespace tessera
