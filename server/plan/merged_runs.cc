#include "server/plan/merged_runs.h"

#include <algorithm>
#include <map>

#include "schemas/types/layout.h"

namespace tessera {

bool MergesInPlace(const Plan& plan, const LocalStep& step) {
  if (!std::holds_alternative<MergeOp>(step.op) || step.inputs.empty()) return false;
  const int value = step.inputs[0];
  if (value < 0 || static_cast<size_t>(value) >= plan.values.size()) return false;
  const Placements& placements = plan.values[static_cast<size_t>(value)].spec.placements;
  return std::any_of(placements.begin(), placements.end(), [](const Placement& p) { return p.is_shard(); });
}

Shape RunStarts(const TensorSpec& vector) {
  Shape starts;
  for (const PlacedRun& run : RunsAt(vector, vector.mesh.PositionAt(0))) starts.push_back(run.range.start);
  if (starts.empty()) starts.push_back(0);
  return starts;
}

std::vector<PlacedRun> RunsAt(const TensorSpec& vector, absl::Span<const int64_t> reader) {
  struct Holder {
    PlacedRun run;
    int64_t distance = 0;
  };
  std::map<int64_t, Holder> by_start;
  for (int64_t flat = 0; flat < vector.mesh.size(); ++flat) {
    const Position position = vector.mesh.PositionAt(flat);
    const Interval range = LocalBox(vector, position)[0];
    if (range.empty()) continue;
    int64_t distance = 0;
    for (size_t i = 0; i < position.size(); ++i) distance += position[i] != reader[i] ? 1 : 0;
    const WorkerIndex worker = vector.mesh.workers()[static_cast<size_t>(flat)];
    const auto [at, is_new] = by_start.try_emplace(range.start, Holder{{worker, range}, distance});
    if (!is_new && distance < at->second.distance) at->second = {{worker, range}, distance};
  }
  std::vector<PlacedRun> runs;
  for (const auto& [start, holder] : by_start) runs.push_back(holder.run);
  return runs;
}

MostMoved MostMovedBy(const TensorSpec& vector, const TensorSpec& output) {
  const Mesh& mesh = output.mesh;
  MostMoved most{std::vector<int64_t>(static_cast<size_t>(mesh.size())),
                 std::vector<int64_t>(static_cast<size_t>(mesh.size()))};
  for (int64_t flat = 0; flat < mesh.size(); ++flat) {
    const Position reader = mesh.PositionAt(flat);
    const int64_t wanted = LocalBox(output, reader)[0].size();
    int64_t& received = most.received[static_cast<size_t>(flat)];
    for (const PlacedRun& run : RunsAt(vector, reader)) {
      if (run.holder == mesh.workers()[static_cast<size_t>(flat)]) continue;
      const int64_t taken = std::min(wanted, run.range.size());
      received = std::min(wanted, received + taken);
      int64_t& sent = most.sent[static_cast<size_t>(*mesh.FindWorker(run.holder))];
      sent = std::min(run.range.size(), sent + taken);
    }
  }
  return most;
}

}  // namespace tessera
