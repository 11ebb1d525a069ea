#pragma once

// Tools of the families of ResolveOp. Private to schemas/ops.
//
// A resolver of a family is given operands whose count and dtypes are known to be allowed, and gives
// the whole resolution. The placement of a result is decided one mesh dim after the other.

#include <optional>
#include <string>
#include <string_view>

#include "absl/container/inlined_vector.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/resolve.h"
#include "schemas/ops/saving.h"

namespace tessera {

struct ResolveInput {
  const OpRow& row;
  const OpCall& call;
  absl::Span<const OperandSpec> operands;
  absl::InlinedVector<const TensorSpec*, 3> tensors;  // the operands that are tensors, in order
  Saving saving = Saving::kTime;                      // by which a composite chooses its way
};

absl::StatusOr<OpResolution> ResolveCreation(const ResolveInput& input);
absl::StatusOr<OpResolution> ResolveElementwise(const ResolveInput& input);
absl::StatusOr<OpResolution> ResolveReduction(const ResolveInput& input);
absl::StatusOr<OpResolution> ResolveArgReduction(const ResolveInput& input);
absl::StatusOr<OpResolution> ResolveContraction(const ResolveInput& input);
absl::StatusOr<OpResolution> ResolveViewOp(const ResolveInput& input);
absl::StatusOr<OpResolution> ResolvePlace(const ResolveInput& input);
absl::StatusOr<OpResolution> ResolveAlong(const ResolveInput& input);
absl::StatusOr<OpResolution> ResolveIndexed(const ResolveInput& input);
absl::StatusOr<OpResolution> ResolveFilter(const ResolveInput& input);
absl::StatusOr<OpResolution> ResolveShardCounts(const ResolveInput& input);
absl::StatusOr<OpResolution> ResolveAttention(const ResolveInput& input);
absl::StatusOr<OpResolution> ResolveAttentionLogarithms(const ResolveInput& input);
absl::StatusOr<OpResolution> ResolveAttentionGradients(const ResolveInput& input);
absl::StatusOr<OpResolution> ResolveGrouped(const ResolveInput& input);
absl::StatusOr<OpResolution> ResolveFourier(const ResolveInput& input);
absl::StatusOr<OpResolution> ResolveMatrices(const ResolveInput& input);
absl::StatusOr<OpResolution> ResolveWindows(const ResolveInput& input);
absl::StatusOr<OpResolution> ResolveComposite(const ResolveInput& input);
absl::StatusOr<OpResolution> ResolveRedistribute(const ResolveInput& input);

// "a is f32[2,3], b is f32[4]"; "x is f32[2]" for one operand.
std::string DescribeOperands(const ResolveInput& input);
// InvalidArgument `add: WHY: a is f32[2,3], b is f32[4]`.
absl::Status OperandError(const ResolveInput& input, std::string_view why);
// The same with the payload of a dtype error.
absl::Status OperandDTypeError(const ResolveInput& input, std::string_view why);

// All on the workers of the first operand's mesh; InvalidArgument that names to_device otherwise.
absl::Status CheckMeshes(const ResolveInput& input);

struct ResolvedDTypes {
  DType compute = DType::kF32;  // what operands are converted to (where: but for the condition)
  DType result = DType::kF32;
};
// By the row's dtype rule; weak scalars follow the tensors.
absl::StatusOr<ResolvedDTypes> ResolveDTypes(const ResolveInput& input);
// "needs a real dtype", of what complex numbers have no meaning for.
absl::Status NeedsRealDType(const ResolveInput& input);
// An error that names both where a cast is none that MayCast allows.
absl::Status CheckMayCast(const ResolveInput& input, DType from, DType to);
// Whether a weak integer, or one of 2^63 and more, is one of an integer dtype's numbers. Others are converted.
bool Fits(const Scalar& scalar, DType dtype);
// Whether every number of a dtype is one of the other.
bool IsWidening(DType from, DType to);
// Whether a pending tensor's terms may be converted before they are reduced. Not those of a sum of integers, which may
// wrap as they are added up, and only then; nor of bool, whose sum is true or false.
bool MayConvertTerms(const TensorSpec& pending, DType to);

// `own` brought to `mesh` and `placements`.
ResolvedOperand BringTo(const TensorSpec& own, const Mesh& mesh, const Placements& placements);

// The Shard that pending terms (or what must leave another dim) take on `mesh_dim` of `spec`: the
// first tensor dim, not `excluded_dim`, that no other mesh dim shards and whose extent is at least the
// mesh dim's size; else the first that is still large enough after the other mesh dims' shards; else
// Replicate. `excluded_dim` may be -1.
Placement ShardOrReplicate(const TensorSpec& spec, int mesh_dim, int excluded_dim);

// Pending terms reduced to shards of another dim than `dim` where one is long enough, else of any; shards stay.
TensorSpec NothingPending(const TensorSpec& own, int dim);
// The one dim that the call's attributes name; IndexOutOfRange for one that operand 0 hasn't.
absl::StatusOr<int> DimOf(const ResolveInput& input);

// Total bytes that all workers receive.
absl::StatusOr<double> RedistributeBytes(const TensorSpec& source, const TensorSpec& destination);
// A copy with another placement on one mesh dim.
TensorSpec WithPlacement(const TensorSpec& spec, int mesh_dim, const Placement& placement);

// The mesh and placements of an elementwise op's output, and those of its operands (resolve_placement.cc).
struct ElementwisePlacement {
  Mesh mesh;
  Placements output;
  absl::InlinedVector<ResolvedOperand, 3> operands;  // tensor operands
  std::vector<int> scalar_counted_once;              // mesh dims; empty: scalars are read everywhere
};
absl::StatusOr<ElementwisePlacement> PlaceElementwise(const ResolveInput& input, const Shape& output_shape,
                                                      const ResolvedDTypes& dtypes);

// One node of the row's op over inputs and scalars, operands converted to their dtype.
Expression MakeElementwiseExpression(const ResolveInput& input, const ResolvedDTypes& dtypes);
Expression MakeCastExpression(DType from, DType to);

}  // namespace tessera
