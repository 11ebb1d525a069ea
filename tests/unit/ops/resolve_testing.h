#pragma once

// Short ways to ask ResolveOp in tests: operands are texts, answers are texts.
//
//   Output(OpId::kAdd, {"f32[4] @ mesh(2) [S(0)]", "2"}) == "f32[4] @ mesh(2) [S(0)]"

#include <string>
#include <string_view>
#include <vector>

#include "schemas/ops/resolve.h"

namespace tessera {

// A spec where the text has an "@", else a scalar.
std::vector<OperandSpec> ParseOperands(const std::vector<std::string>& texts);

absl::StatusOr<OpResolution> Resolve(OpId op, const std::vector<std::string>& operands,
                                     const Attributes& attributes = {}, const std::vector<Scalar>& scalars = {});
// The output's text, or the error's message.
std::string Output(OpId op, const std::vector<std::string>& operands, const Attributes& attributes = {},
                   const std::vector<Scalar>& scalars = {});
// The output's placements alone: "[S(0)]".
std::string OutputPlacements(OpId op, const std::vector<std::string>& operands, const Attributes& attributes = {});
// The placements that the operands are brought to: "[S(0)] [R]". Counted-once mesh dims follow: "[R]once0".
std::string OperandPlacements(OpId op, const std::vector<std::string>& operands, const Attributes& attributes = {});
std::string LocalText(OpId op, const std::vector<std::string>& operands, const Attributes& attributes = {});

Attributes Dims(std::vector<int64_t> dims);
Attributes KeepDims(std::vector<int64_t> dims);
Attributes ToShape(Shape shape);

}  // namespace tessera
