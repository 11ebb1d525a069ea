#include "schemas/ops/resolve_internal.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

absl::StatusOr<Shape> BroadcastOperands(const ResolveInput& input) {
  Shape shape = input.tensors[0]->shape;
  for (size_t i = 1; i < input.tensors.size(); ++i) {
    if (input.tensors[i]->shape == shape) continue;
    absl::StatusOr<Shape> joined = BroadcastShapes(shape, input.tensors[i]->shape);
    if (!joined.ok()) return OperandError(input, "shapes don't broadcast");
    shape = *std::move(joined);
  }
  return shape;
}

// A number beside a pending sum becomes the last input, which coordinate 0 alone counts.
void FillScalar(const ElementwisePlacement& placed, DType dtype, OpResolution& resolution) {
  const Mesh& mesh = resolution.outputs[0].mesh;
  ResolvedOperand filled;
  filled.spec = TensorSpec{dtype, {}, mesh, Placements(static_cast<size_t>(mesh.ndim()))};
  filled.counted_once = placed.scalar_counted_once;
  resolution.filled_scalar = std::move(filled);
  for (ExpressionNode& node : std::get<MapOp>(*resolution.local).expression.nodes) {
    if (node.op != ScalarOp::kArgument) continue;
    node.op = ScalarOp::kInput;
    node.a = static_cast<int32_t>(resolution.operands.size());
  }
}

}  // namespace

absl::StatusOr<OpResolution> ResolveElementwise(const ResolveInput& input) {
  TESSERA_ASSIGN_OR_RETURN(const ResolvedDTypes dtypes, ResolveDTypes(input));
  TESSERA_ASSIGN_OR_RETURN(Shape shape, BroadcastOperands(input));
  TESSERA_RETURN_IF_ERROR(ValidateShape(input.row.name, shape, SizeBytes(dtypes.result)));
  TESSERA_ASSIGN_OR_RETURN(ElementwisePlacement placed, PlaceElementwise(input, shape, dtypes));
  OpResolution resolution;
  resolution.flops = static_cast<double>(NumElements(shape));
  resolution.local = MapOp{MakeElementwiseExpression(input, dtypes)};
  for (const OperandSpec& operand : input.operands) {
    const auto* scalar = std::get_if<Scalar>(&operand);
    if (scalar != nullptr) resolution.scalars.push_back(scalar->As(dtypes.compute));
  }
  resolution.operands.assign(std::make_move_iterator(placed.operands.begin()),
                             std::make_move_iterator(placed.operands.end()));
  resolution.outputs.push_back(
      TensorSpec{dtypes.result, std::move(shape), std::move(placed.mesh), std::move(placed.output)});
  if (!placed.scalar_counted_once.empty()) FillScalar(placed, dtypes.compute, resolution);
  return resolution;
}

}  // namespace tessera
