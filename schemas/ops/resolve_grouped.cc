// Products by groups. With groups of rows (m,k with g,k,n): rows, columns and inner elements are cut as those of a
// product are; matrices in shards leave a pending sum, as each worker gives the rows of its own groups. With groups of
// inner elements (m,k with k,n): a cut along k leaves a pending sum; where nothing is cut each worker gives some of the
// groups.

#include <vector>

#include "schemas/ops/product_placer.h"
#include "schemas/ops/resolve_internal.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

const Placement kWhole = Placement::Replicate();
const Placement kSum = Placement::Partial(ReduceOp::kSum);

std::vector<MatmulRule> RulesOf(GroupedDim grouped) {
  const Placement first = Placement::Shard(0), second = Placement::Shard(1), third = Placement::Shard(2);
  if (grouped == GroupedDim::kRows) {
    return {{first, kWhole, first},
            {kWhole, first, kSum},
            {kWhole, third, second},
            {kWhole, kWhole, kWhole},
            {second, second, kSum}};
  }
  return {{first, kWhole, second}, {kWhole, second, third}, {kWhole, kWhole, kWhole}, {second, first, kSum}};
}

absl::Status CheckOperands(const ResolveInput& input) {
  const TensorSpec &a = *input.tensors[0], &b = *input.tensors[1], &offsets = *input.tensors[2];
  if (a.rank() != 2 || (b.rank() != 2 && b.rank() != 3)) {
    return OperandError(input, "x1 must be a matrix, x2 a matrix or a matrix for each group");
  }
  if (a.dtype != b.dtype) return OperandDTypeError(input, "dtypes differ");
  if (Kind(a.dtype) != DTypeKind::kFloat) return OperandDTypeError(input, "needs floating-point dtypes");
  if (offsets.dtype != DType::kI32 && offsets.dtype != DType::kI64) {
    return OperandDTypeError(input, "offsets must be i32 or i64");
  }
  if (a.shape[1] != b.shape[b.shape.size() - 2]) return OperandError(input, "inner dims differ");
  const bool fits = offsets.rank() == 1 && (b.rank() == 2 || offsets.shape[0] == b.shape[0]);
  if (!fits) return OperandError(input, "offsets must be a vector of a number for each group");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OpResolution> ResolveGrouped(const ResolveInput& input) {
  TESSERA_RETURN_IF_ERROR(CheckOperands(input));
  const TensorSpec &a = *input.tensors[0], &b = *input.tensors[1], &offsets = *input.tensors[2];
  const GroupedDim grouped = b.rank() == 3 ? GroupedDim::kRows : GroupedDim::kInner;
  TensorSpec output = a;
  output.shape =
      grouped == GroupedDim::kRows ? Shape{a.shape[0], b.shape[2]} : Shape{offsets.shape[0], a.shape[0], b.shape[1]};
  TESSERA_RETURN_IF_ERROR(ValidateShape(input.row.name, output.shape, SizeBytes(output.dtype)));
  output.placements.assign(static_cast<size_t>(a.mesh.ndim()), kWhole);
  const std::vector<MatmulRule> rules = RulesOf(grouped);
  MatmulPlacer placer(rules, a, b, output, PendingPolicy::kReduceAll);
  TESSERA_RETURN_IF_ERROR(placer.Place());
  output = placer.product();
  for (int i = 0; grouped == GroupedDim::kInner && i < output.mesh.ndim(); ++i) {
    const size_t at = static_cast<size_t>(i);
    const bool is_whole = placer.a().placements[at].is_replicate() && placer.b().placements[at].is_replicate();
    if (!is_whole) continue;
    const Placement shards = ShardOrReplicate(output, i, -1);
    if (shards.is_shard(0)) output.placements[at] = shards;
  }
  OpResolution resolution;
  resolution.operands.push_back(BringTo(a, a.mesh, placer.a().placements));
  resolution.operands.push_back(BringTo(b, a.mesh, placer.b().placements));
  resolution.operands.push_back(BringTo(offsets, a.mesh, Placements(static_cast<size_t>(a.mesh.ndim()), kWhole)));
  resolution.flops = 2.0 * static_cast<double>(NumElements(a.shape)) * static_cast<double>(b.shape.back());
  resolution.local = GroupedMatmulOp{grouped, a.shape[grouped == GroupedDim::kRows ? 0 : 1]};
  resolution.outputs.push_back(std::move(output));
  return resolution;
}

}  // namespace tessera
