#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "schemas/ops/expression.h"
#include "schemas/ops/scalar_ops.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/text.h"

namespace tessera {
namespace {

class Printer {
 public:
  explicit Printer(const Expression& expression) : nodes_(expression.nodes), uses_(nodes_.size(), 0) {
    for (const ExpressionNode& node : nodes_) {
      const std::array<int32_t, 3> references = {node.a, node.b, node.c};
      for (int i = 0; i < Arity(node.op); ++i) ++uses_[static_cast<size_t>(references[static_cast<size_t>(i)])];
    }
  }

  std::string Print() {
    PrintNode(static_cast<int32_t>(nodes_.size()) - 1);
    return std::move(text_);
  }

 private:
  void PrintNode(int32_t index) {
    const ExpressionNode& node = nodes_[static_cast<size_t>(index)];
    const int arity = Arity(node.op);
    if (arity == 0) {
      StrAppend(&text_, ToText(node.op), node.a, ":", ToText(node.dtype));
      return;
    }
    int& uses = uses_[static_cast<size_t>(index)];
    if (uses < 0) {
      StrAppend(&text_, "n", index);
      return;
    }
    if (uses > 1) StrAppend(&text_, "n", index, "=");
    uses = -1;
    StrAppend(&text_, ToText(node.op), ":", ToText(node.dtype), "(");
    const std::array<int32_t, 3> references = {node.a, node.b, node.c};
    for (int i = 0; i < arity; ++i) {
      if (i > 0) text_ += ", ";
      PrintNode(references[static_cast<size_t>(i)]);
    }
    text_ += ")";
  }

  const std::vector<ExpressionNode>& nodes_;
  std::vector<int> uses_;  // -1 once it is printed
  std::string text_;
};

// The number behind a one-letter or longer prefix, if the name has that form: "in3" is 3.
std::optional<int32_t> NumberAfter(std::string_view prefix, std::string_view name) {
  if (name.substr(0, prefix.size()) != prefix || name.size() == prefix.size()) return std::nullopt;
  int32_t number = 0;
  const char* const end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + prefix.size(), end, number);
  if (parsed.ptr != end || parsed.ec != std::errc() || number < 0) return std::nullopt;
  return number;
}

std::optional<ScalarOp> FindInnerOp(std::string_view name) {
  for (int i = 0; i < kScalarOpCount; ++i) {
    const ScalarOp op = static_cast<ScalarOp>(i);
    if (Arity(op) > 0 && ToText(op) == name) return op;
  }
  return std::nullopt;
}

class Reader {
 public:
  explicit Reader(Scanner& scanner) : scanner_(scanner) {}

  absl::StatusOr<Expression> Read() {
    TESSERA_RETURN_IF_ERROR(ReadNode(0).status());
    TESSERA_RETURN_IF_ERROR(ValidateExpression(expression_, inputs_, arguments_));
    return std::move(expression_);
  }

 private:
  absl::StatusOr<int32_t> ReadNode(int depth) {
    if (depth >= kMaxExpressionNodes) return scanner_.Error("a less deep expression");
    TESSERA_ASSIGN_OR_RETURN(std::string_view name, scanner_.TakeIdentifier());
    std::optional<int32_t> label = NumberAfter("n", name);
    if (label.has_value()) {
      if (!scanner_.TryTake("=")) return FindLabel(*label);
      TESSERA_ASSIGN_OR_RETURN(name, scanner_.TakeIdentifier());
    }
    if (const std::optional<int32_t> input = NumberAfter("in", name); input.has_value()) {
      if (*input >= kMaxExpressionInputs) return scanner_.Error("an input's number within max_expression_inputs");
      inputs_ = std::max(inputs_, *input + 1);
      return ReadLeaf(ScalarOp::kInput, *input);
    }
    if (const std::optional<int32_t> dim = NumberAfter("idx", name); dim.has_value()) {
      return ReadLeaf(ScalarOp::kIndex, *dim);
    }
    if (const std::optional<int32_t> argument = NumberAfter("arg", name); argument.has_value()) {
      if (*argument >= kMaxExpressionNodes) return scanner_.Error("a scalar's number within max_expression_nodes");
      arguments_ = std::max(arguments_, *argument + 1);
      return ReadLeaf(ScalarOp::kArgument, *argument);
    }
    TESSERA_ASSIGN_OR_RETURN(const int32_t index, ReadInner(name, depth));
    if (label.has_value()) labels_.emplace_back(*label, index);
    return index;
  }

  absl::StatusOr<DType> ReadDType() {
    TESSERA_RETURN_IF_ERROR(scanner_.Take(":"));
    TESSERA_ASSIGN_OR_RETURN(const std::string_view name, scanner_.TakeIdentifier());
    return ParseDType(name);
  }

  absl::StatusOr<int32_t> ReadLeaf(ScalarOp op, int32_t number) {
    TESSERA_ASSIGN_OR_RETURN(const DType dtype, ReadDType());
    const ExpressionNode leaf{op, dtype, number, 0, 0};
    const auto found = std::find(expression_.nodes.begin(), expression_.nodes.end(), leaf);
    if (found != expression_.nodes.end()) return static_cast<int32_t>(found - expression_.nodes.begin());
    return Append(leaf);
  }

  absl::StatusOr<int32_t> ReadInner(std::string_view name, int depth) {
    const std::optional<ScalarOp> op = FindInnerOp(name);
    if (!op.has_value()) return scanner_.Error("an op of an expression before here");
    TESSERA_ASSIGN_OR_RETURN(const DType dtype, ReadDType());
    TESSERA_RETURN_IF_ERROR(scanner_.Take("("));
    std::array<int32_t, 3> references = {0, 0, 0};
    for (int i = 0; i < Arity(*op); ++i) {
      if (i > 0) TESSERA_RETURN_IF_ERROR(scanner_.Take(","));
      TESSERA_ASSIGN_OR_RETURN(references[static_cast<size_t>(i)], ReadNode(depth + 1));
    }
    TESSERA_RETURN_IF_ERROR(scanner_.Take(")"));
    return Append({*op, dtype, references[0], references[1], references[2]});
  }

  absl::StatusOr<int32_t> Append(const ExpressionNode& node) {
    if (expression_.nodes.size() >= static_cast<size_t>(kMaxExpressionNodes)) {
      return scanner_.Error("fewer nodes (max_expression_nodes)");
    }
    expression_.nodes.push_back(node);
    return static_cast<int32_t>(expression_.nodes.size()) - 1;
  }

  absl::StatusOr<int32_t> FindLabel(int32_t label) {
    for (const auto& [known, index] : labels_) {
      if (known == label) return index;
    }
    return scanner_.Error("a node that was named before");
  }

  Scanner& scanner_;
  Expression expression_;
  std::vector<std::pair<int32_t, int32_t>> labels_;
  int inputs_ = 0;
  int arguments_ = 0;
};

}  // namespace

std::string ToText(const Expression& expression) { return Printer(expression).Print(); }

absl::StatusOr<Expression> ParseExpression(Scanner& scanner) { return Reader(scanner).Read(); }

absl::StatusOr<Expression> ParseExpression(std::string_view text) {
  Scanner scanner(text);
  TESSERA_ASSIGN_OR_RETURN(Expression expression, ParseExpression(scanner));
  TESSERA_RETURN_IF_ERROR(scanner.ExpectEnd());
  return expression;
}

}  // namespace tessera
