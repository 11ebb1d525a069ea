#include "server/planner/fusion.h"

#include "schemas/ops/scalar_ops.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace tessera {
namespace {

// A map of inputs that lie where the result does, without pending terms that count once.
bool IsPlainMap(const FusedNode& node) {
  const OpResolution& resolution = node.resolution;
  if (node.family != OpFamily::kElementwise || resolution.filled_scalar.has_value()) return false;
  return std::all_of(resolution.operands.begin(), resolution.operands.end(),
                     [](const ResolvedOperand& operand) { return operand.counted_once.empty(); });
}

// A reduction of what lies where it is reduced.
bool IsPlainReduction(const FusedNode& node) {
  return node.family == OpFamily::kReduction && node.inputs.size() == 1 && node.resolution.operands.size() == 1 &&
         node.resolution.operands[0].counted_once.empty() && node.resolution.scalars.empty();
}

// The expression that is computed of each element before it is stored, or reduced.
Expression ExpressionOf(const FusedNode& node) {
  if (const auto* map = std::get_if<MapOp>(&*node.resolution.local)) return map->expression;
  const auto& reduction = std::get<ReduceLocalOp>(*node.resolution.local);
  if (reduction.map.has_value()) return *reduction.map;
  return Expression{{{ScalarOp::kInput, node.resolution.operands[0].spec.dtype, 0, 0, 0}}};
}

// A map that costs no more to compute again than its result costs to be read: plain arithmetic on one input of its
// result's size. (x - mean of the rows: read by a variance, and by what divides by it.)
bool IsAsCheapAsRead(const FusedNode& map) {
  constexpr size_t kMostNodes = 6;
  const Expression& expression = std::get<MapOp>(*map.resolution.local).expression;
  const bool is_plain = std::all_of(expression.nodes.begin(), expression.nodes.end(), [](const ExpressionNode& node) {
    switch (node.op) {
      case ScalarOp::kInput:
      case ScalarOp::kArgument:
      case ScalarOp::kCast:
      case ScalarOp::kAdd:
      case ScalarOp::kSub:
      case ScalarOp::kMul:
      case ScalarOp::kNeg: return true;
      default: return false;
    }
  });
  const auto bytes_of = [](const TensorSpec& spec) { return NumElements(spec.shape) * SizeBytes(spec.dtype); };
  int64_t read = 0;
  for (const ResolvedOperand& operand : map.resolution.operands) read += bytes_of(operand.spec);
  const int64_t result = bytes_of(map.resolution.outputs[0]);
  return is_plain && expression.nodes.size() <= kMostNodes && read <= result + result / 4;
}

class Fuser {
 public:
  explicit Fuser(const Graph& graph) : graph_(graph), uses_(graph.specs.size(), 0), made_by_(graph.specs.size(), -1) {}

  std::vector<FusedNode> Run() {
    for (const GraphNode& node : graph_.nodes) {
      FusedNode& made = nodes_.emplace_back();
      made.call = node.call;
      made.family = node.row->family;
      made.resolution = node.resolution;
      made.first_result = node.first_result;
      const size_t scalars = node.resolution.scalars.size() + node.resolution.epilogue_scalars.size();
      for (size_t s = 0; s < scalars; ++s) made.origins.push_back({nodes_.size() - 1, s});
      for (const GraphOperand& operand : node.operands) {
        if (const int* value = std::get_if<int>(&operand)) made.inputs.push_back(*value);
      }
    }
    for (size_t n = 0; n < nodes_.size(); ++n) {
      for (const int value : nodes_[n].inputs) ++uses_[static_cast<size_t>(value)];
      made_by_[static_cast<size_t>(nodes_[n].first_result)] = static_cast<int>(n);
    }
    for (const int output : graph_.outputs) ++uses_[static_cast<size_t>(output)];
    for (FusedNode& node : nodes_) TakeInMaps(node);
    std::vector<FusedNode> kept;
    for (FusedNode& node : nodes_) {
      if (IsUsed(node)) kept.push_back(std::move(node));
    }
    return kept;
  }

 private:
  bool IsUsed(const FusedNode& node) const {
    for (size_t i = 0; i < node.resolution.outputs.size(); ++i) {
      if (uses_[static_cast<size_t>(node.first_result) + i] > 0) return true;
    }
    return false;
  }

  void TakeInMaps(FusedNode& node) {
    if (!IsPlainMap(node) && !IsPlainReduction(node)) return;
    if (IsPlainMap(node)) MergeEqualInputs(node);
    for (size_t i = 0; i < node.inputs.size();) {
      const std::optional<size_t> before = MapBefore(node, i);
      if (before.has_value() && TakeIn(node, i, nodes_[*before])) {
        i = 0;  // its inputs may be maps that others use alone
      } else {
        ++i;
      }
    }
  }

  // A value that the node takes twice, as t * t does, becomes one input.
  void MergeEqualInputs(FusedNode& node) {
    Joined joined;
    std::vector<int32_t> numbers;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      numbers.push_back(joined.Add(node.inputs[k], node.resolution.operands[k]));
    }
    if (joined.inputs.size() == node.inputs.size()) return;
    Expression result;
    Append(ExpressionOf(node), numbers, 0, result);
    for (const int value : node.inputs) --uses_[static_cast<size_t>(value)];
    for (const int value : joined.inputs) ++uses_[static_cast<size_t>(value)];
    node.inputs = std::move(joined.inputs);
    node.resolution.operands.assign(joined.operands.begin(), joined.operands.end());
    node.resolution.local = MapOp{std::move(result)};
  }

  // Whether an input is brought to where the node wants it: each that computes the node would bring it by itself.
  bool Moves(const FusedNode& node) const {
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (graph_.specs[static_cast<size_t>(node.inputs[k])] != node.resolution.operands[k].spec) return true;
    }
    return false;
  }

  // The map whose result is input `i` of the node, and is taken as it lies, element by element: by the node alone, or
  // by others who can as well compute it again.
  std::optional<size_t> MapBefore(const FusedNode& node, size_t i) const {
    const int value = node.inputs[i];
    const int made_by = made_by_[static_cast<size_t>(value)];
    if (made_by < 0) return std::nullopt;
    const FusedNode& before = nodes_[static_cast<size_t>(made_by)];
    if (!IsPlainMap(before)) return std::nullopt;
    if (uses_[static_cast<size_t>(value)] != 1 && (!IsAsCheapAsRead(before) || Moves(before))) return std::nullopt;
    // As many elements as the map has that takes them in; for a reduction, as many as it reduces.
    const TensorSpec& output = node.mapped.has_value() ? *node.mapped : node.resolution.outputs[0];
    const TensorSpec& between = before.resolution.outputs[0];
    const bool is_reduced = node.family == OpFamily::kReduction && !node.mapped.has_value();
    const bool stays = node.resolution.operands[i].spec == between && between.mesh == output.mesh &&
                       (is_reduced || between.shape == output.shape) && !between.has_partial();
    const bool reads_index = node.family == OpFamily::kReduction &&
                             Uses(std::get<MapOp>(*before.resolution.local).expression, ScalarOp::kIndex);
    if (reads_index) return std::nullopt;
    return stays ? std::optional<size_t>(static_cast<size_t>(made_by)) : std::nullopt;
  }

  // The node's expression with that of `before` in place of input `i`.
  bool TakeIn(FusedNode& node, size_t i, const FusedNode& before) {
    const Expression outer = ExpressionOf(node);
    const Expression& inner = std::get<MapOp>(*before.resolution.local).expression;
    const size_t inputs = node.inputs.size() + before.inputs.size() - 1;
    if (outer.nodes.size() + inner.nodes.size() > static_cast<size_t>(kMaxExpressionNodes) ||
        inputs > static_cast<size_t>(kMaxExpressionInputs)) {
      return false;
    }
    Joined joined = {.inputs = node.inputs,
                     .operands = {node.resolution.operands.begin(), node.resolution.operands.end()}};
    joined.inputs.erase(joined.inputs.begin() + static_cast<ptrdiff_t>(i));
    joined.operands.erase(joined.operands.begin() + static_cast<ptrdiff_t>(i));
    std::vector<int32_t> inner_inputs;
    for (size_t k = 0; k < before.inputs.size(); ++k) {
      inner_inputs.push_back(joined.Add(before.inputs[k], before.resolution.operands[k]));
    }
    const auto outer_arguments = static_cast<int32_t>(node.resolution.scalars.size());
    Expression result;
    std::vector<int32_t> at;  // by node of `outer`
    for (const ExpressionNode& outer_node : outer.nodes) {
      ExpressionNode copy = outer_node;
      if (copy.op == ScalarOp::kInput && copy.a == static_cast<int32_t>(i)) {
        at.push_back(Append(inner, inner_inputs, outer_arguments, result));
        continue;
      }
      if (copy.op == ScalarOp::kInput) {
        copy.a -= copy.a > static_cast<int32_t>(i) ? 1 : 0;
      } else if (copy.op != ScalarOp::kArgument) {
        const int arity = copy.op == ScalarOp::kCast ? 1 : Arity(copy.op);
        if (arity > 0) copy.a = at[static_cast<size_t>(copy.a)];
        if (arity > 1) copy.b = at[static_cast<size_t>(copy.b)];
        if (arity > 2) copy.c = at[static_cast<size_t>(copy.c)];
      }
      at.push_back(AddNode(result, copy));
    }
    const auto made = static_cast<size_t>(node.inputs[i]);
    for (const int value : node.inputs) --uses_[static_cast<size_t>(value)];
    if (uses_[made] == 0) {  // nobody takes the result of `before` any more
      for (const int value : before.inputs) --uses_[static_cast<size_t>(value)];
    }
    for (const int value : joined.inputs) ++uses_[static_cast<size_t>(value)];
    node.inputs = std::move(joined.inputs);
    node.resolution.flops += before.resolution.flops;
    node.resolution.operands.assign(joined.operands.begin(), joined.operands.end());
    if (auto* reduction = std::get_if<ReduceLocalOp>(&*node.resolution.local)) {
      reduction->map = std::move(result);
      if (!node.mapped.has_value()) node.mapped = before.resolution.outputs[0];
    } else {
      node.resolution.local = MapOp{std::move(result)};
    }
    node.origins.insert(node.origins.begin() + static_cast<ptrdiff_t>(node.resolution.scalars.size()),
                        before.origins.begin(), before.origins.end());
    node.resolution.scalars.insert(node.resolution.scalars.end(), before.resolution.scalars.begin(),
                                   before.resolution.scalars.end());
    return true;
  }

  struct Joined {
    std::vector<int> inputs;
    std::vector<ResolvedOperand> operands;
    // The number of the input; one that is there already where it is wanted as it is there.
    int32_t Add(int value, const ResolvedOperand& operand) {
      for (size_t k = 0; k < inputs.size(); ++k) {
        if (inputs[k] == value && operands[k].spec == operand.spec) return static_cast<int32_t>(k);
      }
      inputs.push_back(value);
      operands.push_back(operand);
      return static_cast<int32_t>(inputs.size()) - 1;
    }
  };

  // Leaves stand once in an expression: one that is there is taken again.
  static int32_t AddNode(Expression& expression, const ExpressionNode& node) {
    if (node.op == ScalarOp::kInput || node.op == ScalarOp::kArgument) {
      for (size_t n = 0; n < expression.nodes.size(); ++n) {
        if (expression.nodes[n] == node) return static_cast<int32_t>(n);
      }
    }
    expression.nodes.push_back(node);
    return static_cast<int32_t>(expression.nodes.size()) - 1;
  }

  // Appends `inner` with other inputs and arguments; the number of its result.
  static int32_t Append(const Expression& inner, const std::vector<int32_t>& inputs, int32_t first_argument,
                        Expression& result) {
    std::vector<int32_t> at;
    for (const ExpressionNode& node : inner.nodes) {
      ExpressionNode copy = node;
      if (copy.op == ScalarOp::kInput) {
        copy.a = inputs[static_cast<size_t>(copy.a)];
      } else if (copy.op == ScalarOp::kArgument) {
        copy.a += first_argument;
      } else {
        const int arity = copy.op == ScalarOp::kCast ? 1 : Arity(copy.op);
        if (arity > 0) copy.a = at[static_cast<size_t>(copy.a)];
        if (arity > 1) copy.b = at[static_cast<size_t>(copy.b)];
        if (arity > 2) copy.c = at[static_cast<size_t>(copy.c)];
      }
      at.push_back(AddNode(result, copy));
    }
    return at.back();
  }

  const Graph& graph_;
  std::vector<FusedNode> nodes_;
  std::vector<int> uses_;     // by value: nodes and outputs that take it
  std::vector<int> made_by_;  // by value: the node whose first result it is; -1: an input, or a further result
};

}  // namespace

std::vector<FusedNode> FuseMaps(const Graph& graph) { return Fuser(graph).Run(); }

}  // namespace tessera
