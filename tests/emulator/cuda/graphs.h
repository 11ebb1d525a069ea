#pragma once

// Graphs of the emulated driver: a CUgraph is a Graph, a CUgraphNode a NodeHandle, a CUgraphExec an ExecutableGraph.
//
// A launch of an executable graph is one operation of its stream. Its nodes run one by one, each of them when all that
// it depends on have run, in an order that the seed picks, and operations of other streams come in between. So two
// nodes that no edge orders are a hazard where they touch one byte.
//
// As the driver's documentation has it: parameters are copied when a node is added or set; to set a node of an
// executable graph changes its later launches, and none that was enqueued; a launch is ordered behind the earlier ones
// of the same executable graph. A node of a graph that was destroyed names nothing any more: the context ends.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/emulator/cuda/engine.h"

namespace tessera::emulator {

struct GraphNode {
  LaunchOperation launch;
  std::vector<size_t> after;  // numbers of nodes
  uint32_t lane = 0;          // a number of a stream that has nothing else, for clocks
};
using GraphNodes = std::vector<GraphNode>;

struct Graph;
struct NodeHandle {
  Graph* graph = nullptr;  // null: it was destroyed
  size_t number = 0;
};
struct Graph {
  GraphNodes nodes;
  std::vector<NodeHandle*> handles;  // which stay, to be known where they are used too late
};

struct ExecutableGraph {
  const Graph* made_of = nullptr;
  std::shared_ptr<const GraphNodes> nodes;  // of the next launch
  std::shared_ptr<GraphLaunch> last;
};

struct GraphLaunch {
  std::shared_ptr<const GraphNodes> nodes;
  std::shared_ptr<GraphLaunch> before;  // of the same executable graph; null: it is over
  std::vector<Clock> clocks;            // by node, once it has run
  std::vector<char> has_run;            // likewise
  size_t left = 0;
  Clock begin, end;
};

}  // namespace tessera::emulator
