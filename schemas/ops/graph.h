#pragma once

// Graph: ops of the catalog on each other's results. It is what a composite row is made of: softmax is a maximum, a
// difference, an exponential, a sum and a quotient, written once, so that sharding, pending terms, prices and every
// device follow from its ops. The planner plans it as one.
//
//   softmax(x):  %1 = max(%0; dims=[1], keepdims)   %2 = subtract(%0, %1)   %3 = exp(%2)   ...
//
// Values are numbered: the tensor operands first, in order, then the results of the nodes in order.

#include <variant>
#include <vector>

#include "schemas/ops/catalog.h"
#include "schemas/ops/resolve.h"

namespace tessera {

// A value's number, or a number that stands in its place.
using GraphOperand = std::variant<int, Scalar>;

struct GraphNode {
  const OpRow* row = nullptr;  // no composite
  OpCall call;
  std::vector<GraphOperand> operands;
  OpResolution resolution;
  int first_result = 0;  // the value of its first output
};

struct Graph {
  int input_count = 0;
  std::vector<TensorSpec> specs;  // by value
  std::vector<GraphNode> nodes;   // each after those whose results it takes
  std::vector<int> outputs;       // values
};

}  // namespace tessera
