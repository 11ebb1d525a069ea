#include "server/planner/planner.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "schemas/ops/catalog.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/same_shards.h"
#include "server/planner/builder.h"
#include "server/planner/contraction.h"
#include "server/planner/parts_to_narrow.h"

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

std::vector<Scalar> PlanScalars(const OpResolution& resolution) {
  std::vector<Scalar> scalars = resolution.scalars;
  scalars.insert(scalars.end(), resolution.epilogue_scalars.begin(), resolution.epilogue_scalars.end());
  return scalars;
}

std::vector<int> Range(size_t first, size_t count) {
  std::vector<int> range(count);
  std::iota(range.begin(), range.end(), static_cast<int>(first));
  return range;
}

// Whether the shard lies as the default strides would have it; dims of extent 1 don't matter.
bool HasDefaultStrides(const PlanValue& value) {
  const Shape extents = MaxShardShape(value.spec);
  const Strides strides = RowMajorStrides(extents);
  for (size_t d = 0; d < extents.size(); ++d) {
    if (extents[d] > 1 && value.strides[d] != strides[d]) return false;
  }
  return true;
}

int64_t OffsetOf(const Shape& start, const Strides& strides) {
  return std::inner_product(start.begin(), start.end(), strides.begin(), int64_t{0});
}

Expression CopyExpression(DType dtype) { return Expression{{{ScalarOp::kInput, dtype, 0, 0, 0}}}; }

// Plans one op, family by family.
class OpPlanner {
 public:
  OpPlanner(const OpCall& call, OpResolution resolution, const Topology& topology, const PlanLimits& limits)
      : call_(call),
        resolution_(std::move(resolution)),
        output_(resolution_.outputs[0]),
        topology_(topology),
        limits_(limits) {}

  absl::StatusOr<Plan> Run(OpFamily family, absl::Span<const PlanOperand> operands) {
    for (const PlanOperand& operand : operands) {
      if (const auto* layout = std::get_if<OperandLayout>(&operand)) inputs_.push_back(builder_.AddInput(*layout));
    }
    Plan& plan = builder_.plan();
    plan.scalar_count = static_cast<int>(resolution_.scalars.size() + resolution_.epilogue_scalars.size());
    plan.flops = resolution_.flops;
    if (family == OpFamily::kRedistribute) {
      TESSERA_ASSIGN_OR_RETURN(const std::vector<int> outputs, PlanMoves());
      for (const int output : outputs) builder_.AddOutput(output);
      return std::move(builder_).Finish(topology_);
    }
    if (family != OpFamily::kView && NumElements(output_.shape) == 0) {  // nothing is read for it
      builder_.AddOutput(builder_.AddTemporary(output_));
      return std::move(builder_).Finish(topology_);
    }
    TESSERA_ASSIGN_OR_RETURN(const int output, PlanFamily(family));
    builder_.AddOutput(output);
    if (family == OpFamily::kElementwise) AddDonations(output);
    return std::move(builder_).Finish(topology_);
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

  absl::StatusOr<int> PlanMap() {
    LocalStep step;
    step.op = *resolution_.local;
    bool counts_once = false;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const ResolvedOperand& operand = resolution_.operands[i];
      TESSERA_ASSIGN_OR_RETURN(const int value, builder_.AddImplicitRedistribute(inputs_[i], operand.spec));
      step.inputs.push_back(value);
      step.counted_once.push_back(operand.counted_once);
      counts_once = counts_once || !operand.counted_once.empty();
    }
    if (resolution_.filled_scalar.has_value()) {
      LocalStep fill;
      fill.op = FillOp{};
      fill.scalars = Range(0, resolution_.scalars.size());
      fill.output = builder_.AddTemporary(resolution_.filled_scalar->spec);
      step.inputs.push_back(fill.output);
      step.counted_once.push_back(resolution_.filled_scalar->counted_once);
      counts_once = true;
      builder_.AddLocal(std::move(fill));
    } else {
      step.scalars = Range(0, resolution_.scalars.size());
    }
    if (!counts_once) step.counted_once.clear();
    step.output = builder_.AddTemporary(output_);
    map_inputs_ = step.inputs;
    map_counted_once_ = step.counted_once;
    const int output = step.output;
    builder_.AddLocal(std::move(step));
    return output;
  }

  // The local kernel leaves extents of 1 on reduced dims: it writes a view of its result that has them.
  TensorSpec LocalReducedSpec(const TensorSpec& operand) const {
    TensorSpec spec = operand;
    spec.dtype = DTypeBeforeEpilogue();
    for (const int64_t dim : call_.attributes.dims) spec.shape[static_cast<size_t>(dim)] = 1;
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
    const TensorSpec& wanted = resolution_.operands[0].spec;
    LocalStep step;
    step.op = *resolution_.local;
    TESSERA_ASSIGN_OR_RETURN(const int input, builder_.AddImplicitRedistribute(inputs_[0], wanted));
    step.inputs = {input};
    step.scalars = Range(0, resolution_.scalars.size());
    TensorSpec reduced = output_;
    reduced.dtype = DTypeBeforeEpilogue();
    const int result = builder_.AddTemporary(reduced);
    const TensorSpec local = LocalReducedSpec(wanted);
    step.output = local == reduced ? result : builder_.AddView(result, local, 0, RowMajorStrides(MaxShardShape(local)));
    builder_.AddLocal(std::move(step));
    if (!resolution_.epilogue.has_value()) return result;
    return AddUnaryMap(result, *resolution_.epilogue, builder_.AddTemporary(output_),
                       Range(resolution_.scalars.size(), resolution_.epilogue_scalars.size()));
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

  // All tensors move together. What moves in a dtype of fewer bytes than its result has comes to the end of the
  // result's memory.
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
    int input = inputs_[0];
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

  // A slice that cuts a sharded dim moves data: first in the operand's rank, then dims go and come.
  absl::StatusOr<int> PlanMovingSlice() {
    TensorSpec moved = builder_.value(inputs_[0]).spec;
    std::vector<int64_t> start;
    std::vector<int64_t> step;
    std::vector<int> source_dim;  // by output dim
    for (const IndexItem& item : call_.attributes.index) {
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
    moved.placements = output_.placements;
    for (Placement& placement : moved.placements) {
      if (placement.is_shard()) placement = Placement::Shard(source_dim[static_cast<size_t>(placement.dim())]);
    }
    TESSERA_ASSIGN_OR_RETURN(const int value, builder_.AddSlicedRedistribute(inputs_[0], start, step, moved));
    if (moved == output_) return value;
    return builder_.AddView(value, output_, 0, RowMajorStrides(MaxShardShape(output_)));
  }

  void AddDonations(int output) {
    Plan& plan = builder_.plan();
    const TensorSpec& to = builder_.value(output).spec;
    for (size_t i = 0; i < plan.inputs.size(); ++i) {
      const PlanValue& input = builder_.value(plan.inputs[i]);
      // Read as it lies: itself, or a view of it under the output's mesh.
      const bool in_place = builder_.value(map_inputs_[i]).buffer == input.buffer;
      const bool counted = i >= map_counted_once_.size() || map_counted_once_[i].empty();
      const bool same_bytes = SizeBytes(input.spec.dtype) == SizeBytes(to.dtype) && input.spec.shape == to.shape &&
                              input.spec.placements == to.placements && HaveSameArrangement(input.spec.mesh, to.mesh);
      if (in_place && counted && same_bytes && HasDefaultStrides(input)) {
        plan.donations.push_back({static_cast<int>(i), 0});
      }
    }
  }

  const OpCall& call_;
  const OpResolution resolution_;
  const TensorSpec output_;
  const Topology& topology_;
  const PlanLimits& limits_;
  PlanBuilder builder_;
  std::vector<int> inputs_;  // the operands' values
  std::vector<int> map_inputs_;
  std::vector<std::vector<int>> map_counted_once_;
};

}  // namespace

absl::StatusOr<OpPlan> PlanOp(const OpCall& call, absl::Span<const PlanOperand> operands, const Topology& topology,
                              const PlanLimits& limits) {
  TESSERA_ASSIGN_OR_RETURN(const OpRow* row, FindOp(call.op));
  TESSERA_ASSIGN_OR_RETURN(OpResolution resolution, ResolveOp(call, SpecsOf(operands)));
  OpPlan planned;
  planned.scalars = PlanScalars(resolution);
  TESSERA_ASSIGN_OR_RETURN(planned.plan,
                           OpPlanner(call, std::move(resolution), topology, limits).Run(row->family, operands));
  return planned;
}

absl::StatusOr<std::vector<Scalar>> ScalarsOf(const OpCall& call, absl::Span<const PlanOperand> operands) {
  TESSERA_ASSIGN_OR_RETURN(const OpResolution resolution, ResolveOp(call, SpecsOf(operands)));
  return PlanScalars(resolution);
}

}  // namespace tessera
