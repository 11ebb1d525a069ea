// Reductions over dims: a sharded dim that is reduced leaves a pending sum (maximum, minimum).

#include <algorithm>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/resolve_internal.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

absl::Status CheckDims(const ResolveInput& input) {
  const std::vector<int64_t>& dims = input.call.attributes.Get(attribute::dims);
  const int rank = input.tensors[0]->rank();
  int64_t previous = -1;
  for (const int64_t dim : dims) {
    if (dim < 0 || dim >= rank) {
      return IndexOutOfRangeError(
          StrCat(input.row.name, ": dim ", dim, " is out of range for rank ", rank, ": ", DescribeOperands(input)));
    }
    if (dim <= previous) return OperandError(input, StrCat("dims must increase, got ", ToText(dims)));
    previous = dim;
  }
  return absl::OkStatus();
}

bool IsReduced(const ResolveInput& input, int dim) {
  const std::vector<int64_t>& dims = input.call.attributes.Get(attribute::dims);
  return std::find(dims.begin(), dims.end(), dim) != dims.end();
}

absl::Status CheckNotEmpty(const ResolveInput& input) {
  for (const int64_t dim : input.call.attributes.Get(attribute::dims)) {
    if (input.tensors[0]->shape[static_cast<size_t>(dim)] != 0) continue;
    return OperandError(input, StrCat("dim ", dim, " has no elements, so it has no ", input.row.name));
  }
  return absl::OkStatus();
}

// The operand's dims that stay, as dims of the output.
struct OutputDims {
  Shape shape;
  absl::InlinedVector<int, 6> output_dim;  // by operand dim; of reduced dims only with keepdims
};

OutputDims ReduceShape(const ResolveInput& input) {
  OutputDims result;
  const Shape& shape = input.tensors[0]->shape;
  for (size_t d = 0; d < shape.size(); ++d) {
    result.output_dim.push_back(static_cast<int>(result.shape.size()));
    if (!IsReduced(input, static_cast<int>(d))) {
      result.shape.push_back(shape[d]);
    } else if (input.call.attributes.Get(attribute::keepdims)) {
      result.shape.push_back(1);
    }
  }
  return result;
}

// Pending terms that a reduction by `op` may leave pending.
bool PassesReduction(ReduceOp op, const TensorSpec& operand, const ResolveInput& input) {
  const ReduceOp pending = operand.partial_op();
  if (pending == op) return true;
  if (op != ReduceOp::kSum || pending != ReduceOp::kAvg) return false;
  // A sum of averages is an average, but not beside pending sums in one tensor.
  return std::none_of(operand.placements.begin(), operand.placements.end(),
                      [&](const Placement& p) { return p.is_shard() && IsReduced(input, p.dim()); });
}

// The lowest-numbered dim that stays in the output and can be sharded on the mesh dim, else Replicate.
Placement ReduceScatterTo(const ResolveInput& input, const TensorSpec& operand, int mesh_dim) {
  const int64_t size = operand.mesh.shape()[static_cast<size_t>(mesh_dim)];
  const Shape remaining = MaxShardShape(WithPlacement(operand, mesh_dim, Placement::Replicate()));
  for (int d = 0; d < operand.rank(); ++d) {
    if (!IsReduced(input, d) && remaining[static_cast<size_t>(d)] >= size) return Placement::Shard(d);
  }
  return Placement::Replicate();
}

// The operand as the local reduction wants it.
ResolvedOperand PrepareOperand(const ResolveInput& input, DType compute) {
  const TensorSpec& own = *input.tensors[0];
  if (!own.has_partial()) return {own, false, {}};
  const bool passes = PassesReduction(*input.row.reduce_op, own, input) && MayConvertTerms(own, compute);
  if (passes) return {own, false, {}};
  TensorSpec changed = own;
  for (int i = 0; i < own.mesh.ndim(); ++i) {
    Placement& placement = changed.placements[static_cast<size_t>(i)];
    if (placement.is_partial()) placement = ReduceScatterTo(input, changed, i);
  }
  return BringTo(own, own.mesh, changed.placements);
}

Placements OutputPlacements(const ResolveInput& input, const TensorSpec& operand, const OutputDims& dims) {
  Placements placements = operand.placements;
  for (Placement& placement : placements) {
    if (!placement.is_shard()) continue;
    placement = IsReduced(input, placement.dim())
                    ? Placement::Partial(*input.row.reduce_op)
                    : placement.OnDim(dims.output_dim[static_cast<size_t>(placement.dim())]);
  }
  return placements;
}

int64_t ReducedCount(const ResolveInput& input) {
  int64_t count = 1;
  for (const int64_t dim : input.call.attributes.Get(attribute::dims))
    count *= input.tensors[0]->shape[static_cast<size_t>(dim)];
  return count;
}

// mean divides the sum by the global count, a pending sum term by term. Neither has to fit a dtype of 16 bits.
void DivideByCount(const ResolveInput& input, DType dtype, OpResolution& resolution) {
  const DType sum = AccumulatedIn(dtype);
  Expression divide;
  divide.nodes = {
      {ScalarOp::kInput, sum, 0, 0, 0}, {ScalarOp::kArgument, sum, 0, 0, 0}, {ScalarOp::kDiv, sum, 0, 1, 0}};
  if (sum != dtype) divide.nodes.push_back({ScalarOp::kCast, dtype, 2, 0, 0});
  resolution.epilogue = MapOp{std::move(divide)};
  resolution.epilogue_scalars.push_back(Scalar::Int(ReducedCount(input)).As(sum));
}

// The result's dtype; elements are converted to it before they are reduced.
absl::StatusOr<DType> DecideDType(const ResolveInput& input) {
  TESSERA_ASSIGN_OR_RETURN(const ResolvedDTypes dtypes, ResolveDTypes(input));
  const DType* wanted = input.call.attributes.Get(attribute::dtype);
  if (wanted == nullptr) return dtypes.result;
  if ((input.call.op == OpId::kSum || input.call.op == OpId::kProd) && *wanted != DType::kBool) {
    TESSERA_RETURN_IF_ERROR(CheckMayCast(input, input.tensors[0]->dtype, *wanted));
    return *wanted;
  }
  return OperandDTypeError(input, StrCat("dtype= can't be ", ToText(*wanted), " here"));
}

}  // namespace

absl::StatusOr<OpResolution> ResolveReduction(const ResolveInput& input) {
  TESSERA_RETURN_IF_ERROR(CheckDims(input));
  TESSERA_ASSIGN_OR_RETURN(const DType dtype, DecideDType(input));
  const ReduceOp op = *input.row.reduce_op;
  // The extremes of no bools are false and true: any and all.
  const bool has_identity = op == ReduceOp::kSum || op == ReduceOp::kProduct || dtype == DType::kBool;
  if (!has_identity) TESSERA_RETURN_IF_ERROR(CheckNotEmpty(input));
  OutputDims dims = ReduceShape(input);
  TESSERA_RETURN_IF_ERROR(ValidateShape(input.row.name, dims.shape, SizeBytes(AccumulatedIn(dtype))));
  OpResolution resolution;
  resolution.flops = static_cast<double>(NumElements(input.tensors[0]->shape));
  resolution.operands.push_back(PrepareOperand(input, dtype));
  resolution.local = ReduceLocalOp{op, input.call.attributes.Get(attribute::dims)};
  if (input.call.op == OpId::kMean) DivideByCount(input, dtype, resolution);
  const TensorSpec& operand = resolution.operands[0].spec;
  Placements placements = OutputPlacements(input, operand, dims);
  resolution.outputs.push_back(TensorSpec{dtype, std::move(dims.shape), operand.mesh, std::move(placements)});
  return resolution;
}

absl::StatusOr<OpResolution> ResolveArgReduction(const ResolveInput& input) {
  TESSERA_RETURN_IF_ERROR(CheckDims(input));
  TESSERA_ASSIGN_OR_RETURN(const ResolvedDTypes dtypes, ResolveDTypes(input));
  if (input.call.attributes.Get(attribute::dims).empty()) return OperandError(input, "needs a dim");
  TESSERA_RETURN_IF_ERROR(CheckNotEmpty(input));
  const TensorSpec& own = *input.tensors[0];
  TensorSpec operand = own;
  Shape whole;
  for (const int64_t dim : input.call.attributes.Get(attribute::dims))
    whole.push_back(own.shape[static_cast<size_t>(dim)]);
  bool is_cut = false;
  for (int i = 0; i < own.mesh.ndim(); ++i) {
    const Placement placement = own.placements[static_cast<size_t>(i)];
    if (placement.is_partial()) {
      // Best on a dim that isn't reduced: then there are no winners to be compared.
      const TensorSpec whole_here = WithPlacement(operand, i, Placement::Replicate());
      const std::vector<int64_t>& reduced = input.call.attributes.Get(attribute::dims);
      Placement chosen = ShardOrReplicate(whole_here, i, reduced.size() == 1 ? static_cast<int>(reduced[0]) : -1);
      if (chosen.is_replicate()) chosen = ShardOrReplicate(whole_here, i, -1);
      operand.placements[static_cast<size_t>(i)] = chosen;
    }
    const Placement wanted = operand.placements[static_cast<size_t>(i)];
    is_cut = is_cut || (wanted.is_shard() && IsReduced(input, wanted.dim()));
  }
  OutputDims dims = ReduceShape(input);
  TESSERA_RETURN_IF_ERROR(ValidateShape(input.row.name, dims.shape, SizeBytes(dtypes.result)));
  OpResolution resolution;
  resolution.flops = static_cast<double>(NumElements(own.shape));
  resolution.operands.push_back(BringTo(own, own.mesh, operand.placements));
  resolution.local = ArgReduceOp{input.call.op == OpId::kArgMin ? Extreme::kMin : Extreme::kMax,
                                 input.call.attributes.Get(attribute::dims), is_cut ? std::move(whole) : Shape()};
  Placements placements = operand.placements;
  for (Placement& placement : placements) {
    if (!placement.is_shard()) continue;
    placement = IsReduced(input, placement.dim())
                    ? Placement::Replicate()
                    : placement.OnDim(dims.output_dim[static_cast<size_t>(placement.dim())]);
  }
  resolution.outputs.push_back(TensorSpec{dtypes.result, std::move(dims.shape), own.mesh, std::move(placements)});
  return resolution;
}

}  // namespace tessera
