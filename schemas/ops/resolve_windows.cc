// Windows that lie within shards. Pooling keeps the shards of all dims but those that windows go over; a mesh dim that
// shards one of these shards another dim instead, or the dim is gathered. A convolution is placed as a product: batches
// of x and output channels of the weight keep their shards, input channels that are sharded on both sides give a
// pending sum; where the operands fit none of it, the placements that move the fewest bytes are taken. A dim in which
// windows are single elements keeps its shards.

#include <optional>
#include <utility>
#include <vector>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/resolve_internal.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// The placements of the operands and the output on one mesh dim.
struct ConvRule {
  Placement x, weight, output;
};

Windows WindowsOf(const Attributes& attributes) {
  return {attributes.Get(attribute::stride), attributes.Get(attribute::padding), attributes.Get(attribute::dilation)};
}

std::vector<ConvRule> RulesOf(const ConvOp& op, const TensorSpec& x, const TensorSpec& weight, int mesh_dim) {
  const Placement whole = Placement::Replicate();
  std::vector<ConvRule> rules = {{Placement::Shard(0), whole, Placement::Shard(0)}};
  if (op.groups == 1) rules.push_back({whole, Placement::Shard(0), Placement::Shard(1)});
  const Placement& own = x.placements[static_cast<size_t>(mesh_dim)];
  if (own.is_shard() && own.dim() >= 2 &&
      IsOfSingleElements(op.windows, weight.shape[static_cast<size_t>(own.dim())],
                         static_cast<size_t>(own.dim()) - 2)) {
    rules.push_back({own, whole, own});
  }
  rules.push_back({whole, whole, whole});
  if (op.groups == 1) {
    rules.push_back({Placement::Shard(1), Placement::Shard(1), Placement::Partial(ReduceOp::kSum)});
  }
  return rules;
}

absl::StatusOr<ConvRule> RuleFor(const ConvOp& op, const TensorSpec& x, const TensorSpec& weight,
                                 const TensorSpec& own_weight, const TensorSpec& output, int mesh_dim) {
  const size_t at = static_cast<size_t>(mesh_dim);
  const bool aligned = HaveSameArrangement(x.mesh, own_weight.mesh);
  std::optional<ConvRule> best;
  double best_bytes = 0;
  for (const ConvRule& rule : RulesOf(op, x, weight, mesh_dim)) {
    if (aligned && x.placements[at] == rule.x && weight.placements[at] == rule.weight) return rule;
    TESSERA_ASSIGN_OR_RETURN(double bytes, RedistributeBytes(x, WithPlacement(x, mesh_dim, rule.x)));
    TESSERA_ASSIGN_OR_RETURN(
        const double weight_bytes,
        RedistributeBytes(aligned ? weight : own_weight, WithPlacement(weight, mesh_dim, rule.weight)));
    bytes += weight_bytes;
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

absl::StatusOr<OpResolution> ResolveConv(const ResolveInput& input) {
  const Attributes& attributes = input.call.attributes;
  const ConvOp op{WindowsOf(attributes),
                  attributes.Get(attribute::groups) == nullptr ? 1 : *attributes.Get(attribute::groups)};
  if (absl::Status s = ValidateConvOp(op, 2, 0); !s.ok()) return OperandError(input, StdView(s.message()));
  TESSERA_RETURN_IF_ERROR(CheckNumeric(input));
  TensorSpec x = *input.tensors[0], weight = *input.tensors[1];
  absl::StatusOr<Shape> shape = ConvOutput(op, x.shape, weight.shape);
  if (!shape.ok()) return OperandError(input, StdView(shape.status().message()));
  TESSERA_RETURN_IF_ERROR(ValidateShape(input.row.name, *shape, SizeBytes(x.dtype)));
  if (!HaveSameArrangement(x.mesh, weight.mesh)) {
    weight.placements.assign(static_cast<size_t>(x.mesh.ndim()), Placement::Replicate());
  }
  weight.mesh = x.mesh;
  TensorSpec output = x;
  output.shape = *std::move(shape);
  output.placements.assign(static_cast<size_t>(x.mesh.ndim()), Placement::Replicate());
  for (int i = 0; i < x.mesh.ndim(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(const ConvRule rule, RuleFor(op, x, weight, *input.tensors[1], output, i));
    x.placements[static_cast<size_t>(i)] = rule.x;
    weight.placements[static_cast<size_t>(i)] = rule.weight;
    output.placements[static_cast<size_t>(i)] = rule.output;
  }
  OpResolution resolution;
  resolution.operands = {BringTo(*input.tensors[0], x.mesh, x.placements),
                         BringTo(*input.tensors[1], weight.mesh, weight.placements)};
  const double channels = static_cast<double>(weight.shape[0]);
  resolution.flops = 2 * static_cast<double>(NumElements(output.shape)) *
                     (channels == 0 ? 0 : static_cast<double>(NumElements(weight.shape)) / channels);
  resolution.local = op;
  resolution.outputs.push_back(std::move(output));
  return resolution;
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
  return input.call.op == OpId::kConvWindows ? ResolveConv(input) : ResolvePool(input);
}

}  // namespace tessera
