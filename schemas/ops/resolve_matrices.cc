// Functions of whole matrices: every worker has those that it computes of. A mesh dim that shards rows or columns
// shards a dim of the batch instead, or they are gathered; the batch keeps its shards, and so do columns of a
// right-hand side, which are solved for one by one.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/resolve_internal.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

absl::StatusOr<LinalgOp> OpOf(const ResolveInput& input) {
  const Attributes& a = input.call.attributes;
  const auto found = std::find(kLinalgKindNames.begin(), kLinalgKindNames.end(), a.Get(attribute::mode));
  if (found == kLinalgKindNames.end())
    return OperandError(input, StrCat("mode is ", a.Get(attribute::mode), ", no function"));
  const LinalgOp op{.kind = static_cast<LinalgKind>(found - kLinalgKindNames.begin()),
                    .upper = a.Get(attribute::upper),
                    .full = a.Get(attribute::full_matrices),
                    .transposed = a.Get(attribute::transposed),
                    .unit_diagonal = a.Get(attribute::unit_diagonal)};
  TESSERA_RETURN_IF_ERROR(ValidateLinalgOp(op, static_cast<int>(input.operands.size()), 0));
  return op;
}

absl::Status CheckDTypes(const ResolveInput& input) {
  for (const TensorSpec* tensor : input.tensors) {
    const DTypeKind kind = Kind(tensor->dtype);
    if (kind != DTypeKind::kFloat && kind != DTypeKind::kComplex) {
      return OperandDTypeError(input, "needs a floating-point dtype");
    }
    if (tensor->dtype != input.tensors[0]->dtype) return OperandDTypeError(input, "dtypes differ");
  }
  return absl::OkStatus();
}

// Where the operand lies on one mesh dim, given that its rows are whole: as it is; or the dim of the batch, or of a
// right-hand side's columns, that can take what must leave.
Placement WholeRows(const TensorSpec& spec, int mesh_dim, bool keeps_columns) {
  const Placement own = spec.placements[static_cast<size_t>(mesh_dim)];
  const int rows = spec.rank() - 2, columns = spec.rank() - 1;
  const bool moves = own.is_partial() || own.is_shard(rows) || (!keeps_columns && own.is_shard(columns));
  if (!moves) return own;
  TensorSpec free = spec;
  if (!keeps_columns) free.shape[static_cast<size_t>(columns)] = 1;
  for (size_t i = 0; i < free.placements.size(); ++i) {
    if (static_cast<int>(i) == mesh_dim || (!keeps_columns && free.placements[i].is_shard(columns))) {
      free.placements[i] = Placement::Replicate();
    }
  }
  // An extent of 1 takes a mesh dim of size 1 alone, where nothing is to be moved.
  const Placement to = ShardOrReplicate(free, mesh_dim, rows);
  return to.is_shard(columns) && !keeps_columns ? Placement::Replicate() : to;
}

// The placements of all operands: the left one's batch counts, then the right one's, then its columns.
std::vector<TensorSpec> Place(const ResolveInput& input) {
  std::vector<TensorSpec> wanted;
  for (const TensorSpec* tensor : input.tensors) wanted.push_back(*tensor);
  if (wanted.size() == 2 && !HaveSameArrangement(wanted[0].mesh, wanted[1].mesh)) {
    wanted[1].placements.assign(static_cast<size_t>(wanted[0].mesh.ndim()), Placement::Replicate());
  }
  for (TensorSpec& spec : wanted) spec.mesh = wanted[0].mesh;
  TensorSpec& right = wanted.back();
  for (int i = 0; i < wanted[0].mesh.ndim(); ++i) {
    const size_t at = static_cast<size_t>(i);
    const bool has_right = wanted.size() == 2;
    const int columns = right.rank() - 1;
    Placement left_to = WholeRows(wanted[0], i, false);
    if (has_right) {
      const Placement right_to = WholeRows(right, i, true);
      const bool batched_left = wanted[0].placements[at].is_shard() && left_to == wanted[0].placements[at];
      if (!batched_left && right_to.is_shard()) left_to = right_to;
      right.placements[at] = left_to;
    }
    wanted[0].placements[at] = has_right && left_to.is_shard(columns) ? Placement::Replicate() : left_to;
  }
  return wanted;
}

}  // namespace

absl::StatusOr<OpResolution> ResolveMatrices(const ResolveInput& input) {
  TESSERA_ASSIGN_OR_RETURN(const LinalgOp op, OpOf(input));
  TESSERA_RETURN_IF_ERROR(CheckDTypes(input));
  std::vector<Shape> shapes;
  for (const TensorSpec* tensor : input.tensors) shapes.push_back(tensor->shape);
  absl::StatusOr<Shape> shape = LinalgOutput(op, shapes);
  if (!shape.ok()) return OperandError(input, StdView(shape.status().message()));
  const std::vector<TensorSpec> wanted = Place(input);
  OpResolution resolution;
  for (size_t i = 0; i < wanted.size(); ++i) {
    resolution.operands.push_back(BringTo(*input.tensors[i], wanted[i].mesh, wanted[i].placements));
  }
  TensorSpec output = wanted.back();
  output.shape = *std::move(shape);
  output.dtype = LinalgDType(op.kind, output.dtype);
  TESSERA_RETURN_IF_ERROR(ValidateShape(input.row.name, output.shape, SizeBytes(output.dtype)));
  // About n times what the matrices have.
  const double n = static_cast<double>(input.tensors[0]->shape.back());
  for (const Shape& each : shapes) resolution.flops += n * static_cast<double>(NumElements(each));
  resolution.local = op;
  resolution.outputs.push_back(std::move(output));
  return resolution;
}

}  // namespace tessera
