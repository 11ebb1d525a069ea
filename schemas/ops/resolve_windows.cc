// Windows that lie within shards. Pooling keeps the shards of all dims but those that windows go over; a mesh dim that
// shards one of these shards another dim instead, or the dim is gathered. A convolution is placed as a product: batches
// of x and output channels of the weight keep their shards, input channels that are sharded on both sides give a
// pending sum; where the operands fit none of it, the placements that move the fewest bytes are taken. A dim in which
// windows are single elements keeps its shards. A convolution's gradients are placed likewise, each by its own
// products.

#include <optional>
#include <utility>
#include <vector>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/resolve_internal.h"
#include "schemas/ops/window_attributes.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// The placements of the two operands and the output on one mesh dim.
struct ConvRule {
  Placement first, second, output;
};

// The dim of windows that the placement shards, if windows are single elements there.
std::optional<Placement> OfSingleElements(const Windows& windows, const Shape& weight, const Placement& own) {
  if (!own.is_shard() || own.dim() < 2) return std::nullopt;
  const auto dim = static_cast<size_t>(own.dim());
  return IsOfSingleElements(windows, weight[dim], dim - 2) ? std::optional(own) : std::nullopt;
}

Placement Pending() { return Placement::Partial(ReduceOp::kSum); }

std::vector<ConvRule> RulesOf(const ConvOp& op, const Shape& weight, const Placement& own) {
  const Placement whole = Placement::Replicate();
  std::vector<ConvRule> rules = {{Placement::Shard(0), whole, Placement::Shard(0)}};
  if (op.groups == 1) rules.push_back({whole, Placement::Shard(0), Placement::Shard(1)});
  if (const auto single = OfSingleElements(op.windows, weight, own)) rules.push_back({own, whole, own});
  rules.push_back({whole, whole, whole});
  if (op.groups == 1) rules.push_back({Placement::Shard(1), Placement::Shard(1), Pending()});
  return rules;
}

// `own` is the gradient's.
std::vector<ConvRule> RulesOf(const ConvGradientOp& op, const Shape& weight, const Placement& own) {
  const Placement whole = Placement::Replicate();
  std::vector<ConvRule> rules;
  const bool is_of_x = op.of == ConvOperand::kX;
  const auto single = OfSingleElements(op.windows, weight, own);
  if (is_of_x) {
    rules.push_back({Placement::Shard(0), whole, Placement::Shard(0)});
    if (op.groups == 1) rules.push_back({whole, Placement::Shard(1), Placement::Shard(1)});
    if (single.has_value()) rules.push_back({own, whole, own});
  } else if (op.groups == 1) {
    rules.push_back({Placement::Shard(1), whole, Placement::Shard(0)});
    rules.push_back({whole, Placement::Shard(1), Placement::Shard(1)});
  }
  rules.push_back({whole, whole, whole});
  if (is_of_x && op.groups == 1) rules.push_back({Placement::Shard(1), Placement::Shard(0), Pending()});
  if (!is_of_x) rules.push_back({Placement::Shard(0), Placement::Shard(0), Pending()});
  if (!is_of_x && single.has_value()) rules.push_back({own, own, Pending()});
  return rules;
}

absl::StatusOr<ConvRule> RuleFor(const std::vector<ConvRule>& rules, const TensorSpec& first, const TensorSpec& second,
                                 const TensorSpec& own_second, const TensorSpec& output, int mesh_dim) {
  const size_t at = static_cast<size_t>(mesh_dim);
  const bool aligned = HaveSameArrangement(first.mesh, own_second.mesh);
  std::optional<ConvRule> best;
  double best_bytes = 0;
  for (const ConvRule& rule : rules) {
    if (aligned && first.placements[at] == rule.first && second.placements[at] == rule.second) return rule;
    TESSERA_ASSIGN_OR_RETURN(double bytes, RedistributeBytes(first, WithPlacement(first, mesh_dim, rule.first)));
    TESSERA_ASSIGN_OR_RETURN(
        const double second_bytes,
        RedistributeBytes(aligned ? second : own_second, WithPlacement(second, mesh_dim, rule.second)));
    bytes += second_bytes;
    if (rule.output.is_partial()) {
      TESSERA_ASSIGN_OR_RETURN(const double reduced,
                               RedistributeBytes(WithPlacement(output, mesh_dim, rule.output), output));
      bytes += reduced;
    }
    if (best.has_value() && bytes >= best_bytes) continue;
    best = rule;
    best_bytes = bytes;
  }
  return *best;
}

absl::Status CheckNumeric(const ResolveInput& input) {
  for (const TensorSpec* tensor : input.tensors) {
    if (tensor->dtype == DType::kBool || Kind(tensor->dtype) == DTypeKind::kComplex) {
      return OperandDTypeError(input, "needs a real numeric dtype");
    }
    if (tensor->dtype != input.tensors[0]->dtype) return OperandDTypeError(input, "dtypes differ");
  }
  return absl::OkStatus();
}

// A result of that shape, placed by the op's rules; its flops are those of the convolution, whose result is `result`.
template <typename Op>
absl::StatusOr<OpResolution> PlaceConv(const ResolveInput& input, const Op& op, const Shape& weight,
                                       const Shape& result, Shape shape) {
  TensorSpec first = *input.tensors[0], second = *input.tensors[1];
  TESSERA_RETURN_IF_ERROR(ValidateShape(input.row.name, shape, SizeBytes(first.dtype)));
  if (!HaveSameArrangement(first.mesh, second.mesh)) {
    second.placements.assign(static_cast<size_t>(first.mesh.ndim()), Placement::Replicate());
  }
  second.mesh = first.mesh;
  TensorSpec output = first;
  output.shape = std::move(shape);
  output.placements.assign(static_cast<size_t>(first.mesh.ndim()), Placement::Replicate());
  for (size_t i = 0; i < output.placements.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(const ConvRule rule, RuleFor(RulesOf(op, weight, first.placements[i]), first, second,
                                                          *input.tensors[1], output, static_cast<int>(i)));
    first.placements[i] = rule.first;
    second.placements[i] = rule.second;
    output.placements[i] = rule.output;
  }
  OpResolution resolution;
  resolution.operands = {BringTo(*input.tensors[0], first.mesh, first.placements),
                         BringTo(*input.tensors[1], second.mesh, second.placements)};
  const double channels = static_cast<double>(weight[0]);
  resolution.flops = 2 * static_cast<double>(NumElements(result)) *
                     (channels == 0 ? 0 : static_cast<double>(NumElements(weight)) / channels);
  resolution.local = op;
  resolution.outputs.push_back(std::move(output));
  return resolution;
}

absl::StatusOr<OpResolution> ResolveConv(const ResolveInput& input) {
  const ConvOp op{WindowsOf(input.call.attributes), GroupsOf(input.call.attributes)};
  if (absl::Status s = ValidateConvOp(op, 2, 0); !s.ok()) return OperandError(input, StdView(s.message()));
  TESSERA_RETURN_IF_ERROR(CheckNumeric(input));
  const Shape& weight = input.tensors[1]->shape;
  const absl::StatusOr<Shape> shape = ConvOutput(op, input.tensors[0]->shape, weight);
  if (!shape.ok()) return OperandError(input, StdView(shape.status().message()));
  return PlaceConv(input, op, weight, *shape, *shape);
}

absl::StatusOr<OpResolution> ResolveConvGradient(const ResolveInput& input, ConvOperand of) {
  const ConvGradientOp op{of, WindowsOf(input.call.attributes), GroupsOf(input.call.attributes)};
  if (absl::Status s = ValidateConvGradientOp(op, 2, 0); !s.ok()) return OperandError(input, StdView(s.message()));
  TESSERA_RETURN_IF_ERROR(CheckNumeric(input));
  const Shape &gradient = input.tensors[0]->shape, &other = input.tensors[1]->shape;
  if (input.call.attributes.Get(attribute::shape) == nullptr)
    return OperandError(input, "needs the shape of the result");
  const Shape& shape = *input.call.attributes.Get(attribute::shape);
  TESSERA_RETURN_IF_ERROR(ValidateShape(input.row.name, shape, SizeBytes(input.tensors[0]->dtype)));
  if (absl::Status s = CheckConvGradientOf(op, gradient, other, shape); !s.ok()) {
    return OperandError(input, StdView(s.message()));
  }
  return PlaceConv(input, op, of == ConvOperand::kX ? other : shape, gradient, shape);
}

absl::StatusOr<OpResolution> ResolvePool(const ResolveInput& input) {
  const Attributes& attributes = input.call.attributes;
  const PoolOp op{
      .kind = input.call.op == OpId::kMaxPoolWindows ? PoolKind::kMax : PoolKind::kAverage,
      .kernel = attributes.Get(attribute::kernel_size),
      .windows = WindowsOf(attributes),
      .divisor = attributes.Get(attribute::count_include_pad) ? PoolDivisor::kWithPadding : PoolDivisor::kElements,
      .ceil_mode = attributes.Get(attribute::ceil_mode),
  };
  if (absl::Status s = ValidatePoolOp(op, 1, 0); !s.ok()) return OperandError(input, StdView(s.message()));
  TensorSpec x = *input.tensors[0];
  if (op.kind == PoolKind::kAverage && Kind(x.dtype) != DTypeKind::kFloat) {
    return OperandDTypeError(input, "needs a floating-point dtype");
  }
  if (x.dtype == DType::kBool || Kind(x.dtype) == DTypeKind::kComplex) {
    return OperandDTypeError(input, "needs a real numeric dtype");
  }
  absl::StatusOr<Shape> shape = PoolOutput(op, x.shape);
  if (!shape.ok()) return OperandError(input, StdView(shape.status().message()));
  const int first = x.rank() - static_cast<int>(op.windows.dims());
  const auto keeps_shards = [&](int dim) {
    return dim < first || IsOfSingleElements(op.windows, op.kernel[static_cast<size_t>(dim - first)],
                                             static_cast<size_t>(dim - first));
  };
  for (int i = 0; i < x.mesh.ndim(); ++i) {
    Placement& placement = x.placements[static_cast<size_t>(i)];
    if (placement.is_replicate() || (placement.is_shard() && keeps_shards(placement.dim()))) continue;
    // A dim that windows go over takes nothing.
    TensorSpec free = WithPlacement(x, i, Placement::Replicate());
    for (size_t j = 0; j < free.placements.size(); ++j) {
      if (free.placements[j].is_shard() && !keeps_shards(free.placements[j].dim())) {
        free.placements[j] = Placement::Replicate();
      }
    }
    for (int d = first; d < x.rank(); ++d) {
      if (!keeps_shards(d)) free.shape[static_cast<size_t>(d)] = 1;
    }
    const Placement to = ShardOrReplicate(free, i, -1);
    placement = to.is_shard() && keeps_shards(to.dim()) ? to : Placement::Replicate();
  }
  OpResolution resolution;
  resolution.operands.push_back(BringTo(*input.tensors[0], x.mesh, x.placements));
  x.shape = *std::move(shape);
  TESSERA_RETURN_IF_ERROR(ValidateShape(input.row.name, x.shape, SizeBytes(x.dtype)));
  resolution.flops = static_cast<double>(NumElements(x.shape));
  for (const int64_t extent : op.kernel) resolution.flops *= static_cast<double>(extent);
  resolution.local = op;
  resolution.outputs.push_back(std::move(x));
  return resolution;
}

}  // namespace

absl::StatusOr<OpResolution> ResolveWindows(const ResolveInput& input) {
  switch (input.call.op) {
    case OpId::kConvWindows: return ResolveConv(input);
    case OpId::kConvBackwardXWindows: return ResolveConvGradient(input, ConvOperand::kX);
    case OpId::kConvBackwardWeightWindows: return ResolveConvGradient(input, ConvOperand::kWeight);
    default: return ResolvePool(input);
  }
}

}  // namespace tessera
