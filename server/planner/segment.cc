#include "server/planner/segment.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string_view>
#include <utility>
#include <variant>

#include "schemas/ops/catalog.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/status_macros.h"
#include "server/planner/segment_saving.h"

namespace tessera {
namespace {

class SegmentResolver {
 public:
  explicit SegmentResolver(Saving saving) : saving_(saving) {}

  absl::StatusOr<SegmentGraph> Run(const Segment& segment) {
    Graph& graph = made_.graph;
    graph.input_count = static_cast<int>(segment.inputs.size());
    for (const OperandLayout& input : segment.inputs) {
      values_.push_back(static_cast<int>(graph.specs.size()));
      graph.specs.push_back(input.spec);
    }
    for (const SegmentCall& call : segment.calls) {
      last_results_ = values_.size();
      TESSERA_RETURN_IF_ERROR(Add(call));
      made_.first_results.push_back(last_results_ < values_.size() ? values_[last_results_] : -1);
    }
    if (segment.kept.empty()) {
      graph.outputs.assign(values_.begin() + static_cast<ptrdiff_t>(last_results_), values_.end());
    }
    for (const int kept : segment.kept) graph.outputs.push_back(values_[static_cast<size_t>(kept)]);
    return std::move(made_);
  }

 private:
  absl::Status Add(const SegmentCall& call) {
    TESSERA_ASSIGN_OR_RETURN(const OpRow* row, FindOp(call.call.op));
    std::vector<GraphOperand> operands = call.operands;
    std::vector<OperandSpec> specs;
    for (GraphOperand& operand : operands) {
      if (int* value = std::get_if<int>(&operand)) {
        *value = values_[static_cast<size_t>(*value)];
        specs.emplace_back(made_.graph.specs[static_cast<size_t>(*value)]);
      } else {
        specs.emplace_back(std::get<Scalar>(operand));
      }
    }
    TESSERA_ASSIGN_OR_RETURN(OpResolution resolution, ResolveOp(call.call, specs, saving_));
    const std::vector<Scalar> values = NumbersOf(call.call, specs);
    std::vector<int> numbers(values.size());
    std::iota(numbers.begin(), numbers.end(), number_count_);
    number_count_ += static_cast<int>(values.size());
    if (resolution.graph != nullptr) {
      Inline(*resolution.graph, operands, values, numbers);
      return absl::OkStatus();
    }
    ScalarRecipes recipes = RecipesOf(*row, call.call, specs, resolution, numbers);
    GraphNode node{row, call.call, std::move(operands), std::move(resolution), 0};
    for (const int result : AddNode(std::move(node), std::move(recipes))) values_.push_back(result);
    return absl::OkStatus();
  }

  // The scalars that a composite computes of its numbers are known for just these.
  void Inline(const Graph& inner, const std::vector<GraphOperand>& operands, const std::vector<Scalar>& values,
              const std::vector<int>& numbers) {
    std::vector<int> at;  // by value of `inner`
    for (const GraphOperand& operand : operands) {
      if (const int* value = std::get_if<int>(&operand)) at.push_back(*value);
    }
    for (const GraphNode& node : inner.nodes) {
      GraphNode added = node;
      for (GraphOperand& operand : added.operands) {
        if (int* value = std::get_if<int>(&operand)) *value = at[static_cast<size_t>(*value)];
      }
      ScalarRecipes recipes;
      for (const Scalar& scalar : node.resolution.scalars) recipes.AddConstant(scalar);
      for (const Scalar& scalar : node.resolution.epilogue_scalars) recipes.AddConstant(scalar);
      for (size_t n = 0; n < numbers.size(); ++n) recipes.RequireValue(numbers[n], values[n]);
      for (const int result : AddNode(std::move(added), std::move(recipes))) at.push_back(result);
    }
    for (const int output : inner.outputs) values_.push_back(at[static_cast<size_t>(output)]);
  }

  std::vector<int> AddNode(GraphNode node, ScalarRecipes recipes) {
    Graph& graph = made_.graph;
    node.first_result = static_cast<int>(graph.specs.size());
    std::vector<int> results(node.resolution.outputs.size());
    std::iota(results.begin(), results.end(), node.first_result);
    graph.specs.insert(graph.specs.end(), node.resolution.outputs.begin(), node.resolution.outputs.end());
    graph.nodes.push_back(std::move(node));
    made_.recipes.push_back(std::move(recipes));
    return results;
  }

  const Saving saving_;
  SegmentGraph made_;
  std::vector<int> values_;  // of the graph, by the segment's
  size_t last_results_ = 0;  // where those of the last call begin
  int number_count_ = 0;
};

SegmentRole MakeRole(const OpRow& row) {
  switch (row.family) {
    case OpFamily::kElementwise: return SegmentRole::kMap;
    case OpFamily::kReduction: return SegmentRole::kReduction;
    case OpFamily::kContraction: return SegmentRole::kContraction;
    case OpFamily::kComposite: return row.is_map ? SegmentRole::kMap : SegmentRole::kAlone;
    case OpFamily::kCreation:
    case OpFamily::kArgReduction:
    case OpFamily::kView:
    case OpFamily::kPlace:
    case OpFamily::kAlong:
    case OpFamily::kIndexed:
    case OpFamily::kAttention:
    case OpFamily::kFourier:
    case OpFamily::kGrouped:
    case OpFamily::kMatrices:
    case OpFamily::kWindows:
    case OpFamily::kRedistribute: return SegmentRole::kAlone;
  }
  return SegmentRole::kAlone;
}

}  // namespace

SegmentRole SegmentRoleOf(OpId op) {
  static const auto* const roles = [] {
    auto* made = new std::vector<SegmentRole>;
    for (const OpRow& row : Catalog()) {
      const auto at = static_cast<size_t>(row.id);
      if (at >= made->size()) made->resize(at + 1, SegmentRole::kAlone);
      (*made)[at] = MakeRole(row);
    }
    return made;
  }();
  const auto at = static_cast<size_t>(op);
  return at < roles->size() ? (*roles)[at] : SegmentRole::kAlone;
}

std::vector<Scalar> NumbersOf(const Segment& segment) {
  std::vector<Scalar> numbers;
  for (const SegmentCall& call : segment.calls) {
    numbers.insert(numbers.end(), call.call.scalars.begin(), call.call.scalars.end());
    for (const GraphOperand& operand : call.operands) {
      if (const auto* scalar = std::get_if<Scalar>(&operand)) numbers.push_back(*scalar);
    }
  }
  return numbers;
}

absl::StatusOr<SegmentGraph> ResolveSegment(const Segment& segment) { return ResolveSegment(segment, Saving::kTime); }

absl::StatusOr<SegmentGraph> ResolveSegment(const Segment& segment, Saving saving) {
  return SegmentResolver(saving).Run(segment);
}

}  // namespace tessera
