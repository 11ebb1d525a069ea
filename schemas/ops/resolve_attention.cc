// Attention on whole keys: shards of batches stay on all operands, shards of the queries' rows stay there, and keys and
// values come whole to them. Nothing else is cut. Its gradients keep shards of batches alone.

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/resolve_internal.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// A mask is broadcast to the scores of a query and a key.
absl::Status CheckMask(const ResolveInput& input, const TensorSpec& q, const TensorSpec& k, const TensorSpec& mask) {
  const size_t rank = q.shape.size();
  Shape scores = q.shape;
  scores[rank - 1] = k.shape[k.shape.size() - 2];
  bool fits = mask.shape.size() <= rank;
  for (size_t d = 0; fits && d < mask.shape.size(); ++d) {
    const int64_t extent = mask.shape[mask.shape.size() - 1 - d];
    fits = extent == 1 || extent == scores[rank - 1 - d];
  }
  if (!fits) return OperandError(input, StrCat("the mask is not broadcast to ", ToText(scores)));
  if (mask.dtype == DType::kBool || mask.dtype == AccumulatedIn(q.dtype)) return absl::OkStatus();
  return OperandDTypeError(input, "the mask must be bool or of the dtype that is added up in");
}

// Checks the first so many operands, and the mask behind them.
absl::Status CheckShapes(const ResolveInput& input, size_t operands) {
  const TensorSpec &q = *input.tensors[0], &k = *input.tensors[1];
  const size_t rank = q.shape.size();
  for (size_t i = 0; i < operands; ++i) {
    const TensorSpec& each = *input.tensors[i];
    if (each.shape.size() != rank || rank < 2) return OperandError(input, "needs (..., sequence, features)");
    if (Kind(each.dtype) != DTypeKind::kFloat) return OperandDTypeError(input, "needs floating-point dtypes");
    if (each.dtype != q.dtype) return OperandDTypeError(input, "the dtypes of query, key and value differ");
    for (size_t d = 0; d + 2 < rank; ++d) {
      if (each.shape[d] != q.shape[d]) return OperandError(input, "the batches differ");
    }
  }
  if (q.shape[rank - 1] != k.shape[rank - 1]) return OperandError(input, "query and key have other features");
  if (operands > 2 && k.shape[rank - 2] != input.tensors[2]->shape[rank - 2]) {
    return OperandError(input, "key and value have other lengths");
  }
  return input.tensors.size() == operands ? absl::OkStatus() : CheckMask(input, q, k, *input.tensors[operands]);
}

// Cut as the output is where it has that extent, whole elsewhere; the mask may have fewer dims.
Placements Beside(const TensorSpec& own, const TensorSpec& output, bool has_rows) {
  Placements placements = output.placements;
  const int missing = output.rank() - own.rank();
  for (Placement& placement : placements) {
    if (!placement.is_shard()) continue;
    const int dim = placement.dim() - missing;
    const bool is_cut =
        dim >= 0 && (has_rows || placement.dim() < output.rank() - 2) && own.shape[static_cast<size_t>(dim)] != 1;
    placement = is_cut ? placement.OnDim(dim) : Placement::Replicate();
  }
  return placements;
}

// The result of queries, whose rows and batches may be cut, and whose last dim nobody cuts.
TensorSpec ResultOf(const TensorSpec& q, int64_t columns) {
  TensorSpec result = q;
  result.shape.back() = columns;
  for (int i = 0; i < q.mesh.ndim(); ++i) {
    Placement& placement = result.placements[static_cast<size_t>(i)];
    if (placement.is_shard() && placement.dim() < q.rank() - 1) continue;
    placement = ShardOrReplicate(WithPlacement(result, i, Placement::Replicate()), i, q.rank() - 1);
  }
  return result;
}

}  // namespace

absl::StatusOr<OpResolution> ResolveAttention(const ResolveInput& input) {
  TESSERA_RETURN_IF_ERROR(CheckShapes(input, 3));
  if (input.call.scalars.size() != 1) return OperandError(input, "takes a scale");
  const TensorSpec& q = *input.tensors[0];
  TensorSpec output = ResultOf(q, input.tensors[2]->shape.back());
  TESSERA_RETURN_IF_ERROR(ValidateShape(input.row.name, output.shape, SizeBytes(output.dtype)));
  OpResolution resolution;
  for (size_t i = 0; i < input.tensors.size(); ++i) {
    const TensorSpec& own = *input.tensors[i];
    resolution.operands.push_back(BringTo(own, output.mesh, Beside(own, output, i == 0 || i == 3)));
  }
  const double keys = static_cast<double>(input.tensors[1]->shape[input.tensors[1]->shape.size() - 2]);
  resolution.flops = 2 * keys * static_cast<double>(NumElements(q.shape) + NumElements(output.shape));
  resolution.local = AttentionOp{input.call.attributes.Get(attribute::is_causal)};
  resolution.scalars = {input.call.scalars[0].As(DType::kF64)};
  resolution.outputs.push_back(std::move(output));
  return resolution;
}

absl::StatusOr<OpResolution> ResolveAttentionLogarithms(const ResolveInput& input) {
  TESSERA_RETURN_IF_ERROR(CheckShapes(input, 2));
  if (input.call.scalars.size() != 1) return OperandError(input, "takes a scale");
  const TensorSpec &q = *input.tensors[0], &k = *input.tensors[1];
  const TensorSpec whole = ResultOf(q, 1);
  OpResolution resolution;
  for (size_t i = 0; i < input.tensors.size(); ++i) {
    const TensorSpec& own = *input.tensors[i];
    resolution.operands.push_back(BringTo(own, whole.mesh, Beside(own, whole, i != 1)));
  }
  resolution.flops = 2 * static_cast<double>(k.shape[k.shape.size() - 2]) * static_cast<double>(NumElements(q.shape));
  resolution.local = AttentionLogarithmsOp{input.call.attributes.Get(attribute::is_causal)};
  resolution.scalars = {input.call.scalars[0].As(DType::kF64)};
  TensorSpec output = whole;
  output.shape.pop_back();
  output.dtype = AccumulatedIn(q.dtype);
  resolution.outputs.push_back(std::move(output));
  return resolution;
}

namespace {

// Checks the operands behind the values: the result and its logarithms.
absl::Status CheckResult(const ResolveInput& input) {
  const TensorSpec &gradient = *input.tensors[0], &result = *input.tensors[4], &logarithms = *input.tensors[5];
  if (result.shape != gradient.shape) return OperandError(input, "the result has another shape than its gradient");
  if (result.dtype != gradient.dtype) return OperandDTypeError(input, "the dtypes of the operands differ");
  Shape rows = gradient.shape;
  rows.pop_back();
  if (logarithms.shape != rows) return OperandError(input, "the logarithms are not one of each of the result's rows");
  if (logarithms.dtype == AccumulatedIn(gradient.dtype)) return absl::OkStatus();
  return OperandDTypeError(input, "the logarithms must be of the dtype that is added up in");
}

}  // namespace

// Sequences and features are whole on every worker, so that nothing is pending; the batches' shards are the output's.
absl::StatusOr<OpResolution> ResolveAttentionGradients(const ResolveInput& input) {
  const TensorSpec &gradient = *input.tensors[0], &q = *input.tensors[1], &k = *input.tensors[2],
                   &v = *input.tensors[3];
  for (size_t i = 0; i < 4; ++i) {
    if (Kind(input.tensors[i]->dtype) != DTypeKind::kFloat) {
      return OperandDTypeError(input, "needs floating-point dtypes");
    }
    if (input.tensors[i]->dtype != q.dtype) return OperandDTypeError(input, "the dtypes of the operands differ");
  }
  // Heads that share keys are the dim of queries before the last two.
  if (k.rank() < 2 || v.rank() != k.rank() || (q.rank() != k.rank() && q.rank() != k.rank() + 1)) {
    return OperandError(input, "needs (..., sequence, features)");
  }
  TensorSpec output = q;
  const auto row = static_cast<size_t>(k.rank() - 2), column = row + 1;
  const int64_t of_queries = NumElements(absl::MakeConstSpan(q.shape).subspan(row));
  output.shape.resize(row);
  output.shape.push_back(of_queries + k.shape[row] * (k.shape[column] + v.shape[column]));
  const std::string_view wrong = AttentionGradientsMismatch(gradient.shape, q.shape, k.shape, v.shape, output.shape);
  if (!wrong.empty()) return OperandError(input, wrong);
  const AttentionGradientsOp op = {input.call.attributes.Get(attribute::is_causal),
                                   input.row.id == OpId::kAttentionGradientsOfResult};
  if (op.has_result) TESSERA_RETURN_IF_ERROR(CheckResult(input));
  if (input.tensors.size() > op.mask()) TESSERA_RETURN_IF_ERROR(CheckMask(input, q, k, *input.tensors[op.mask()]));
  if (input.call.scalars.size() != 1) return OperandError(input, "takes a scale");
  for (Placement& placement : output.placements) {
    if (!placement.is_shard() || placement.dim() >= k.rank() - 2) placement = Placement::Replicate();
  }
  TESSERA_RETURN_IF_ERROR(ValidateShape(input.row.name, output.shape, SizeBytes(output.dtype)));
  for (int i = 0; i < q.mesh.ndim(); ++i) {
    Placement& placement = output.placements[static_cast<size_t>(i)];
    if (!placement.is_shard()) placement = ShardOrReplicate(output, i, k.rank() - 2);
  }
  // As if there were results (..., sequence, features) of queries and of keys, whose rows and shared heads nobody cuts.
  TensorSpec of_rows = q, of_keys = k;
  of_rows.placements = of_keys.placements = output.placements;
  OpResolution resolution;
  for (size_t i = 0; i < input.tensors.size(); ++i) {
    const TensorSpec& own = *input.tensors[i];
    const bool is_of_keys = i == 2 || i == 3, is_of_logarithms = op.has_result && i == 5;
    if (is_of_logarithms) {
      resolution.operands.push_back(BringTo(own, output.mesh, output.placements));
      continue;
    }
    resolution.operands.push_back(BringTo(own, output.mesh, Beside(own, is_of_keys ? of_keys : of_rows, false)));
  }
  const double keys = static_cast<double>(k.shape[row]);
  resolution.flops = 2 * keys * static_cast<double>(3 * NumElements(q.shape) + 2 * NumElements(gradient.shape));
  resolution.local = op;
  resolution.scalars = {input.call.scalars[0].As(DType::kF64)};
  resolution.outputs.push_back(std::move(output));
  return resolution;
}

}  // namespace tessera
