#include "server/planner/sharded_along.h"

#include <algorithm>
#include <set>
#include <utility>

#include "schemas/ops/scalar_ops.h"
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

absl::StatusOr<int> AddShardCounts(PlanBuilder& builder, int mask, const TensorSpec& output) {
  const std::vector<int64_t> dims = {0};
  const TensorSpec parts = OnePerShard(builder.value(mask).spec, dims, DType::kI64);
  const int counts = AddLocal(builder, ReduceLocalOp{ReduceOp::kSum, dims}, {mask}, parts);
  return builder.AddRedistribute(counts, output);
}

absl::StatusOr<int> AddGatherApart(PlanBuilder& builder, const GatherOp& op, int array, int indices,
                                   const TensorSpec& wanted, const TensorSpec& output, const Topology& topology) {
  const TensorSpec spec = builder.value(array).spec;
  if (topology.kind == DeviceKind::kCpu && AreOnOneHost({&spec.mesh}, topology)) {
    TESSERA_ASSIGN_OR_RETURN(const int own, builder.AddImplicitRedistribute(indices, wanted));
    return AddLocal(builder, op, {array, own}, output);
  }
  // Floats of 8 bits aren't added up: each worker takes from all of them.
  if (IsFloat8(output.dtype)) {
    const std::vector<int64_t> dims = {op.dim};
    TESSERA_ASSIGN_OR_RETURN(const int own, builder.AddImplicitRedistribute(indices, wanted));
    TESSERA_ASSIGN_OR_RETURN(const int all, builder.AddRedistribute(array, Gathered(spec, dims)));
    return AddLocal(builder, GatherOp{op.dim}, {all, own}, output);
  }
  // Terms of a sum, of bools of an or: nothing where another shard has the row.
  TensorSpec terms = output, whole = wanted;
  const ReduceOp joins = output.dtype == DType::kBool ? ReduceOp::kBor : ReduceOp::kSum;
  for (size_t i = 0; i < spec.placements.size(); ++i) {
    if (!spec.placements[i].is_shard(static_cast<int>(op.dim))) continue;
    terms.placements[i] = Placement::Partial(joins);
    whole.placements[i] = Placement::Replicate();
  }
  DropIdleSizes(terms);
  DropIdleSizes(whole);
  TESSERA_ASSIGN_OR_RETURN(const int all, builder.AddImplicitRedistribute(indices, whole));
  const GatherOp of_shard{op.dim, spec.shape[static_cast<size_t>(op.dim)]};
  return builder.AddRedistribute(AddLocal(builder, of_shard, {array, all}, terms), output);
}

absl::StatusOr<int> AddFilterByOrder(PlanBuilder& builder, const FilterOp& op, absl::Span<const int> inputs,
                                     const TensorSpec& output) {
  const int mask = inputs.back();
  const TensorSpec of_mask = builder.value(mask).spec;
  Expression is_left_out;
  is_left_out.nodes = {{ScalarOp::kInput, DType::kBool, 0, 0, 0},
                       {ScalarOp::kNot, DType::kBool, 0, 0, 0},
                       {ScalarOp::kCast, DType::kU8, 1, 0, 0}};
  const int keys = AddLocal(builder, MapOp{std::move(is_left_out)}, {mask}, WithDType(of_mask, DType::kU8));
  const int order =
      AddLocal(builder, SortOp{SortResult::kPlaces, 0, SortOrder::kAscending}, {keys}, WithDType(of_mask, DType::kI64));
  TensorSpec kept = WithDType(of_mask, DType::kI64);
  kept.shape = {output.shape[static_cast<size_t>(op.dim)]};
  for (size_t i = 0; i < kept.placements.size(); ++i) {
    const Placement& placement = output.placements[i];
    kept.placements[i] = placement.is_shard(static_cast<int>(op.dim)) ? placement.OnDim(0) : Placement::Replicate();
  }
  const int places = builder.AddView(order, kept, 0, builder.value(order).strides);
  if (op.result == FilterResult::kRows) return AddLocal(builder, GatherOp{op.dim}, {inputs[0], places}, output);
  // Each shard's places are its own: the whole vector's numbers are gathered by them.
  Expression number;
  number.nodes = {{ScalarOp::kIndex, DType::kI64, 0, 0, 0}};
  const int numbers = AddLocal(builder, MapOp{std::move(number)}, {}, WithDType(of_mask, DType::kI64));
  return AddLocal(builder, GatherOp{0}, {numbers, places}, output);
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
