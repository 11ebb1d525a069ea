#include "schemas/ops/signature.h"

#include <algorithm>
#include <array>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr std::array<std::string_view, 19> kOperandNames = {
    "updates", "x",        "x1",    "x2",  "condition", "weights",   "weight",  "bias", "labels", "target",
    "mean",    "variance", "query", "key", "value",     "attn_mask", "indices", "mask", "pivots"};
constexpr std::array<std::string_view, 3> kPlaceNames = {"device", "device_mesh", "placements"};

// The attribute that public interfaces call by another word.
AttributeId AttributeOf(std::string_view name) {
  if (name == "axis" || name == "axes") return AttributeId::kDims;
  if (name == "n" || name == "offset") return AttributeId::kK;
  if (name == "repetitions") return AttributeId::kRepeats;
  const absl::StatusOr<AttributeId> found = FindAttributeByName(name);
  return found.ok() ? *found : AttributeId::kMode;
}

bool IsAttribute(std::string_view name) {
  return name == "axis" || name == "axes" || name == "n" || name == "offset" || name == "repetitions" ||
         FindAttributeByName(name).ok();
}

Parameter::Role RoleOf(const OpRow& row, std::string_view name) {
  if (name == "arrays") return Parameter::Role::kOperands;
  // clip's bounds.
  const bool is_bound = row.id == OpId::kClip && (name == "min" || name == "max");
  if (is_bound || std::find(kOperandNames.begin(), kOperandNames.end(), name) != kOperandNames.end()) {
    return Parameter::Role::kOperand;
  }
  if (row.max_operands == 0 && std::find(kPlaceNames.begin(), kPlaceNames.end(), name) != kPlaceNames.end()) {
    return Parameter::Role::kPlace;
  }
  // How close is said anew by each call.
  const bool is_tolerance = row.id == OpId::kIsClose || row.id == OpId::kAllClose;
  return IsAttribute(name) && !is_tolerance ? Parameter::Role::kAttribute : Parameter::Role::kScalar;
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

}  // namespace

absl::StatusOr<Signature> ParseSignature(const OpRow& row) {
  const std::string_view text = row.signature;
  const size_t open = text.find('(');
  if (open == text.npos || text.back() != ')' || text.substr(0, open) != row.name) {
    return absl::InvalidArgumentError(StrCat(row.name, ": \"", text, "\" is no signature"));
  }
  Signature signature{row.name, {}};
  bool by_keyword_only = false;
  std::string_view rest = text.substr(open + 1, text.size() - open - 2);
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view piece = Trimmed(rest.substr(0, comma));
    rest = comma < rest.size() ? rest.substr(comma + 1) : std::string_view();
    if (piece == "/") {
      for (Parameter& parameter : signature.parameters) {
        parameter.by_position_only = true;
        if (parameter.role == Parameter::Role::kScalar && row.max_operands > 0)
          parameter.role = Parameter::Role::kOperand;
      }
    } else if (piece == "*") {
      by_keyword_only = true;
    } else if (piece.substr(0, 1) != "*") {
      const size_t equals = std::min(piece.find('='), piece.size());
      Parameter parameter;
      parameter.name = piece.substr(0, equals);
      parameter.default_text = equals < piece.size() ? piece.substr(equals + 1) : std::string_view();
      parameter.by_keyword_only = by_keyword_only;
      parameter.role = RoleOf(row, parameter.name);
      if (parameter.role == Parameter::Role::kAttribute) parameter.attribute = AttributeOf(parameter.name);
      signature.parameters.push_back(parameter);
    }
  }
  return signature;
}

}  // namespace tessera
