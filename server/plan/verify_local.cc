#include "server/plan/verify_local.h"

#include <algorithm>
#include <vector>

#include "schemas/ops/expression.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/plan/contract.h"
#include "server/plan/exchange.h"

namespace tessera {
namespace {

template <typename... Ts>
absl::Status Wrong(const Ts&... pieces) {
  return absl::InternalError(StrCat(pieces...));
}

// The extents of one position, and whether they fit the op.
struct ExtentsCheck {
  const std::vector<Shape>& inputs;
  const Shape& output;

  absl::Status Mismatch() const {
    std::string text;
    for (const Shape& input : inputs) StrAppend(&text, ToText(input), " ");
    return Wrong("extents ", text, "-> ", ToText(output));
  }
  absl::Status operator()(const MapOp&) const {
    for (const Shape& input : inputs) {
      if (input.size() > output.size()) return Mismatch();
      const size_t missing = output.size() - input.size();
      for (size_t d = 0; d < input.size(); ++d) {
        if (input[d] != output[missing + d] && input[d] != 1) return Mismatch();
      }
    }
    return absl::OkStatus();
  }
  absl::Status Reduced(absl::Span<const int64_t> dims) const {
    if (inputs.size() != 1 || inputs[0].size() != output.size()) return Mismatch();
    for (size_t d = 0; d < output.size(); ++d) {
      const bool is_reduced = std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) != dims.end();
      if (output[d] != (is_reduced ? 1 : inputs[0][d])) return Mismatch();
    }
    return absl::OkStatus();
  }
  absl::Status operator()(const ReduceLocalOp& op) const { return Reduced(op.dims); }
  absl::Status operator()(const ArgReduceOp& op) const { return Reduced({op.dim}); }
  absl::Status operator()(const MatmulOp& op) const {
    if (inputs.size() != 2) return Mismatch();
    return CheckContractionBoxes(op.notation, WholeBox(inputs[0]), WholeBox(inputs[1]), WholeBox(output));
  }
  absl::Status operator()(const FillOp&) const { return absl::OkStatus(); }
  absl::Status operator()(const ArangeOp&) const { return output.size() == 1 ? absl::OkStatus() : Mismatch(); }
  absl::Status operator()(const EyeOp&) const { return output.size() == 2 ? absl::OkStatus() : Mismatch(); }
  absl::Status operator()(const RandOp& op) const {
    return op.global_shape.size() == output.size() ? absl::OkStatus() : Mismatch();
  }
};

absl::Status CheckDTypes(const Plan& plan, const LocalStep& step) {
  const auto* map = std::get_if<MapOp>(&step.op);
  if (map == nullptr) return absl::OkStatus();
  if (map->expression.dtype() != plan.values[static_cast<size_t>(step.output)].spec.dtype) {
    return Wrong("the expression gives ", ToText(map->expression.dtype()));
  }
  for (const ExpressionNode& node : map->expression.nodes) {
    if (node.op != ScalarOp::kInput) continue;
    const DType dtype = plan.values[static_cast<size_t>(step.inputs[static_cast<size_t>(node.a)])].spec.dtype;
    if (dtype != node.dtype) return Wrong("input ", node.a, " is ", ToText(dtype), ", not ", ToText(node.dtype));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VerifyLocalStep(const Plan& plan, const LocalStep& step) {
  const TensorSpec& output = plan.values[static_cast<size_t>(step.output)].spec;
  TESSERA_RETURN_IF_ERROR(
      ValidateLocalOp(step.op, static_cast<int>(step.inputs.size()), static_cast<int>(step.scalars.size())));
  TESSERA_RETURN_IF_ERROR(CheckDTypes(plan, step));
  for (const int scalar : step.scalars) {
    if (scalar < 0 || scalar >= plan.scalar_count) return Wrong("scalar ", scalar, " of ", plan.scalar_count);
  }
  if (!step.counted_once.empty() && step.counted_once.size() != step.inputs.size()) {
    return Wrong("counted_once for ", step.counted_once.size(), " of ", step.inputs.size(), " inputs");
  }
  for (const std::vector<int>& dims : step.counted_once) {
    for (const int dim : dims) {
      if (dim < 0 || dim >= output.mesh.ndim()) return Wrong("counted_once on mesh dim ", dim);
    }
  }
  for (const int input : step.inputs) {
    const Mesh& mesh = plan.values[static_cast<size_t>(input)].spec.mesh;
    if (!HaveSameArrangement(mesh, output.mesh)) return Wrong("%", input, " is on ", ToText(mesh));
  }
  std::vector<Shape> extents(step.inputs.size());
  for (int64_t flat = 0; flat < output.mesh.size(); ++flat) {
    const Position position = output.mesh.PositionAt(flat);
    const Shape output_extents = BoxShape(LocalBox(output, position));
    if (NumElements(output_extents) == 0) continue;
    for (size_t i = 0; i < extents.size(); ++i) {
      extents[i] = BoxShape(LocalBox(plan.values[static_cast<size_t>(step.inputs[i])].spec, position));
    }
    TESSERA_RETURN_IF_ERROR(std::visit(ExtentsCheck{extents, output_extents}, step.op));
  }
  return absl::OkStatus();
}

}  // namespace tessera
