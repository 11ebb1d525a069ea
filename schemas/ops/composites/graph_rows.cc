// Graphs that a client says: the ops of a call's notation, one after the other (graph_text.h).

#include <algorithm>
#include <utility>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/composites/rows.h"
#include "schemas/ops/graph_builder.h"
#include "schemas/ops/graph_text.h"
#include "schemas/types/str_cat.h"

namespace tessera::composites {
namespace {

using G = GraphBuilder;
using V = GraphValue;

// A mesh that an op says is one of the operands', or the call's: who plans the call has looked at those alone.
bool IsCallsMesh(const G& g, const std::vector<V>& values, size_t operands, const Mesh* mesh) {
  if (mesh == nullptr) return true;
  const Mesh* own = g.attributes().Get(attribute::mesh);
  if (own != nullptr && *own == *mesh) return true;
  return std::any_of(values.begin(), values.begin() + static_cast<ptrdiff_t>(operands),
                     [&](const V& value) { return value.spec().mesh == *mesh; });
}

// The results of a line; none where it is refused.
std::vector<V> ResultsOf(G& g, const GraphLine& line, const std::vector<V>& values) {
  std::vector<V> operands;
  for (const GraphOperand& operand : line.operands) {
    const int* number = std::get_if<int>(&operand);
    if (number == nullptr) {
      operands.emplace_back(std::get<Scalar>(operand));
    } else if (static_cast<size_t>(*number) < values.size()) {
      operands.push_back(values[static_cast<size_t>(*number)]);
    } else {
      g.Refuse(StrCat("value ", *number, " is not there yet"));
      return {};
    }
  }
  return g.CallAll(line.call.op, line.call.attributes, std::move(operands), line.call.scalars);
}

// A node adds its weight to the time that planning takes; maps are planned together.
size_t WeightOf(const OpRow& row) {
  if (row.family == OpFamily::kElementwise) return 0;
  return row.family == OpFamily::kView || row.family == OpFamily::kCreation ? 1 : kGraphWeightOfStep;
}

void Graph(G& g) {
  absl::StatusOr<GraphText> text = ParseGraphText(g.attributes().Get(attribute::notation));
  if (!text.ok()) return g.Refuse(StdView(text.status().message()));
  std::vector<V> values;
  for (size_t i = 0; i < g.operand_count(); ++i) {
    if (!g.operand(i).is_tensor()) return g.Refuse("its operands are tensors");
    values.push_back(g.operand(i));
  }
  size_t weight = 0, weighed = 0;
  for (const GraphLine& line : text->lines) {
    if (!IsCallsMesh(g, values, g.operand_count(), line.call.attributes.Get(attribute::mesh))) {
      return g.Refuse("an op is on a mesh that is not the call's, nor an operand's");
    }
    for (V& result : ResultsOf(g, line, values)) values.push_back(std::move(result));
    if (g.failed()) return;
    if (g.node_count() > kMaxGraphNodes) {
      return g.Refuse(StrCat("its ops are made of more than max_graph_nodes, ", kMaxGraphNodes));
    }
    for (; weighed < g.node_count(); ++weighed) weight += WeightOf(g.row_of(weighed));
    if (weight > kMaxGraphWeight) {
      return g.Refuse(StrCat("its ops that are no maps weigh more than max_graph_weight, ", kMaxGraphWeight));
    }
  }
  std::vector<V> results;
  for (const int output : text->outputs) {
    const auto number = static_cast<size_t>(output);
    if (number >= values.size()) return g.Refuse(StrCat("value ", output, ", a result, is not there"));
    results.push_back(values[number]);
  }
  if (results.empty()) return g.Refuse("it has no results");
  if (results.size() > kMaxOperands) return g.Refuse(StrCat(results.size(), " results; at most ", kMaxOperands));
  g.Return(std::move(results));
}

constexpr OpRow kRows[] = {
    Composite(
        kGraphOp, "graph", 0, kMaxOperands, Graph, "graph(*arrays, notation, mesh=None)",
        "Runs ops as one call: notation has a line for each. Functions that are made of many ops are asked for so."),
};

}  // namespace

absl::Span<const OpRow> GraphRows() { return kRows; }

}  // namespace tessera::composites
