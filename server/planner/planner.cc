#include "server/planner/planner.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/linalg_op.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/movement/same_shards.h"
#include "server/planner/builder.h"
#include "server/planner/contraction.h"
#include "server/planner/donations.h"
#include "server/planner/fusion.h"
#include "server/planner/parts_to_narrow.h"
#include "server/planner/segment_saving.h"
#include "server/planner/sharded_along.h"
#include "server/planner/shared_temporaries.h"
#include "server/planner/smaller_way.h"

namespace tessera {
namespace {

std::vector<OperandSpec> SpecsOf(absl::Span<const PlanOperand> operands) {
  std::vector<OperandSpec> specs;
  specs.reserve(operands.size());
  for (const PlanOperand& operand : operands) {
    if (const auto* layout = std::get_if<OperandLayout>(&operand)) {
      specs.emplace_back(layout->spec);
    } else {
      specs.emplace_back(std::get<Scalar>(operand));
    }
  }
  return specs;
}

std::vector<int> Range(size_t first, size_t count) {
  std::vector<int> range(count);
  std::iota(range.begin(), range.end(), static_cast<int>(first));
  return range;
}

int64_t OffsetOf(const Shape& start, const Strides& strides) {
  return std::inner_product(start.begin(), start.end(), strides.begin(), int64_t{0});
}

Expression CopyExpression(DType dtype) { return Expression{{{ScalarOp::kInput, dtype, 0, 0, 0}}}; }

// Adds one op's steps to a plan, family by family.
class OpPlanner {
 public:
  // `inputs`: the values of its tensor operands. `mapped`: the map's result, for a reduction with a map.
  OpPlanner(PlanBuilder& builder, const OpCall& call, const OpResolution& resolution, std::optional<TensorSpec> mapped,
            std::vector<int> inputs, const Topology& topology, const PlanLimits& limits)
      : builder_(builder),
        call_(call),
        resolution_(resolution),
        mapped_(std::move(mapped)),
        output_(resolution_.outputs[0]),
        topology_(topology),
        limits_(limits),
        inputs_(std::move(inputs)),
        first_scalar_(static_cast<size_t>(builder.plan().scalar_count)) {}

  // The values of its results.
  absl::StatusOr<std::vector<int>> Run(OpFamily family) {
    Plan& plan = builder_.plan();
    plan.scalar_count += static_cast<int>(resolution_.scalars.size() + resolution_.epilogue_scalars.size());
    plan.flops += resolution_.flops;
    if (family == OpFamily::kRedistribute) return PlanMoves();
    if (family != OpFamily::kView && NumElements(output_.shape) == 0) {  // nothing is read for it
      return std::vector<int>{builder_.AddTemporary(output_)};
    }
    TESSERA_ASSIGN_OR_RETURN(const int output, PlanFamily(family));
    return std::vector<int>{output};
  }

 private:
  absl::StatusOr<int> PlanFamily(OpFamily family) {
    switch (family) {
      case OpFamily::kCreation:
      case OpFamily::kElementwise: return PlanMap();
      case OpFamily::kReduction:
      case OpFamily::kArgReduction: return PlanReduction();
      case OpFamily::kContraction: return PlanContraction();
      case OpFamily::kView: return PlanView();
      case OpFamily::kPlace:
      case OpFamily::kAlong:
      case OpFamily::kIndexed:
      case OpFamily::kAttention:
      case OpFamily::kFourier:
      case OpFamily::kGrouped:
      case OpFamily::kMatrices:
      case OpFamily::kWindows: return PlanLocal();
      case OpFamily::kComposite:            // its nodes are planned
      case OpFamily::kRedistribute: break;  // has several outputs: PlanMoves
    }
    return absl::InternalError("unknown op family");
  }

  absl::StatusOr<int> PlanContraction() {
    const Contraction& notation = std::get<MatmulOp>(*resolution_.local).notation;
    absl::StatusOr<int> product = AddContraction(builder_, notation, inputs_[0], inputs_[1], output_, topology_,
                                                 {.pieces = {}, .plan = limits_, .overlap = {}});
    if (!absl::IsResourceExhausted(product.status())) return product;
    return absl::ResourceExhaustedError(StrCat(NameOf(call_.op), ": ", StdView(product.status().message())));
  }

  // The operands as the op wants them, and on which mesh dims each counts once; nothing where none does.
  absl::Status BringOperands(LocalStep& step) {
    bool counts_once = false;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const ResolvedOperand& operand = resolution_.operands[i];
      TESSERA_ASSIGN_OR_RETURN(const int value, builder_.AddImplicitRedistribute(inputs_[i], operand.spec));
      step.inputs.push_back(value);
      step.counted_once.push_back(operand.counted_once);
      counts_once = counts_once || !operand.counted_once.empty();
    }
    if (!counts_once) step.counted_once.clear();
    return absl::OkStatus();
  }

  // One local step on operands as it wants them.
  absl::StatusOr<int> PlanLocal() {
    LocalStep step;
    step.op = *resolution_.local;
    const auto* gather = std::get_if<GatherOp>(&step.op);
    if (gather != nullptr && gather->from == GatherFrom::kApart) {
      TESSERA_ASSIGN_OR_RETURN(const int array,
                               builder_.AddImplicitRedistribute(inputs_[0], resolution_.operands[0].spec));
      return AddGatherApart(builder_, *gather, array, inputs_[1], resolution_.operands[1].spec, output_, topology_);
    }
    if (std::holds_alternative<ReduceLocalOp>(step.op)) {
      TESSERA_ASSIGN_OR_RETURN(const int mask,
                               builder_.AddImplicitRedistribute(inputs_[0], resolution_.operands[0].spec));
      return AddShardCounts(builder_, mask, output_);
    }
    TESSERA_RETURN_IF_ERROR(BringOperands(step));
    const auto* grouped = std::get_if<GroupedMatmulOp>(&step.op);
    if (grouped != nullptr && grouped->grouped == GroupedDim::kRows) std::swap(step.inputs[0], step.inputs[1]);
    const auto* scan = std::get_if<ScanOp>(&step.op);
    if (scan != nullptr && IsCutAlong(builder_.value(step.inputs[0]).spec, {scan->dim})) {
      return AddShardedScan(builder_, *scan, step.inputs[0], output_);
    }
    const auto* sort = std::get_if<SortOp>(&step.op);
    if (sort != nullptr && IsCutAlong(builder_.value(step.inputs[0]).spec, {sort->dim})) {
      return AddShardedSort(builder_, *sort, step.inputs[0], output_, topology_);
    }
    const auto* filter = std::get_if<FilterOp>(&step.op);
    if (filter != nullptr && topology_.kind != DeviceKind::kCpu) {
      return AddFilterByOrder(builder_, *filter, step.inputs, output_);
    }
    step.scalars = Range(first_scalar_, resolution_.scalars.size());
    step.output = builder_.AddTemporary(output_);
    const int output = step.output;
    builder_.AddLocal(std::move(step));
    return output;
  }

  // Winners of shards, compared: with the reduced dims at first.
  absl::StatusOr<int> PlanShardedArgReduction(const ArgReduceOp& op, int input) {
    TensorSpec reduced = builder_.value(input).spec;
    reduced.dtype = output_.dtype;
    for (const int64_t dim : op.dims) reduced.shape[static_cast<size_t>(dim)] = 1;
    for (Placement& placement : reduced.placements) {
      const bool is_cut =
          placement.is_shard() && std::find(op.dims.begin(), op.dims.end(), placement.dim()) != op.dims.end();
      if (is_cut) placement = Placement::Replicate();
    }
    TESSERA_ASSIGN_OR_RETURN(const int result, AddShardedArgReduce(builder_, op, input, reduced));
    return builder_.value(result).spec == output_
               ? result
               : builder_.AddView(result, output_, 0, RowMajorStrides(MaxShardShape(output_)));
  }

  absl::StatusOr<int> PlanMap() {
    LocalStep step;
    step.op = *resolution_.local;
    TESSERA_RETURN_IF_ERROR(BringOperands(step));
    if (resolution_.filled_scalar.has_value()) {
      LocalStep fill;
      fill.op = FillOp{};
      fill.scalars = Range(first_scalar_, resolution_.scalars.size());
      fill.output = builder_.AddTemporary(resolution_.filled_scalar->spec);
      step.inputs.push_back(fill.output);
      step.counted_once.resize(inputs_.size());
      step.counted_once.push_back(resolution_.filled_scalar->counted_once);
      builder_.AddLocal(std::move(fill));
    } else {
      step.scalars = Range(first_scalar_, resolution_.scalars.size());
    }
    step.output = builder_.AddTemporary(output_);
    const int output = step.output;
    builder_.AddLocal(std::move(step));
    return output;
  }

  // The local kernel leaves extents of 1 on reduced dims: it writes a view of its result that has them.
  TensorSpec LocalReducedSpec(const TensorSpec& operand) const {
    TensorSpec spec = operand;
    spec.dtype = DTypeBeforeEpilogue();
    for (const int64_t dim : call_.attributes.Get(attribute::dims)) spec.shape[static_cast<size_t>(dim)] = 1;
    for (size_t j = 0; j < spec.placements.size(); ++j) {
      if (!output_.placements[j].is_shard()) spec.placements[j] = output_.placements[j];
    }
    return spec;
  }

  DType DTypeBeforeEpilogue() const {
    if (!resolution_.epilogue.has_value()) return output_.dtype;
    return std::get<MapOp>(*resolution_.epilogue).expression.nodes[0].dtype;
  }

  absl::StatusOr<int> PlanReduction() {
    const TensorSpec& wanted = mapped_.has_value() ? *mapped_ : resolution_.operands[0].spec;
    LocalStep step;
    step.op = *resolution_.local;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(const int input,
                               builder_.AddImplicitRedistribute(inputs_[i], resolution_.operands[i].spec));
      step.inputs.push_back(input);
    }
    const auto* arg_reduce = std::get_if<ArgReduceOp>(&step.op);
    if (arg_reduce != nullptr && !arg_reduce->whole.empty()) {
      return PlanShardedArgReduction(*arg_reduce, step.inputs.front());
    }
    step.scalars = Range(first_scalar_, resolution_.scalars.size());
    TensorSpec reduced = output_;
    reduced.dtype = DTypeBeforeEpilogue();
    const int result = builder_.AddTemporary(reduced);
    const TensorSpec local = LocalReducedSpec(wanted);
    step.output = local == reduced ? result : builder_.AddView(result, local, 0, RowMajorStrides(MaxShardShape(local)));
    builder_.AddLocal(std::move(step));
    if (!resolution_.epilogue.has_value()) return result;
    return AddUnaryMap(result, *resolution_.epilogue, builder_.AddTemporary(output_),
                       Range(first_scalar_ + resolution_.scalars.size(), resolution_.epilogue_scalars.size()));
  }

  // Returns the output.
  int AddUnaryMap(int input, const LocalOp& op, int output, std::vector<int> scalars) {
    LocalStep step;
    step.op = op;
    step.inputs = {input};
    step.output = output;
    step.scalars = std::move(scalars);
    builder_.AddLocal(std::move(step));
    return output;
  }

  // A tensor of a redistribution, or a part of it: of a sum that becomes narrower some elements may be reduced
  // elsewhere than others.
  struct Moved {
    int value = 0;
    TensorSpec output;
    std::optional<LocalOp> conversion;
    std::optional<int> target;             // a part's place in the result; none: a new value
    std::optional<TensorSpec> reduced_at;  // if not where it goes
    TensorSpec moves_as;                   // where it goes, in the dtype in which it moves
  };

  // Where it goes, so that the fewest bytes move: to its place, converted on the way; or to the same in its own dtype,
  // and is converted there.
  TensorSpec MovesAs(const Moved& moved) const {
    const TensorSpec& output = moved.output;
    if (!moved.conversion.has_value()) return output;
    const TensorSpec& source = builder_.value(moved.value).spec;
    const TensorSpec unconverted = WithDType(output, source.dtype);
    if (HoldSameShards(source, unconverted)) return unconverted;
    // Nobody passes on what is wider by then.
    const bool is_passed_on = CountReplicas(output) > 1 && (PendingTerms(source, output) > 1 ||
                                                            !AreOnOneHost({&source.mesh, &output.mesh}, topology_));
    return is_passed_on && SizeBytes(output.dtype) > SizeBytes(source.dtype) ? unconverted : output;
  }

  // An operand, or its parts; and the value of its result, if there is one already.
  std::vector<Moved> MovedOf(size_t operand, std::optional<int>& result) {
    const int value = inputs_[operand];
    const TensorSpec output = resolution_.outputs[operand];
    const std::optional<LocalOp>& conversion = resolution_.operands[operand].conversion;
    const PlanValue source = builder_.value(value);
    const bool is_narrower = conversion.has_value() && SizeBytes(output.dtype) < SizeBytes(source.spec.dtype);
    if (!is_narrower) return {{value, output, conversion, std::nullopt, std::nullopt, {}}};
    std::vector<NarrowedPart> parts = PartsToNarrow(source.spec, output);
    if (parts.size() == 1) return {{value, output, conversion, std::nullopt, std::move(parts[0].place), {}}};
    result = builder_.AddTemporary(output);
    const Strides strides = builder_.value(*result).strides;
    std::vector<Moved> moved;
    for (NarrowedPart& part : parts) {
      const int view = builder_.AddView(value, part.source, source.offset + OffsetOf(part.source_start, source.strides),
                                        source.strides);
      const int target =
          builder_.AddView(*result, part.destination, OffsetOf(part.destination_start, strides), strides);
      moved.push_back({view, std::move(part.destination), conversion, target, std::move(part.place), {}});
    }
    return moved;
  }

  // All tensors move together. A tensor that moves in a dtype of fewer bytes than its result has comes to the end of
  // the result's memory.
  absl::StatusOr<std::vector<int>> PlanMoves() {
    std::vector<Moved> all;
    std::vector<std::optional<int>> results(inputs_.size());
    std::vector<size_t> ends;  // by operand: of its parts in `all`
    for (size_t i = 0; i < inputs_.size(); ++i) {
      for (Moved& moved : MovedOf(i, results[i])) all.push_back(std::move(moved));
      ends.push_back(all.size());
    }
    for (Moved& moved : all) moved.moves_as = MovesAs(moved);
    TESSERA_ASSIGN_OR_RETURN(const std::vector<int> there, AddMoves(all));
    std::vector<int> outputs;
    for (size_t i = 0; i < inputs_.size(); ++i) outputs.push_back(results[i].value_or(there[ends[i] - 1]));
    return outputs;
  }

  absl::StatusOr<std::vector<int>> AddMoves(const std::vector<Moved>& all) {
    std::vector<ValueMove> moves;
    std::vector<std::optional<int>> widened(all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      const Moved& moved = all[i];
      ValueMove& move = moves.emplace_back(ValueMove{moved.value, moved.moves_as});
      if (moved.moves_as == moved.output) {
        move.place = moved.target;
        move.reduced_at = moved.reduced_at;
      }
      const bool is_there = HoldSameShards(builder_.value(moved.value).spec, moved.moves_as);
      if (moved.moves_as.dtype == moved.output.dtype || is_there) continue;
      widened[i] = builder_.AddTemporary(moved.output);
      move.place = builder_.AddNarrow(*widened[i], moved.moves_as.dtype);
    }
    TESSERA_ASSIGN_OR_RETURN(std::vector<int> values, builder_.AddRedistributes(moves));
    for (size_t i = 0; i < all.size(); ++i) {
      const TensorSpec& output = all[i].output;
      if (builder_.value(values[i]).spec.dtype != output.dtype) {
        const TensorSpec place = WithDType(all[i].moves_as, output.dtype);
        const int converted = widened[i].has_value() ? *widened[i] : builder_.AddTemporary(place);
        values[i] = AddUnaryMap(values[i], *all[i].conversion, converted, {});
      }
    }
    return values;
  }

  absl::StatusOr<int> PlanView() {
    TESSERA_ASSIGN_OR_RETURN(int input, builder_.AddImplicitRedistribute(inputs_[0], resolution_.operands[0].spec));
    absl::StatusOr<ViewLayout> layout = ViewOf(input);
    if (!layout.ok() && !absl::IsFailedPrecondition(layout.status())) return layout.status();
    if (!layout.ok() && call_.op == OpId::kSlice) return PlanMovingSlice();
    if (!layout.ok()) {
      // Strides that can't say it: a copy with default ones can.
      const TensorSpec spec = builder_.value(input).spec;
      input = AddUnaryMap(input, MapOp{CopyExpression(spec.dtype)}, builder_.AddTemporary(spec), {});
      layout = ViewOf(input);
      if (!layout.ok()) return layout.status();
    }
    return builder_.AddView(input, output_, builder_.value(input).offset + layout->offset, layout->strides);
  }

  absl::StatusOr<ViewLayout> ViewOf(int value) const {
    return ResolveView(call_, builder_.value(value).spec, builder_.value(value).strides);
  }

  // A slice that cuts a sharded dim, or goes elsewhere, moves data: first in the operand's rank, then dims go and come.
  absl::StatusOr<int> PlanMovingSlice() {
    TensorSpec moved = builder_.value(inputs_[0]).spec;
    std::vector<int64_t> start;
    std::vector<int64_t> step;
    std::vector<int> source_dim;  // by output dim
    for (const IndexItem& item : call_.attributes.Get(attribute::index)) {
      if (item.kind == IndexItem::Kind::kNewAxis) {
        source_dim.push_back(-1);
        continue;
      }
      const size_t dim = start.size();
      const bool is_slice = item.kind == IndexItem::Kind::kSlice;
      if (is_slice) source_dim.push_back(static_cast<int>(dim));
      moved.shape[dim] = is_slice ? item.size : 1;
      start.push_back(moved.shape[dim] == 0 ? 0 : item.start);
      step.push_back(moved.shape[dim] <= 1 ? 1 : item.step);
    }
    moved.mesh = output_.mesh;
    moved.placements = output_.placements;
    for (Placement& placement : moved.placements) {
      if (placement.is_shard()) placement = placement.OnDim(source_dim[static_cast<size_t>(placement.dim())]);
    }
    TESSERA_ASSIGN_OR_RETURN(const int value, builder_.AddSlicedRedistribute(inputs_[0], start, step, moved));
    if (moved == output_) return value;
    return builder_.AddView(value, output_, 0, RowMajorStrides(MaxShardShape(output_)));
  }

  PlanBuilder& builder_;
  const OpCall& call_;
  const OpResolution& resolution_;
  const std::optional<TensorSpec> mapped_;
  const TensorSpec& output_;
  const Topology& topology_;
  const PlanLimits& limits_;
  const std::vector<int> inputs_;  // the operands' values
  const size_t first_scalar_;      // of the plan's, that are its own
};

// A value that is small in a buffer that is large would keep all of it: it is copied.
int CopyOfPart(PlanBuilder& builder, int value) {
  const PlanValue part = builder.value(value);
  const PlanBuffer& buffer = builder.plan().buffers[static_cast<size_t>(part.buffer)];
  const int64_t bytes = MaxShardElements(part.spec) * SizeBytes(part.spec.dtype);
  if (buffer.kind == PlanBuffer::Kind::kInput || bytes * 2 >= buffer.bytes) return value;
  LocalStep step;
  step.op = MapOp{CopyExpression(part.spec.dtype)};
  step.inputs = {value};
  step.output = builder.AddTemporary(part.spec);
  const int copy = step.output;
  builder.AddLocal(std::move(step));
  return copy;
}

// The scalars of what is planned, in the order of the plan's parameters.
PlanScalars ScalarsOf(const std::vector<FusedNode>& nodes, const std::vector<ScalarRecipes>& recipes) {
  PlanScalars scalars;
  for (const FusedNode& node : nodes) {
    const OpResolution& resolution = node.resolution;
    scalars.values.insert(scalars.values.end(), resolution.scalars.begin(), resolution.scalars.end());
    scalars.values.insert(scalars.values.end(), resolution.epilogue_scalars.begin(), resolution.epilogue_scalars.end());
    for (const ScalarOrigin& origin : node.origins) {
      scalars.recipes.Append(recipes[origin.node].recipes()[origin.scalar]);
    }
  }
  // Calls that are not computed have requirements, too, by which they may be refused.
  for (const ScalarRecipes& required : recipes) scalars.recipes.AppendRequirements(required);
  return scalars;
}

}  // namespace

absl::StatusOr<OpPlan> PlanSegment(const Segment& segment, const Topology& topology, const PlanLimits& limits) {
  TESSERA_ASSIGN_OR_RETURN(const SegmentGraph resolved, ResolveSegment(segment, SavingOf(limits)));
  const Graph& graph = resolved.graph;
  const std::vector<FusedNode> nodes = FuseMaps(graph);
  PlanBuilder builder;
  std::vector<int> values(graph.specs.size(), -1);  // by the graph's
  for (size_t i = 0; i < segment.inputs.size(); ++i) values[i] = builder.AddInput(segment.inputs[i]);
  for (const FusedNode& node : nodes) {
    std::vector<int> operands;
    for (const int value : node.inputs) operands.push_back(values[static_cast<size_t>(value)]);
    OpPlanner planner(builder, node.call, node.resolution, node.mapped, std::move(operands), topology, limits);
    TESSERA_ASSIGN_OR_RETURN(const std::vector<int> results, planner.Run(node.family));
    std::copy(results.begin(), results.end(), values.begin() + node.first_result);
  }
  for (const int output : graph.outputs) {
    builder.AddOutput(CopyOfPart(builder, values[static_cast<size_t>(output)]));
  }
  OpPlan planned{std::move(builder).Finish(topology), ScalarsOf(nodes, resolved.recipes), {}};
  for (const int value : resolved.first_results) {
    if (value >= 0) planned.call_results.push_back(graph.specs[static_cast<size_t>(value)]);
  }
  ShareTemporaries(planned.plan);
  AddDonations(planned.plan);
  return planned;
}

absl::StatusOr<OpPlan> PlanOp(const OpCall& call, absl::Span<const PlanOperand> operands, const Topology& topology,
                              const PlanLimits& limits) {
  TESSERA_ASSIGN_OR_RETURN(const OpRow* row, FindOp(call.op));
  if (row->family == OpFamily::kComposite) return PlanSegment(SegmentOf(call, operands), topology, limits);
  const std::vector<OperandSpec> specs = SpecsOf(operands);
  TESSERA_ASSIGN_OR_RETURN(const OpResolution resolution, ResolveOp(call, specs));
  PlanBuilder builder;
  std::vector<int> inputs;
  for (const PlanOperand& operand : operands) {
    if (const auto* layout = std::get_if<OperandLayout>(&operand)) inputs.push_back(builder.AddInput(*layout));
  }
  OpPlanner planner(builder, call, resolution, std::nullopt, std::move(inputs), topology, limits);
  TESSERA_ASSIGN_OR_RETURN(const std::vector<int> outputs, planner.Run(row->family));
  for (const int output : outputs) builder.AddOutput(output);
  OpPlan planned;
  planned.scalars.values = resolution.scalars;
  planned.scalars.values.insert(planned.scalars.values.end(), resolution.epilogue_scalars.begin(),
                                resolution.epilogue_scalars.end());
  planned.scalars.recipes = RecipesOf(*row, call, specs, resolution, Range(0, NumbersOf(call, specs).size()));
  planned.plan = std::move(builder).Finish(topology);
  AddDonations(planned.plan);
  return planned;
}

Segment SegmentOf(const OpCall& call, absl::Span<const PlanOperand> operands) {
  Segment segment;
  SegmentCall& added = segment.calls.emplace_back(SegmentCall{call, {}});
  for (const PlanOperand& operand : operands) {
    if (const auto* layout = std::get_if<OperandLayout>(&operand)) {
      added.operands.emplace_back(static_cast<int>(segment.inputs.size()));
      segment.inputs.push_back(*layout);
    } else {
      added.operands.emplace_back(std::get<Scalar>(operand));
    }
  }
  return segment;
}

absl::StatusOr<PlanScalars> ScalarsOf(const Segment& segment) { return ScalarsOf(segment, PlanLimits{}); }

absl::StatusOr<PlanScalars> ScalarsOf(const Segment& segment, const PlanLimits& limits) {
  TESSERA_ASSIGN_OR_RETURN(const SegmentGraph resolved, ResolveSegment(segment, SavingOf(limits)));
  return ScalarsOf(FuseMaps(resolved.graph), resolved.recipes);
}

bool HasSmallerWay(const Plan& plan) {
  if (!plan.grid.empty()) return true;
  return std::any_of(plan.steps.begin(), plan.steps.end(), [](const Step& step) {
    const auto* local = std::get_if<LocalStep>(&step);
    const auto* linalg = local == nullptr ? nullptr : std::get_if<LinalgOp>(&local->op);
    return linalg != nullptr && (linalg->kind == LinalgKind::kSvd || linalg->kind == LinalgKind::kSvdVals ||
                                 linalg->kind == LinalgKind::kEigh || linalg->kind == LinalgKind::kEigvalsh);
  });
}

}  // namespace tessera
