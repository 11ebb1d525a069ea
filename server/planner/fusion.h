#pragma once

// Fusion: the ops of a graph as the steps that are planned. A chain of elementwise ops becomes one map, so what is
// between them is neither written nor read; a reduction takes in the maps before it:
//
//   multiply(x, 2.0), add(%1, y)  ->  map(add:f32(mul:f32(in0:f32, arg0:f32), in1:f32)) of x and y
//   multiply(x, y), sum(%2)       ->  reduce(sum; dims=[0]; map=mul:f32(in0:f32, in1:f32)) of x and y
//
// A result that several take is computed once, and again only where that costs no more than reading it.
//
// Law: an element of the one map is computed by the same scalar functions, rounded to the same dtypes, as op by op; the
// bits are the same. Pure.

#include <optional>
#include <vector>

#include "schemas/ops/graph.h"

namespace tessera {

// Which scalar of which node of the graph: its own, then those of its epilogue.
struct ScalarOrigin {
  size_t node = 0;
  size_t scalar = 0;
};

// A node of the graph, with the maps before it that it took in.
struct FusedNode {
  OpCall call;
  OpFamily family = OpFamily::kElementwise;
  OpResolution resolution;
  std::vector<int> inputs;  // values of the graph: the tensor operands
  int first_result = 0;     // a value of the graph
  // The maps' result, which a reduction that took in maps reduces.
  std::optional<TensorSpec> mapped = {};
  std::vector<ScalarOrigin> origins;  // of the resolution's scalars, then of its epilogue's
};

std::vector<FusedNode> FuseMaps(const Graph& graph);

}  // namespace tessera
