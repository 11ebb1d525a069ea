#pragma once

// LaunchGraphs: runs of kernels that come again, as graphs of the driver, each launched by one call.
//
//   if (!graphs.Enqueue(stream, {{form, &prepared}, {form, &prepared}, ...})) ...  // launched one by one
//
// 32 kernels of a training step, whose memory lies where it did in the step before: the first two times 32 launches,
// the third time a graph is made of them, from then on there is one call of the driver.
//
// A run is known by its stream, the forms of its calls and all addresses of their parameters but those of fault words.
// Parameters that differ otherwise, as scalars do, are set in the graph before it is launched, where that takes fewer
// calls than to launch the kernels. A kernel waits for those before it whose bytes it shares (PatchedCall::IsApartFrom)
// and for no other one.
//
// Law: the documentation of the driver says of no call for graphs that it never waits. So each is made in a turn that
// is clear (device_loop.h). A launch is ordered behind the earlier ones of its graph, whatever their streams, so a
// graph is of one stream. Nodes are set by the graph that the executable one was made of, which stays as long.
//
// A graph that the driver doesn't make, set or launch isn't asked for again. Used by one thread.

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <vector>

#include <cuda.h>

#include "absl/types/span.h"
#include "server/device/cuda/cuda_memory.h"
#include "server/device/cuda/prepared.h"

namespace tessera::cuda {

// Graphs that are kept, the last that were launched. docs/limits.md: max_gpu_graphs
inline constexpr size_t kMaxGraphs = 64;
// Kernels of a run. docs/limits.md: min_gpu_graph_launches, max_gpu_graph_launches
inline constexpr size_t kMinGraphLaunches = 4;
inline constexpr size_t kMaxGraphLaunches = 128;

class LaunchGraphs {
 public:
  // A call whose steps StepsOf gave last: `prepared` has launches, all of them kernels.
  struct Call {
    uint64_t form = 0;
    const PreparedCall* prepared = nullptr;
  };

  explicit LaunchGraphs(const Gpu& gpu) : gpu_(gpu) {}
  ~LaunchGraphs();
  LaunchGraphs(const LaunchGraphs&) = delete;
  LaunchGraphs& operator=(const LaunchGraphs&) = delete;

  // Whether the kernels were launched; else nothing was enqueued. In a turn that is clear.
  bool Enqueue(CUstream stream, absl::Span<const Call> calls);

 private:
  struct Node {
    CUgraphNode node = nullptr;
    // As it would be launched now.
    CUkernel kernel = nullptr;
    std::array<uint32_t, 3> grid = {}, block = {};
    uint32_t shared_bytes = 0;
    std::vector<std::byte> parameters;
  };
  struct Graph {
    std::vector<uint64_t> key;
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;  // null: the driver refused
    std::vector<Node> nodes;
  };
  using Graphs = std::list<Graph>;  // the one that was launched last is the first

  // The graph of the key, as the first of all; null where there is none, or it has not come often enough.
  Graph* Find();
  // Makes the graph of the calls, in place of the one that was launched longest ago.
  Graph& Make(absl::Span<const Call> calls);
  CUresult AddNodes(absl::Span<const Call> calls, Graph& graph) const;
  // Whether the nodes have the launches now.
  bool SetNodes(absl::Span<const Call> calls, Graph& graph) const;
  void Destroy(Graph& graph) const;

  const Gpu gpu_;
  Graphs graphs_;
  std::unordered_map<uint64_t, Graphs::iterator> by_hash_;
  std::unordered_map<uint64_t, int> seen_;  // how often a key has come, by hash
  std::vector<uint64_t> key_;               // of the calls at hand
  uint64_t hash_ = 0;
};

}  // namespace tessera::cuda
