// Composite rows: the graph of their ops, and what it needs of the operands.

#include <utility>

#include "schemas/ops/graph_builder.h"
#include "schemas/types/status_macros.h"

namespace tessera {
namespace {

// The first use of a value that has to be brought elsewhere; none where every use takes it as it lies.
const ResolvedOperand* FirstMove(const Graph& graph, int value) {
  for (const GraphNode& node : graph.nodes) {
    size_t tensor = 0;
    for (const GraphOperand& operand : node.operands) {
      const int* number = std::get_if<int>(&operand);
      if (number == nullptr) continue;
      const ResolvedOperand& resolved = node.resolution.operands[tensor++];
      if (*number == value && resolved.redistributed) return &resolved;
    }
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<OpResolution> ResolveComposite(const ResolveInput& input) {
  GraphBuilder builder(input);
  input.row.composite(builder);
  TESSERA_ASSIGN_OR_RETURN(Graph graph, std::move(builder).Finish());
  OpResolution resolution;
  for (int value = 0; value < graph.input_count; ++value) {
    const TensorSpec& own = graph.specs[static_cast<size_t>(value)];
    const ResolvedOperand* move = FirstMove(graph, value);
    resolution.operands.push_back(move == nullptr ? ResolvedOperand{own, false, {}}
                                                  : ResolvedOperand{move->spec, true, {}});
  }
  for (const int output : graph.outputs) resolution.outputs.push_back(graph.specs[static_cast<size_t>(output)]);
  for (const GraphNode& node : graph.nodes) resolution.flops += node.resolution.flops;
  resolution.graph = std::make_shared<const Graph>(std::move(graph));
  return resolution;
}

}  // namespace tessera
