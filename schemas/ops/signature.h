#pragma once

// Signature: the parameters of a row, read from its text. The surfaces are made from them: the Python functions, their
// stubs, `tessera ops` and docs/ops.md.
//
//   ParseSignature("softmax(x, /, *, axis=-1)")   x: an operand; axis=-1: the attribute dims, by keyword alone

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "schemas/ops/catalog.h"

namespace tessera {

struct Parameter {
  // kOperands: a list of tensors. kScalar: a number of the call that is no part of a plan's key. kPlace: device,
  // device_mesh, placements.
  enum class Role : uint8_t { kOperand, kOperands, kAttribute, kScalar, kPlace };
  std::string_view name;
  std::string_view default_text;  // "" without one
  bool by_keyword_only = false;
  bool by_position_only = false;
  Role role = Role::kAttribute;
  AttributeId attribute{};  // kAttribute
};

struct Signature {
  std::string_view name;
  std::vector<Parameter> parameters;
};

// InvalidArgument where the text is none: x[index].
absl::StatusOr<Signature> ParseSignature(const OpRow& row);

}  // namespace tessera
