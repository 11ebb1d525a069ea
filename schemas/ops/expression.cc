#include "schemas/ops/expression.h"

#include <array>
#include <cmath>

#include "schemas/ops/scalar.h"
#include "schemas/types/errors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// What the operands and the value of a node must be.
enum class OpClass : uint8_t { kLeaf, kCast, kNumeric, kFloating, kComparison, kWhere, kLogical };

struct ScalarOpRow {
  std::string_view name;
  int arity;
  OpClass op_class;
};

// By the number of the op.
constexpr std::array<ScalarOpRow, kScalarOpCount> kRows = {{
    {"in", 0, OpClass::kLeaf},
    {"arg", 0, OpClass::kLeaf},
    {"cast", 1, OpClass::kCast},
    {"neg", 1, OpClass::kNumeric},
    {"exp", 1, OpClass::kFloating},
    {"sqrt", 1, OpClass::kFloating},
    {"relu", 1, OpClass::kNumeric},
    {"not", 1, OpClass::kLogical},
    {"add", 2, OpClass::kNumeric},
    {"sub", 2, OpClass::kNumeric},
    {"mul", 2, OpClass::kNumeric},
    {"div", 2, OpClass::kNumeric},
    {"maximum", 2, OpClass::kNumeric},
    {"minimum", 2, OpClass::kNumeric},
    {"equal", 2, OpClass::kComparison},
    {"not_equal", 2, OpClass::kComparison},
    {"less", 2, OpClass::kComparison},
    {"less_equal", 2, OpClass::kComparison},
    {"greater", 2, OpClass::kComparison},
    {"greater_equal", 2, OpClass::kComparison},
    {"where", 3, OpClass::kWhere},
    {"and", 2, OpClass::kLogical},
    {"or", 2, OpClass::kLogical},
}};

const ScalarOpRow& Row(ScalarOp op) { return kRows[static_cast<size_t>(op)]; }

bool DTypesAgree(const ExpressionNode& node, absl::Span<const DType> operands) {
  const DType d = node.dtype;
  switch (Row(node.op).op_class) {
    case OpClass::kLeaf:
    case OpClass::kCast: return true;
    case OpClass::kNumeric:
    case OpClass::kFloating:
    case OpClass::kLogical:
      for (const DType operand : operands) {
        if (operand != d) return false;
      }
      if (Row(node.op).op_class == OpClass::kLogical) return d == DType::kBool;
      if (Row(node.op).op_class == OpClass::kFloating) return Kind(d) == DTypeKind::kFloat;
      return d != DType::kBool;
    case OpClass::kComparison: return d == DType::kBool && operands[0] == operands[1];
    case OpClass::kWhere: return operands[0] == DType::kBool && operands[1] == d && operands[2] == d;
  }
  return false;
}

absl::Status ValidateLeaf(const ExpressionNode& node, size_t index, int inputs, int arguments) {
  const int limit = node.op == ScalarOp::kInput ? inputs : arguments;
  if (node.a >= 0 && node.a < limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("expression: node ", index, " reads ", ToText(node.op), node.a, " of ", limit));
}

absl::Status ValidateInner(const Expression& expression, size_t index) {
  const ExpressionNode& node = expression.nodes[index];
  const std::array<int32_t, 3> references = {node.a, node.b, node.c};
  std::array<DType, 3> dtypes = {};
  const size_t arity = static_cast<size_t>(Arity(node.op));
  for (size_t i = 0; i < arity; ++i) {
    if (references[i] < 0 || static_cast<size_t>(references[i]) >= index) {
      return absl::InvalidArgumentError(
          StrCat("expression: node ", index, " refers to node ", references[i], ", which is not before it"));
    }
    dtypes[i] = expression.nodes[static_cast<size_t>(references[i])].dtype;
  }
  if (!DTypesAgree(node, absl::MakeConstSpan(dtypes.data(), arity))) {
    return DTypeError(
        StrCat("expression: dtypes of node ", index, " (", ToText(node.op), ":", ToText(node.dtype), ") don't agree"));
  }
  return absl::OkStatus();
}

// A node's number that the op doesn't use must be 0, so that equal expressions are equal values.
absl::Status ValidateUnused(const ExpressionNode& node, size_t index) {
  const int used = Row(node.op).op_class == OpClass::kLeaf ? 1 : Arity(node.op);
  if ((used < 2 && node.b != 0) || (used < 3 && node.c != 0)) {
    return absl::InvalidArgumentError(StrCat("expression: node ", index, " has a reference that it doesn't use"));
  }
  return absl::OkStatus();
}

bool IsFloat(DType dtype) { return Kind(dtype) == DTypeKind::kFloat; }
bool IsUnsigned(DType dtype) { return Kind(dtype) == DTypeKind::kUnsigned; }

ScalarValue FloatValue(DType dtype, double value) { return {dtype, Scalar::Float(value).As(dtype).AsDouble(), 0}; }

ScalarValue IntegerValue(DType dtype, int64_t value) { return {dtype, 0, Scalar::Int(value).As(dtype).AsInt()}; }

ScalarValue Cast(DType dtype, const ScalarValue& v) {
  const Scalar source = IsFloat(v.dtype)
                            ? Scalar::Float(v.f)
                            : Scalar::FromBits(v.dtype, ScalarStrength::kStrong, static_cast<uint64_t>(v.i));
  const Scalar cast = source.As(dtype);
  return IsFloat(dtype) ? ScalarValue{dtype, cast.AsDouble(), 0} : ScalarValue{dtype, 0, cast.AsInt()};
}

// The value in the precision of the dtype, so that f32 functions (and those of 16 bits) are those of float.
double FloatFunction(ScalarOp op, DType dtype, double a, double b) {
  const auto pick = [&](float (*narrow)(float), double (*wide)(double)) {
    return dtype == DType::kF64 ? wide(a) : static_cast<double>(narrow(static_cast<float>(a)));
  };
  switch (op) {
    case ScalarOp::kNeg: return -a;
    case ScalarOp::kExp: return pick(std::exp, std::exp);
    case ScalarOp::kSqrt: return pick(std::sqrt, std::sqrt);
    case ScalarOp::kRelu: return a < 0 ? 0 : a;
    case ScalarOp::kAdd: return a + b;
    case ScalarOp::kSub: return a - b;
    case ScalarOp::kMul: return a * b;
    case ScalarOp::kDiv: return a / b;
    case ScalarOp::kMaximum: return std::isnan(a) || a >= b ? a : b;
    case ScalarOp::kMinimum: return std::isnan(a) || a <= b ? a : b;
    default: break;
  }
  TESSERA_CHECK(false && "not a function of floats");
  return 0;
}

// The lowest number by -1 wraps when the value is made to fit.
int64_t IntegerDivide(DType dtype, int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (IsUnsigned(dtype)) return static_cast<int64_t>(static_cast<uint64_t>(a) / static_cast<uint64_t>(b));
  if (b == -1) return static_cast<int64_t>(0 - static_cast<uint64_t>(a));
  return a / b;
}

int64_t IntegerFunction(ScalarOp op, DType dtype, int64_t a, int64_t b) {
  const uint64_t ua = static_cast<uint64_t>(a);
  const uint64_t ub = static_cast<uint64_t>(b);
  const bool is_less = IsUnsigned(dtype) ? ua < ub : a < b;
  switch (op) {
    case ScalarOp::kNeg: return static_cast<int64_t>(0 - ua);
    case ScalarOp::kRelu: return a < 0 && !IsUnsigned(dtype) ? 0 : a;
    case ScalarOp::kNot: return a == 0 ? 1 : 0;
    case ScalarOp::kAdd: return static_cast<int64_t>(ua + ub);
    case ScalarOp::kSub: return static_cast<int64_t>(ua - ub);
    case ScalarOp::kMul: return static_cast<int64_t>(ua * ub);
    case ScalarOp::kDiv: return IntegerDivide(dtype, a, b);
    case ScalarOp::kMaximum: return is_less ? b : a;
    case ScalarOp::kMinimum: return is_less ? a : b;
    case ScalarOp::kAnd: return a & b;
    case ScalarOp::kOr: return a | b;
    default: break;
  }
  TESSERA_CHECK(false && "not a function of integers");
  return 0;
}

template <typename T>
bool CompareTwo(ScalarOp op, T a, T b) {
  switch (op) {
    case ScalarOp::kEqual: return a == b;
    case ScalarOp::kNotEqual: return a != b;
    case ScalarOp::kLess: return a < b;
    case ScalarOp::kLessEqual: return a <= b;
    case ScalarOp::kGreater: return a > b;
    default: return a >= b;
  }
}

bool Compare(ScalarOp op, const ScalarValue& a, const ScalarValue& b) {
  if (IsFloat(a.dtype)) return CompareTwo(op, a.f, b.f);
  if (IsUnsigned(a.dtype)) return CompareTwo(op, static_cast<uint64_t>(a.i), static_cast<uint64_t>(b.i));
  return CompareTwo(op, a.i, b.i);
}

}  // namespace

std::string_view ToText(ScalarOp op) { return Row(op).name; }
int Arity(ScalarOp op) { return Row(op).arity; }

absl::Status ValidateExpression(const Expression& expression, int inputs, int arguments) {
  const size_t count = expression.nodes.size();
  if (count == 0 || count > static_cast<size_t>(kMaxExpressionNodes)) {
    return absl::InvalidArgumentError(
        StrCat("expression: ", count, " nodes; 1 to ", kMaxExpressionNodes, " are allowed (max_expression_nodes)"));
  }
  if (inputs > kMaxExpressionInputs) {
    return absl::InvalidArgumentError(StrCat("expression: ", inputs, " inputs are over the limit of ",
                                             kMaxExpressionInputs, " (max_expression_inputs)"));
  }
  std::array<int, kMaxExpressionInputs> input_node;
  input_node.fill(-1);
  for (size_t i = 0; i < count; ++i) {
    const ExpressionNode& node = expression.nodes[i];
    if (static_cast<int>(node.op) >= kScalarOpCount || static_cast<int>(node.dtype) >= kDTypeCount) {
      return absl::InvalidArgumentError(StrCat("expression: node ", i, " has an unknown op or dtype"));
    }
    if (!IsImplemented(node.dtype)) {
      return absl::UnimplementedError(StrCat("expression: dtype ", ToText(node.dtype), " is reserved"));
    }
    TESSERA_RETURN_IF_ERROR(ValidateUnused(node, i));
    if (Row(node.op).op_class != OpClass::kLeaf) {
      TESSERA_RETURN_IF_ERROR(ValidateInner(expression, i));
      continue;
    }
    TESSERA_RETURN_IF_ERROR(ValidateLeaf(node, i, inputs, arguments));
    if (node.op != ScalarOp::kInput) continue;
    int& first = input_node[static_cast<size_t>(node.a)];
    if (first >= 0 && expression.nodes[static_cast<size_t>(first)].dtype != node.dtype) {
      return DTypeError(StrCat("expression: in", node.a, " has two dtypes"));
    }
    first = static_cast<int>(i);
  }
  return absl::OkStatus();
}

ScalarValue EvaluateScalarOp(ScalarOp op, DType dtype, ScalarValue a, ScalarValue b, ScalarValue c) {
  switch (Row(op).op_class) {
    case OpClass::kLeaf: return a;
    case OpClass::kCast: return Cast(dtype, a);
    case OpClass::kWhere: return a.i != 0 ? b : c;
    case OpClass::kComparison: return {DType::kBool, 0, Compare(op, a, b) ? 1 : 0};
    case OpClass::kNumeric:
    case OpClass::kFloating:
    case OpClass::kLogical: break;
  }
  if (IsFloat(dtype)) return FloatValue(dtype, FloatFunction(op, dtype, a.f, b.f));
  return IntegerValue(dtype, IntegerFunction(op, dtype, a.i, b.i));
}

ScalarValue EvaluateExpression(const Expression& expression, const std::vector<ScalarValue>& inputs,
                               const std::vector<ScalarValue>& arguments) {
  std::array<ScalarValue, kMaxExpressionNodes> values;
  TESSERA_CHECK(!expression.nodes.empty() && expression.nodes.size() <= values.size());
  const auto operand = [&](int32_t reference, int used_from, int arity) {
    return used_from < arity ? values[static_cast<size_t>(reference)] : ScalarValue{};
  };
  for (size_t i = 0; i < expression.nodes.size(); ++i) {
    const ExpressionNode& node = expression.nodes[i];
    if (node.op == ScalarOp::kInput) {
      values[i] = inputs[static_cast<size_t>(node.a)];
    } else if (node.op == ScalarOp::kArgument) {
      values[i] = arguments[static_cast<size_t>(node.a)];
    } else {
      const int arity = Arity(node.op);
      values[i] = EvaluateScalarOp(node.op, node.dtype, operand(node.a, 0, arity), operand(node.b, 1, arity),
                                   operand(node.c, 2, arity));
    }
  }
  return values[expression.nodes.size() - 1];
}

}  // namespace tessera
