#include "server/planner/sharded_along.h"

#include <algorithm>
#include <set>
#include <utility>

#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "server/plan/merged_runs.h"

namespace tessera {
namespace {

bool IsIn(absl::Span<const int64_t> dims, int64_t dim) {
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

// One element for each shard along the dims: each mesh dim that cuts one of them has its own part, and the parts lie in
// the order of the shards, because a Shard of as many elements as there are positions gives each position one.
TensorSpec OnePerShard(const TensorSpec& spec, absl::Span<const int64_t> dims, DType dtype) {
  TensorSpec parts = spec;
  parts.dtype = dtype;
  for (const int64_t dim : dims) parts.shape[static_cast<size_t>(dim)] = 1;
  for (int i = 0; i < spec.mesh.ndim(); ++i) {
    Placement& placement = parts.placements[static_cast<size_t>(i)];
    if (!placement.is_shard() || !IsIn(dims, placement.dim())) continue;
    parts.shape[static_cast<size_t>(placement.dim())] *= spec.mesh.shape()[static_cast<size_t>(i)];
    placement = Placement::Shard(placement.dim());
  }
  return parts;
}

// The same, whole along the dims.
TensorSpec Gathered(const TensorSpec& parts, absl::Span<const int64_t> dims) {
  TensorSpec gathered = parts;
  for (Placement& placement : gathered.placements) {
    if (placement.is_shard() && IsIn(dims, placement.dim())) placement = Placement::Replicate();
  }
  return gathered;
}

int AddLocal(PlanBuilder& builder, LocalOp op, std::vector<int> inputs, const TensorSpec& output) {
  LocalStep step;
  step.op = std::move(op);
  step.inputs = std::move(inputs);
  step.output = builder.AddTemporary(output);
  const int value = step.output;
  builder.AddLocal(std::move(step));
  return value;
}

}  // namespace

bool IsCutAlong(const TensorSpec& spec, absl::Span<const int64_t> dims) {
  return std::any_of(spec.placements.begin(), spec.placements.end(),
                     [&](const Placement& placement) { return placement.is_shard() && IsIn(dims, placement.dim()); });
}

absl::StatusOr<int> AddShardedScan(PlanBuilder& builder, const ScanOp& op, int input, const TensorSpec& output) {
  const std::vector<int64_t> dims = {op.dim};
  const TensorSpec spec = builder.value(input).spec;
  const TensorSpec parts = OnePerShard(spec, dims, AccumulatedIn(output.dtype));
  const int totals = AddLocal(builder, ReduceLocalOp{op.op, dims}, {input}, parts);
  TESSERA_ASSIGN_OR_RETURN(const int gathered, builder.AddRedistribute(totals, Gathered(parts, dims)));
  ScanOp before = op;
  before.span = ScanSpan::kExclusive;
  const int starts = AddLocal(builder, before, {gathered}, builder.value(gathered).spec);
  TESSERA_ASSIGN_OR_RETURN(const int own, builder.AddRedistribute(starts, parts));
  return AddLocal(builder, op, {input, own}, output);
}

absl::StatusOr<int> AddShardedSort(PlanBuilder& builder, const SortOp& op, int input, const TensorSpec& output,
                                   const Topology& topology) {
  const TensorSpec spec = builder.value(input).spec;
  const std::vector<int64_t> dims = {op.dim};
  MergeOp merge{.result = op.result, .runs = RunStarts(spec), .order = op.order};
  std::vector<int> sorted = {AddLocal(builder, op, {input}, output)};
  if (op.result == SortResult::kPlaces) {
    // Sorted again, which is several times faster than to pick the elements by their places.
    SortOp values = op;
    values.result = SortResult::kValues;
    sorted.insert(sorted.begin(), AddLocal(builder, values, {input}, spec));
  }
  // Where whole runs would come in messages, a host takes each of them once. A GPU's samples aren't where its host
  // reads them.
  const bool reads_ranges = AreOnOneHost({&spec.mesh}, topology) || SampleStepOf(spec, output) > 0;
  if (topology.kind == DeviceKind::kCpu && reads_ranges)
    return AddLocal(builder, std::move(merge), std::move(sorted), output);
  std::vector<ValueMove> moves;
  for (const int value : sorted) {
    moves.push_back({value, WithDType(Gathered(spec, dims), builder.value(value).spec.dtype)});
  }
  TESSERA_ASSIGN_OR_RETURN(std::vector<int> gathered, builder.AddRedistributes(moves));
  return AddLocal(builder, std::move(merge), std::move(gathered), output);
}

absl::StatusOr<int> AddShardedArgReduce(PlanBuilder& builder, const ArgReduceOp& op, int input,
                                        const TensorSpec& reduced) {
  const TensorSpec spec = builder.value(input).spec;
  const TensorSpec parts = OnePerShard(spec, op.dims, DType::kI64);
  const int numbers = AddLocal(builder, op, {input}, parts);
  const int values =
      AddLocal(builder, PickOp{op.dims, op.whole}, {input, numbers}, OnePerShard(spec, op.dims, spec.dtype));
  const TensorSpec gathered = Gathered(parts, op.dims);
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<int> there,
      builder.AddRedistributes({{{values, WithDType(gathered, spec.dtype)}, {numbers, gathered}}}));
  return AddLocal(builder, ArgReduceOp{op.extreme, op.dims}, there, reduced);
}

}  // namespace tessera
