// The dtype rules of the catalog, and the expressions that convert operands by them.

#include <array>
#include <limits>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/op_ids.h"
#include "schemas/ops/resolve_internal.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

bool IsInteger(DType dtype) { return Kind(dtype) == DTypeKind::kSigned || Kind(dtype) == DTypeKind::kUnsigned; }
bool IsComplex(DType dtype) { return Kind(dtype) == DTypeKind::kComplex; }
bool IsFloat(DType dtype) { return Kind(dtype) == DTypeKind::kFloat; }

// A Python number beside tensors of `dtype`.
DType FollowTensors(DType dtype, const Scalar& weak) {
  if (weak.dtype() == DType::kI64 && dtype == DType::kBool) return DType::kI64;
  if (weak.dtype() == DType::kF64 && !IsFloat(dtype) && !IsComplex(dtype)) return DType::kF64;
  if (weak.dtype() == DType::kC128 && !IsComplex(dtype)) {
    return IsFloat(dtype) && SizeBits(dtype) <= 32 ? DType::kC64 : DType::kC128;
  }
  return dtype;
}

absl::Status CheckFits(const ResolveInput& input, DType dtype, const Scalar& scalar) {
  if (Fits(scalar, dtype)) return absl::OkStatus();
  return OperandDTypeError(input, StrCat(ToText(scalar), " doesn't fit dtype ", ToText(dtype)));
}

// The common dtype of the operands from `first` on.
absl::StatusOr<DType> PromoteOperands(const ResolveInput& input, size_t first) {
  std::optional<DType> common;
  const auto join = [&](DType dtype) -> absl::Status {
    if (!common.has_value()) {
      common = dtype;
      return absl::OkStatus();
    }
    if (*common == dtype) return absl::OkStatus();
    const absl::StatusOr<DType> promoted = Promote(*common, dtype);
    // Signed integers and u64 are added and multiplied as f64. An op that compares them, or their bits, would be wrong
    // there.
    const DTypeRule rule = input.row.dtype_rule;
    const bool is_exact = rule == DTypeRule::kBool || rule == DTypeRule::kBits || rule == DTypeRule::kInteger;
    if (!promoted.ok() || (is_exact && IsInteger(*common) && IsInteger(dtype) && IsFloat(*promoted))) {
      return OperandDTypeError(input,
                               StrCat("dtypes ", ToText(*common), " and ", ToText(dtype), " have no common dtype"));
    }
    common = *promoted;
    return absl::OkStatus();
  };
  for (size_t i = first; i < input.operands.size(); ++i) {
    if (const auto* spec = std::get_if<TensorSpec>(&input.operands[i])) {
      TESSERA_RETURN_IF_ERROR(join(spec->dtype));
    } else if (const Scalar& scalar = std::get<Scalar>(input.operands[i]);
               scalar.strength() == ScalarStrength::kStrong) {
      TESSERA_RETURN_IF_ERROR(join(scalar.dtype()));
    }
  }
  // where(condition, 1, 2): only numbers; they promote as their own dtypes.
  DType result = common.value_or(DType::kBool);
  for (size_t i = first; i < input.operands.size(); ++i) {
    const auto* scalar = std::get_if<Scalar>(&input.operands[i]);
    if (scalar != nullptr && scalar->strength() == ScalarStrength::kWeak) result = FollowTensors(result, *scalar);
  }
  for (size_t i = first; i < input.operands.size(); ++i) {
    if (const auto* scalar = std::get_if<Scalar>(&input.operands[i])) {
      TESSERA_RETURN_IF_ERROR(CheckFits(input, result, *scalar));
    }
  }
  return result;
}

// Refuses ops that have no meaning for complex numbers, and dtypes that these don't become.
absl::Status CheckComplex(const ResolveInput& input, const ResolvedDTypes& dtypes) {
  const std::optional<ScalarOp> op = input.row.scalar_op;
  if (op == ScalarOp::kCast) return CheckMayCast(input, input.tensors[0]->dtype, dtypes.result);
  if (!IsComplex(dtypes.compute)) return absl::OkStatus();
  const std::optional<ReduceOp> reduction = input.row.reduce_op;
  bool is_defined = !op.has_value() || IsDefinedFor(*op, dtypes.compute, dtypes.result);
  if (reduction == ReduceOp::kMin || reduction == ReduceOp::kMax) is_defined = false;
  switch (input.row.id) {
    case OpId::kArgMin:
    case OpId::kArgMax:
    case OpId::kCumulativeMax:
    case OpId::kCumulativeMin:
    case OpId::kSort:
    case OpId::kArgSort:
    case OpId::kArgSortFirst: is_defined = false; break;
    default: break;
  }
  return is_defined ? absl::OkStatus() : NeedsRealDType(input);
}

absl::Status CheckCondition(const ResolveInput& input) {
  const auto* condition = std::get_if<TensorSpec>(&input.operands[0]);
  if (condition != nullptr && condition->dtype == DType::kBool) return absl::OkStatus();
  return OperandDTypeError(input, "the dtype of the condition must be bool");
}

absl::StatusOr<ResolvedDTypes> DTypesByRule(const ResolveInput& input) {
  switch (input.row.dtype_rule) {
    case DTypeRule::kAttribute:
      if (input.call.attributes.Get(attribute::dtype) == nullptr) {
        return absl::InvalidArgumentError(StrCat(input.row.name, ": needs a dtype"));
      }
      return ResolvedDTypes{*input.call.attributes.Get(attribute::dtype), *input.call.attributes.Get(attribute::dtype)};
    case DTypeRule::kWhere: {
      TESSERA_RETURN_IF_ERROR(CheckCondition(input));
      TESSERA_ASSIGN_OR_RETURN(const DType common, PromoteOperands(input, 1));
      return ResolvedDTypes{common, common};
    }
    case DTypeRule::kIndex:
      if (input.tensors[0]->dtype == DType::kBool && input.call.op != OpId::kArgSort &&
          input.call.op != OpId::kArgSortFirst) {
        return OperandDTypeError(input, "needs a numeric dtype");
      }
      return ResolvedDTypes{input.tensors[0]->dtype, DType::kI64};
    case DTypeRule::kSame: return ResolvedDTypes{input.tensors[0]->dtype, input.tensors[0]->dtype};
    case DTypeRule::kPromote:
    case DTypeRule::kPromoteNumeric:
    case DTypeRule::kFloating:
    case DTypeRule::kBool:
    case DTypeRule::kPredicate:
    case DTypeRule::kBits:
    case DTypeRule::kInteger:
    case DTypeRule::kSum:
    case DTypeRule::kPart:
    case DTypeRule::kParts: break;
    case DTypeRule::kLogical: return ResolvedDTypes{DType::kBool, DType::kBool};
  }
  TESSERA_ASSIGN_OR_RETURN(const DType common, PromoteOperands(input, 0));
  const bool floating = IsFloat(common) || IsComplex(common);
  switch (input.row.dtype_rule) {
    case DTypeRule::kPromoteNumeric:
      if (common == DType::kBool) return OperandDTypeError(input, "needs a numeric dtype");
      return ResolvedDTypes{common, common};
    case DTypeRule::kFloating: {
      const DType result = floating ? common : DType::kF64;
      return ResolvedDTypes{result, result};
    }
    case DTypeRule::kBool: return ResolvedDTypes{common, DType::kBool};
    case DTypeRule::kPredicate: return ResolvedDTypes{common == DType::kBool ? DType::kU8 : common, DType::kBool};
    case DTypeRule::kBits:
      if (common != DType::kBool && !IsInteger(common))
        return OperandDTypeError(input, "needs a dtype of bools or integers");
      return ResolvedDTypes{common, common};
    case DTypeRule::kInteger:
      if (!IsInteger(common)) return OperandDTypeError(input, "needs an integer dtype");
      return ResolvedDTypes{common, common};
    case DTypeRule::kSum: {
      const DType integer = Kind(common) == DTypeKind::kUnsigned ? DType::kU64 : DType::kI64;
      const DType result = floating ? common : integer;
      return ResolvedDTypes{common, result};
    }
    case DTypeRule::kPart:
      if (common == DType::kBool) return OperandDTypeError(input, "needs a numeric dtype");
      return ResolvedDTypes{common, RealOf(common)};
    case DTypeRule::kParts:
      if (IsComplex(common)) return NeedsRealDType(input);
      if (IsFloat(common) && SizeBits(common) <= 32) return ResolvedDTypes{DType::kF32, DType::kC64};
      return ResolvedDTypes{DType::kF64, DType::kC128};
    default: return ResolvedDTypes{common, common};
  }
}

}  // namespace

absl::StatusOr<ResolvedDTypes> ResolveDTypes(const ResolveInput& input) {
  // Both kinds may be factors of one product, as gradients and weights are.
  if (input.row.family == OpFamily::kContraction && IsFloat8(input.tensors[0]->dtype) &&
      IsFloat8(input.tensors[1]->dtype)) {
    return ResolvedDTypes{DType::kF32, DType::kF32};
  }
  TESSERA_ASSIGN_OR_RETURN(const ResolvedDTypes dtypes, DTypesByRule(input));
  TESSERA_RETURN_IF_ERROR(CheckComplex(input, dtypes));
  return dtypes;
}

absl::Status NeedsRealDType(const ResolveInput& input) {
  return OperandDTypeError(input, "needs a real dtype, complex numbers have no order");
}

absl::Status CheckMayCast(const ResolveInput& input, DType from, DType to) {
  if (MayCast(from, to)) return absl::OkStatus();
  return OperandDTypeError(
      input, StrCat("dtype ", ToText(from), " can't become ", ToText(to), "; take real(x), imag(x) or abs(x) of it"));
}

bool Fits(const Scalar& scalar, DType dtype) {
  if (!MayCast(scalar.dtype(), dtype)) return false;
  if (scalar.dtype() == DType::kU64 && scalar.AsInt() < 0 && Kind(dtype) == DTypeKind::kSigned) return false;
  if (!IsInteger(dtype) || scalar.dtype() != DType::kI64 || scalar.strength() == ScalarStrength::kStrong) return true;
  if (dtype == DType::kU64) return scalar.AsInt() >= 0;
  return scalar.As(dtype).AsInt() == scalar.AsInt();
}

Scalar AsCompared(const Scalar& number, DType dtype) {
  if (IsComplex(number.dtype())) return number;
  const bool above_signed = number.dtype() == DType::kU64 && number.AsInt() < 0 && Kind(dtype) == DTypeKind::kSigned;
  if (Fits(number, dtype) && !above_signed) return number;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return Scalar::Float(above_signed || number.AsInt() > 0 ? kInfinity : -kInfinity);
}

bool IsWidening(DType from, DType to) {
  if (from == to || from == DType::kBool) return true;
  if (IsComplex(from)) return IsComplex(to) && SizeBits(to) > SizeBits(from);
  if (IsComplex(to)) return IsWidening(from, RealOf(to));
  if (!IsInteger(from)) return Kind(to) == DTypeKind::kFloat && SizeBits(to) > SizeBits(from);
  if (Kind(to) == Kind(from)) return SizeBits(to) > SizeBits(from);
  if (Kind(to) == DTypeKind::kSigned) return SizeBits(to) > SizeBits(from);
  // Floats have all integers of some bits, and f64 stands for all.
  return to == DType::kF64 || (Kind(to) == DTypeKind::kFloat && SizeBits(to) > SizeBits(from));
}

bool MayConvertTerms(const TensorSpec& pending, DType to) {
  if (pending.dtype == to) return true;
  const ReduceOp op = pending.partial_op();
  const bool is_extreme = op == ReduceOp::kMin || op == ReduceOp::kMax;
  if (is_extreme) return IsWidening(pending.dtype, to) && !IsComplex(to);  // which have no order
  return IsWidening(pending.dtype, to) && (IsFloat(pending.dtype) || IsComplex(pending.dtype));
}

Expression MakeCastExpression(DType from, DType to) {
  Expression expression;
  expression.nodes.push_back({ScalarOp::kInput, from, 0, 0, 0});
  if (from != to) expression.nodes.push_back({ScalarOp::kCast, to, 0, 0, 0});
  return expression;
}

Expression MakeElementwiseExpression(const ResolveInput& input, const ResolvedDTypes& dtypes) {
  Expression expression;
  std::vector<ExpressionNode>& nodes = expression.nodes;
  nodes.reserve(2 * input.operands.size() + 1);
  std::array<int32_t, 3> references = {0, 0, 0};
  int32_t inputs = 0;
  int32_t arguments = 0;
  const auto last = [&] { return static_cast<int32_t>(nodes.size()) - 1; };
  for (size_t i = 0; i < input.operands.size(); ++i) {
    const bool is_condition = input.row.dtype_rule == DTypeRule::kWhere && i == 0;
    const DType wanted = is_condition ? DType::kBool : dtypes.compute;
    if (const auto* spec = std::get_if<TensorSpec>(&input.operands[i])) {
      nodes.push_back({ScalarOp::kInput, spec->dtype, inputs++, 0, 0});
      if (spec->dtype != wanted) nodes.push_back({ScalarOp::kCast, wanted, last(), 0, 0});
    } else {
      nodes.push_back({ScalarOp::kArgument, wanted, arguments++, 0, 0});
    }
    references[i] = last();
  }
  // astype is its operand's conversion, which is there already.
  if (*input.row.scalar_op != ScalarOp::kCast) {
    nodes.push_back({*input.row.scalar_op, dtypes.result, references[0], references[1], references[2]});
  }
  return expression;
}

}  // namespace tessera
