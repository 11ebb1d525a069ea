#pragma once

// Graph texts: ops on each other's results as one attribute, so that a call of the row `graph` asks for all of them at
// once. A client that has recorded what a function asks for says it so from then on, in one record.
//
//   y = x * 2 + b          notation of graph(x, b):
//   multiply|%0|$2         a line for each op: its name, its operands, its attributes
//   add|%2|%1              %n is a value: the operands first, then the results of the lines in order
//   return|%3              the results of the call
//
// In a line, `$` begins a number that is an operand, `#` one of the op's own, `@` an attribute: sum|%0|@dims=[0].
// Every number and attribute is part of the text, and so of the plan's key.
//
// Law: a text that WriteGraphLine gave is read as the same call, bit by bit. A text from outside is checked: it names
// rows of the catalog, values that are there, and no more than kMaxGraphLines lines; each op is then resolved as any
// call is.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schemas/ops/graph.h"
#include "schemas/ops/op.h"

namespace tessera {

inline constexpr OpId kGraphOp{432};            // OpId::kGraph, for who needs no other op
inline constexpr size_t kMaxGraphLines = 2048;  // docs/limits.md: max_graph_lines
// A node takes up to three phases of a plan, which has 4,094 (max_phases).
inline constexpr size_t kMaxGraphNodes = 1364;  // docs/limits.md: max_graph_nodes
// One piece of the coordinator's loop plans a graph, and neighbours wait: some 25 us for each phase that is no map. A
// view and a creation have one, other ops up to some five.
inline constexpr size_t kMaxGraphWeight = 512;           // docs/limits.md: max_graph_weight
inline constexpr size_t kGraphWeightOfStep = 4;          // docs/limits.md: max_graph_weight
inline constexpr size_t kMaxGraphTextBytes = 256 << 10;  // docs/limits.md: max_graph_text_bytes

struct GraphLine {
  OpCall call;
  std::vector<GraphOperand> operands;
  bool operator==(const GraphLine& other) const {
    return call.op == other.call.op && call.attributes == other.call.attributes && call.scalars == other.call.scalars &&
           operands == other.operands;
  }
};

struct GraphText {
  std::vector<GraphLine> lines;
  std::vector<int> outputs;  // values
};

// Nothing where an attribute is a text with a character that has a meaning here.
std::optional<std::string> WriteGraphLine(const GraphLine& line);
std::string WriteGraphOutputs(absl::Span<const int> outputs);
// InvalidArgument that names the line. Whether the values are there is for who reads it.
absl::StatusOr<GraphText> ParseGraphText(std::string_view text);

}  // namespace tessera
