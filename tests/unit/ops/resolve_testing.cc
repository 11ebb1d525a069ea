#include "tests/unit/ops/resolve_testing.h"

#include "gtest/gtest.h"
#include "schemas/ops/attribute_ids.h"
#include "schemas/types/str_cat.h"

namespace tessera {

std::vector<OperandSpec> ParseOperands(const std::vector<std::string>& texts) {
  std::vector<OperandSpec> operands;
  for (const std::string& text : texts) {
    if (text.find('@') != std::string::npos) {
      const absl::StatusOr<TensorSpec> spec = ParseTensorSpec(text);
      EXPECT_TRUE(spec.ok()) << spec.status();
      operands.emplace_back(spec.value_or(TensorSpec{}));
    } else {
      const absl::StatusOr<Scalar> scalar = ParseScalar(text);
      EXPECT_TRUE(scalar.ok()) << scalar.status();
      operands.emplace_back(scalar.value_or(Scalar()));
    }
  }
  return operands;
}

absl::StatusOr<OpResolution> Resolve(OpId op, const std::vector<std::string>& operands, const Attributes& attributes,
                                     const std::vector<Scalar>& scalars) {
  return ResolveOp({op, attributes, scalars}, ParseOperands(operands));
}

std::string Output(OpId op, const std::vector<std::string>& operands, const Attributes& attributes,
                   const std::vector<Scalar>& scalars) {
  const absl::StatusOr<OpResolution> resolution = Resolve(op, operands, attributes, scalars);
  if (!resolution.ok()) return std::string(resolution.status().message());
  return ToText(resolution->outputs[0]);
}

std::string OutputPlacements(OpId op, const std::vector<std::string>& operands, const Attributes& attributes) {
  const absl::StatusOr<OpResolution> resolution = Resolve(op, operands, attributes);
  if (!resolution.ok()) return std::string(resolution.status().message());
  return ToText(resolution->outputs[0].placements);
}

std::string OperandPlacements(OpId op, const std::vector<std::string>& operands, const Attributes& attributes) {
  const absl::StatusOr<OpResolution> resolution = Resolve(op, operands, attributes);
  if (!resolution.ok()) return std::string(resolution.status().message());
  std::string text;
  for (const ResolvedOperand& operand : resolution->operands) {
    StrAppend(&text, text.empty() ? "" : " ", ToText(operand.spec.placements));
    for (const int dim : operand.counted_once) StrAppend(&text, "once", dim);
  }
  return text;
}

std::string LocalText(OpId op, const std::vector<std::string>& operands, const Attributes& attributes) {
  const absl::StatusOr<OpResolution> resolution = Resolve(op, operands, attributes);
  if (!resolution.ok()) return std::string(resolution.status().message());
  return resolution->local.has_value() ? ToText(*resolution->local) : "none";
}

Attributes Dims(std::vector<int64_t> dims) {
  Attributes attributes;
  attributes.Set(attribute::dims, std::move(dims));
  return attributes;
}

Attributes KeepDims(std::vector<int64_t> dims) {
  Attributes attributes = Dims(std::move(dims));
  attributes.Set(attribute::keepdims, true);
  return attributes;
}

Attributes ToShape(Shape shape) {
  Attributes attributes;
  attributes.Set(attribute::shape, std::move(shape));
  return attributes;
}

}  // namespace tessera
