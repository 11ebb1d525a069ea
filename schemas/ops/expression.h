#pragma once

// Expression: a scalar function of the elements at one index. An elementwise op is one Expression;
// the kernel is map(expression, inputs), so a chain of elementwise ops can become one Expression.
//
// A list of nodes in evaluation order; the last is the result; a node refers to earlier nodes only.
// Every node has the dtype of its value, so nothing is converted in silence.
//
//   add of f32 inputs:  "add:f32(in0:f32, in1:f32)"
//   x*2 with x f32:     "mul:f32(in0:f32, arg0:f32)"        arg0 is the call's first scalar
//   i32 + f64:          "add:f64(cast:f64(in0:i32), in1:f64)"
//   tril of f32:        "where:f32(less_equal:bool(idx1:i64, idx0:i64), in0:f32, arg0:f32)"
//   (x+y)*(x+y):        "mul:f32(n2=add:f32(in0:f32, in1:f32), n2)"   a shared node is named once
//
// The text says everything of an expression in canonical order: post-order from the result, each leaf
// once, every node reached. All makers in this repository make that order.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schemas/ops/scalar.h"
#include "schemas/types/dtype.h"

namespace tessera {

class Scanner;

// The names are in scalar_ops.h, for files that name one.
enum class ScalarOp : uint8_t;
// "add", "less_equal", ...; "in", "arg" and "idx" for the leaves.
std::string_view ToText(ScalarOp op);
int Arity(ScalarOp op);  // 0 for the leaves
// Whether a node of the op may have operands of the dtype (of the branches, for where), and a value of the other; a
// comparison or predicate has a bool, abs, real and imag of a complex number one of its parts' dtype.
bool IsDefinedFor(ScalarOp op, DType operand, DType value);
// By how many units in the last place of f32 and f64 a kernel's value may differ from EvaluateScalarOp's; 0 where they
// are the same. f16 and bf16 are rounded from f32: where this is not 0, by one.
int MaxUlps(ScalarOp op);

struct ExpressionNode {
  ScalarOp op{};              // kInput
  DType dtype = DType::kF32;  // of the node's value; comparisons give kBool
  int32_t a = 0;              // kInput: input number; kArgument: scalar number; kIndex: dim; else a node's index
  int32_t b = 0;
  int32_t c = 0;
  bool operator==(const ExpressionNode&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const ExpressionNode& n) {
    return H::combine(std::move(h), n.op, n.dtype, n.a, n.b, n.c);
  }
};

inline constexpr int kMaxExpressionNodes = 256;  // docs/limits.md: max_expression_nodes
inline constexpr int kMaxExpressionInputs = 16;  // docs/limits.md: max_expression_inputs

struct Expression {
  std::vector<ExpressionNode> nodes;

  DType dtype() const { return nodes.back().dtype; }
  bool operator==(const Expression&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const Expression& e) {
    return H::combine(std::move(h), e.nodes);
  }
};

// References point backwards, dtypes of operands agree, numbers of inputs and scalars are in
// [0, inputs) and [0, arguments), sizes are within the limits. Checks an expression that came over a wire.
absl::Status ValidateExpression(const Expression& expression, int inputs, int arguments);
// The expression is valid.
std::string ToText(const Expression& expression);
// The result is valid for as many inputs and scalars as it names.
absl::StatusOr<Expression> ParseExpression(std::string_view text);
// Takes one from a longer text.
absl::StatusOr<Expression> ParseExpression(Scanner& scanner);

// The laws of the numbers, one element at a time (schemas/ops/scalar_meaning.h has the functions): NaN propagates
// through maximum and minimum; integer division by zero is 0 and INT_MIN / -1 is INT_MIN (wraps); integers wrap; a
// float out of range casts to the nearest integer, NaN to 0; complex numbers have no order and are what NumPy gives
// (schemas/ops/complex_functions.h). Values are passed as bits of the node's dtype. Interpret
// uses it; kernels must agree with it (conformance tests compare them), within MaxUlps.
struct ScalarValue {
  DType dtype = DType::kF64;
  double f = 0;          // of floats: one that the dtype has; of complex numbers the real part
  int64_t i = 0;         // of others: kBool 0 or 1, integers in the dtype's range (kU64: its bits)
  double imaginary = 0;  // of complex numbers
};
// The number as an element of its dtype, and back.
ScalarValue ToScalarValue(const Scalar& scalar);
Scalar ToScalar(const ScalarValue& value);
ScalarValue EvaluateScalarOp(ScalarOp op, DType dtype, ScalarValue a, ScalarValue b, ScalarValue c);
// `index`: of the element in the whole tensor; may be left out where the expression doesn't read it.
ScalarValue EvaluateExpression(const Expression& expression, const std::vector<ScalarValue>& inputs,
                               const std::vector<ScalarValue>& arguments, absl::Span<const int64_t> index = {});
// Whether a node is of the op.
bool Uses(const Expression& expression, ScalarOp op);

}  // namespace tessera
