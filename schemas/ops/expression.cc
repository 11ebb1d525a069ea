#include "schemas/ops/expression.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "schemas/ops/complex_meaning.h"
#include "schemas/ops/philox.h"
#include "schemas/ops/scalar.h"
#include "schemas/ops/scalar_meaning.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/errors.h"
#include "schemas/types/shape.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// Requirements on the operands and the value of a node.
enum class OpClass : uint8_t {
  kLeaf,
  kCast,
  kNumeric,           // numbers
  kOrdered,           // numbers, but complex ones
  kFloating,          // floats or complex numbers
  kRealFloating,      // floats
  kInteger,           // integers
  kBits,              // bools or integers
  kEquality,          // anything, to a bool
  kComparison,        // anything but complex numbers, to a bool
  kPredicate,         // a number, to a bool
  kOrderedPredicate,  // a number but a complex one, to a bool
  kWhere,
  kRandom,  // three i64, to a float, u32 or u64
  kPart,    // a number, to one of its parts' dtype
  kParts,   // two floats, to a complex number of them
};

struct ScalarOpRow {
  int number;
  std::string_view name;
  int arity;
  OpClass op_class;
  int max_ulps;
};
// That of the vectors of libmvec (https://sourceware.org/glibc/wiki/libmvec).
constexpr int kVectorUlps = 4;

constexpr ScalarOpRow kRows[] = {
#define TESSERA_SCALAR_OP(number, enumerator, name, arity, op_class, ulps, function) \
  {number, name, arity, OpClass::op_class, ulps},
#include "schemas/ops/scalar_ops.inc"
};

// Row finds a row by its number.
constexpr bool AreNumbersDense() {
  for (int i = 0; i < kScalarOpCount; ++i) {
    if (kRows[i].number != i) return false;
  }
  return true;
}
static_assert(AreNumbersDense(), "scalar_ops.inc: the rows' numbers are 0, 1, 2, ... in this order");

const ScalarOpRow& Row(ScalarOp op) { return kRows[static_cast<size_t>(op)]; }

bool DTypesAgree(const ExpressionNode& node, absl::Span<const DType> operands) {
  if (node.op == ScalarOp::kWhere) {
    return operands[0] == DType::kBool && operands[1] == operands[2] && operands[1] == node.dtype;
  }
  for (const DType operand : operands) {
    if (operand != operands[0]) return false;
  }
  return IsDefinedFor(node.op, operands[0], node.dtype);
}

absl::Status ValidateLeaf(const ExpressionNode& node, size_t index, int inputs, int arguments) {
  if (node.op == ScalarOp::kIndex && node.dtype != DType::kI64) {
    return DTypeError(StrCat("expression: node ", index, " is an index of ", ToText(node.dtype), ", not of i64"));
  }
  const int limit = node.op == ScalarOp::kInput ? inputs : node.op == ScalarOp::kIndex ? kMaxRank : arguments;
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
bool IsComplex(DType dtype) { return Kind(dtype) == DTypeKind::kComplex; }

ScalarValue ComplexValue(DType dtype, std::complex<double> value) {
  return ToScalarValue(Scalar::Complex(value).As(dtype));
}

ScalarValue FloatValue(DType dtype, double value) { return {dtype, Scalar::Float(value).As(dtype).AsDouble(), 0}; }

ScalarValue IntegerValue(DType dtype, int64_t value) { return {dtype, 0, Scalar::Int(value).As(dtype).AsInt()}; }

ScalarValue Cast(DType dtype, const ScalarValue& v) { return ToScalarValue(ToScalar(v).As(dtype)); }

// Calls visit with the C++ type in which numbers of the dtype are computed, which is float for those of 16 bits.
template <typename Visit>
auto VisitNumber(DType dtype, Visit&& visit) {
  switch (dtype) {
    case DType::kI8: return visit(int8_t{});
    case DType::kI16: return visit(int16_t{});
    case DType::kI32: return visit(int32_t{});
    case DType::kI64: return visit(int64_t{});
    case DType::kU8: return visit(uint8_t{});
    case DType::kU16: return visit(uint16_t{});
    case DType::kU32: return visit(uint32_t{});
    case DType::kU64: return visit(uint64_t{});
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32: return visit(float{});
    default: return visit(double{});
  }
}

template <typename T>
T Get(const ScalarValue& value) {
  if constexpr (std::is_floating_point_v<T>) return static_cast<T>(value.f);
  if constexpr (!std::is_floating_point_v<T>) return static_cast<T>(value.i);
}

template <typename T>
ScalarValue Put(DType dtype, T value) {
  if constexpr (std::is_floating_point_v<T>) return FloatValue(dtype, static_cast<double>(value));
  if constexpr (!std::is_floating_point_v<T>) return IntegerValue(dtype, static_cast<int64_t>(value));
}

ScalarValue Bool(bool value) { return {DType::kBool, 0, value ? 1 : 0}; }

// The next number is one of the dtype's own.
double NextAfterOf(DType dtype, double a, double b) {
  switch (dtype) {
    case DType::kF16: return static_cast<double>(scalar::NextAfter(F16(a), F16(b)));
    case DType::kBF16: return static_cast<double>(scalar::NextAfter(BF16(a), BF16(b)));
    case DType::kF32: return static_cast<double>(scalar::NextAfter(static_cast<float>(a), static_cast<float>(b)));
    default: return scalar::NextAfter(a, b);
  }
}

// Calls visit with the C++ type of complex numbers of the dtype.
template <typename Visit>
auto VisitComplex(DType dtype, Visit&& visit) {
  return dtype == DType::kC64 ? visit(std::complex<float>{}) : visit(std::complex<double>{});
}

template <typename C>
C GetComplex(const ScalarValue& value) {
  return C(std::complex<double>(value.f, value.imaginary));
}

// An op's result for complex numbers: one, or one of its parts.
ScalarValue ComplexFunction(ScalarOp op, DType dtype, const ScalarValue& a, const ScalarValue& b) {
  return VisitComplex(a.dtype, [&]<typename C>(C) {
    ScalarValue result;
    const auto unary = [&](auto f) {
      result = ComplexValue(dtype, std::complex<double>(f(GetComplex<C>(a))));
      return true;
    };
    const auto part = [&](auto f) {
      result = FloatValue(dtype, static_cast<double>(f(GetComplex<C>(a))));
      return true;
    };
    const auto binary = [&](auto f) {
      result = ComplexValue(dtype, std::complex<double>(f(GetComplex<C>(a), GetComplex<C>(b))));
      return true;
    };
    const bool is_found = Arity(op) == 2     ? scalar::VisitComplexBinary<C>(op, binary)
                          : IsComplex(dtype) ? scalar::VisitComplexUnary<C>(op, unary)
                                             : scalar::VisitComplexPart<C>(op, part);
    TESSERA_CHECK(is_found && "the op has no meaning for the dtype");
    return result;
  });
}

// `function` of the numbers to a number of their dtype.
ScalarValue Function(ScalarOp op, DType dtype, const ScalarValue& a, const ScalarValue& b) {
  if (IsComplex(a.dtype)) return ComplexFunction(op, dtype, a, b);
  if (op == ScalarOp::kComplex) return ComplexValue(dtype, {a.f, b.f});
  if (op == ScalarOp::kNextAfter) return FloatValue(dtype, NextAfterOf(dtype, a.f, b.f));
  return VisitNumber(dtype, [&]<typename T>(T) {
    ScalarValue result;
    const auto unary = [&](auto f) {
      result = Put(dtype, f(Get<T>(a)));
      return true;
    };
    const auto binary = [&](auto f) {
      result = Put(dtype, f(Get<T>(a), Get<T>(b)));
      return true;
    };
    bool is_found = false;
    if (Arity(op) == 2) {
      is_found = scalar::VisitBinary<T>(op, binary) || scalar::VisitLibraryBinary<T>(op, binary);
    } else {
      is_found = scalar::VisitUnary<T>(op, unary);
      if constexpr (std::is_floating_point_v<T>) is_found = is_found || scalar::VisitLibrary<T>(op, unary);
    }
    TESSERA_CHECK(is_found && "the op has no meaning for the dtype");
    return result;
  });
}

ScalarValue ComplexTest(ScalarOp op, const ScalarValue& a, const ScalarValue& b) {
  return VisitComplex(a.dtype, [&]<typename C>(C) {
    bool result = false;
    const bool is_found = Arity(op) == 1 ? scalar::VisitComplexPredicate<C>(op,
                                                                            [&](auto f) {
                                                                              result = f(GetComplex<C>(a));
                                                                              return true;
                                                                            })
                                         : scalar::VisitComplexComparison<C>(op, [&](auto f) {
                                             result = f(GetComplex<C>(a), GetComplex<C>(b));
                                             return true;
                                           });
    TESSERA_CHECK(is_found && "the op has no meaning for the dtype");
    return Bool(result);
  });
}

ScalarValue Test(ScalarOp op, const ScalarValue& a, const ScalarValue& b) {
  if (IsComplex(a.dtype)) return ComplexTest(op, a, b);
  return VisitNumber(a.dtype == DType::kBool ? DType::kU8 : a.dtype, [&]<typename T>(T) {
    bool result = false;
    const bool is_found = Arity(op) == 1 ? scalar::VisitPredicate<T>(op,
                                                                     [&](auto f) {
                                                                       result = f(Get<T>(a));
                                                                       return true;
                                                                     })
                                         : scalar::VisitComparison<T>(op, [&](auto f) {
                                             result = f(Get<T>(a), Get<T>(b));
                                             return true;
                                           });
    TESSERA_CHECK(is_found && "the op has no meaning for the dtype");
    return Bool(result);
  });
}

// By the bits of the dtype's fraction; integers have them all.
ScalarValue Random(DType dtype, const ScalarValue& number, const ScalarValue& seed, const ScalarValue& stream) {
  const auto drawn = [&](auto bits) {
    return bits(static_cast<uint64_t>(seed.i), static_cast<uint64_t>(stream.i), static_cast<uint64_t>(number.i));
  };
  switch (dtype) {
    case DType::kU32: return IntegerValue(dtype, drawn(RandomBits32));
    case DType::kU64: return IntegerValue(dtype, static_cast<int64_t>(drawn(RandomBits64)));
    case DType::kF16: return FloatValue(dtype, static_cast<double>(ToUniformF16(drawn(RandomBits32))));
    case DType::kBF16: return FloatValue(dtype, static_cast<double>(ToUniformBF16(drawn(RandomBits32))));
    case DType::kF32: return FloatValue(dtype, static_cast<double>(ToUniformF32(drawn(RandomBits32))));
    default: return FloatValue(dtype, ToUniformF64(drawn(RandomBits64)));
  }
}

ScalarValue Bits(ScalarOp op, DType dtype, const ScalarValue& a, const ScalarValue& b) {
  if (dtype != DType::kBool) return Function(op, dtype, a, b);
  if (op == ScalarOp::kNot) return Bool(a.i == 0);
  return Bool(Function(op, DType::kU8, a, b).i != 0);
}

}  // namespace

std::string_view ToText(ScalarOp op) { return Row(op).name; }
int Arity(ScalarOp op) { return Row(op).arity; }
int MaxUlps(ScalarOp op) { return Row(op).max_ulps; }

ScalarValue ToScalarValue(const Scalar& scalar) {
  ScalarValue value{.dtype = scalar.dtype()};
  if (IsFloat(scalar.dtype()) || IsComplex(scalar.dtype())) {
    value.f = scalar.AsComplex().real();
    value.imaginary = scalar.AsComplex().imag();
  } else {
    value.i = scalar.AsInt();
  }
  return value;
}

Scalar ToScalar(const ScalarValue& value) {
  if (IsComplex(value.dtype)) return Scalar::Complex({value.f, value.imaginary}).As(value.dtype);
  if (IsFloat(value.dtype)) return Scalar::Float(value.f).As(value.dtype);
  return Scalar::FromBits(value.dtype, ScalarStrength::kStrong, static_cast<uint64_t>(value.i));
}

bool IsDefinedFor(ScalarOp op, DType operand, DType value) {
  const bool is_bool = operand == DType::kBool;
  const bool is_complex = IsComplex(operand);
  const bool is_float = IsFloat(operand);
  const bool is_same = operand == value;
  if (IsFloat8(operand) || IsFloat8(value)) return op == ScalarOp::kCast && MayCast(operand, value);
  switch (Row(op).op_class) {
    case OpClass::kLeaf: return true;
    case OpClass::kCast: return MayCast(operand, value);
    case OpClass::kNumeric: return is_same && !is_bool;
    case OpClass::kOrdered: return is_same && !is_bool && !is_complex;
    case OpClass::kFloating: return is_same && (is_float || is_complex);
    case OpClass::kRealFloating: return is_same && is_float;
    case OpClass::kInteger: return is_same && !is_float && !is_bool && !is_complex;
    case OpClass::kBits: return is_same && !is_float && !is_complex;
    case OpClass::kEquality: return value == DType::kBool;
    case OpClass::kComparison: return value == DType::kBool && !is_complex;
    case OpClass::kPredicate: return value == DType::kBool && !is_bool;
    case OpClass::kOrderedPredicate: return value == DType::kBool && !is_bool && !is_complex;
    case OpClass::kWhere: return is_same;
    case OpClass::kPart: return value == RealOf(operand) && !is_bool;
    case OpClass::kParts: return IsComplex(value) && operand == RealOf(value);
    case OpClass::kRandom:
      return operand == DType::kI64 &&
             (Kind(value) == DTypeKind::kFloat || value == DType::kU32 || value == DType::kU64);
  }
  return false;
}

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
    if (IsFloat8(node.dtype) && node.op != ScalarOp::kInput && node.op != ScalarOp::kCast) {
      return DTypeError(StrCat("expression: node ", i, ", ", ToText(node.op), ", gives no ", ToText(node.dtype)));
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
    case OpClass::kEquality:
    case OpClass::kComparison:
    case OpClass::kPredicate:
    case OpClass::kOrderedPredicate: return Test(op, a, b);
    case OpClass::kBits: return Bits(op, dtype, a, b);
    case OpClass::kRandom: return Random(dtype, a, b, c);
    case OpClass::kNumeric:
    case OpClass::kOrdered:
    case OpClass::kFloating:
    case OpClass::kRealFloating:
    case OpClass::kInteger:
    case OpClass::kPart:
    case OpClass::kParts: break;
  }
  return Function(op, dtype, a, b);
}

ScalarValue EvaluateExpression(const Expression& expression, const std::vector<ScalarValue>& inputs,
                               const std::vector<ScalarValue>& arguments, absl::Span<const int64_t> index) {
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
    } else if (node.op == ScalarOp::kIndex) {
      values[i] = {DType::kI64, 0, index[static_cast<size_t>(node.a)]};
    } else {
      const int arity = Arity(node.op);
      values[i] = EvaluateScalarOp(node.op, node.dtype, operand(node.a, 0, arity), operand(node.b, 1, arity),
                                   operand(node.c, 2, arity));
    }
  }
  return values[expression.nodes.size() - 1];
}

bool Uses(const Expression& expression, ScalarOp op) {
  return std::any_of(expression.nodes.begin(), expression.nodes.end(),
                     [op](const ExpressionNode& node) { return node.op == op; });
}

}  // namespace tessera
