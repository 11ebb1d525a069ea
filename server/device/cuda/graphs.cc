#include "server/device/cuda/graphs.h"

#include <algorithm>
#include <bitset>
#include <cstring>
#include <utility>

namespace tessera::cuda {
namespace {

// A graph is made the third time that its key comes.
constexpr int kTimesBefore = 2;
// Keys that are counted at once; beyond that all counts begin anew. docs/limits.md: max_gpu_graph_keys
constexpr size_t kMaxKeys = 1024;

uint64_t HashOf(absl::Span<const uint64_t> words) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const uint64_t word : words) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15;
    hash ^= hash >> 32;
  }
  return hash;
}

// By number: which earlier calls a call has to wait for. One that waits for a later one already isn't named again.
std::vector<std::vector<size_t>> DependenciesOf(absl::Span<const LaunchGraphs::Call> calls) {
  using Set = std::bitset<kMaxGraphLaunches>;
  std::vector<std::vector<size_t>> dependencies(calls.size());
  std::vector<Set> before(calls.size());  // directly or not, with itself
  for (size_t c = 0; c < calls.size(); ++c) {
    before[c].set(c);
    for (size_t other = c; other-- > 0;) {
      if (before[c].test(other) || calls[c].prepared->IsApartFrom(*calls[other].prepared)) continue;
      dependencies[c].push_back(other);
      before[c] |= before[other];
    }
  }
  return dependencies;
}

}  // namespace

LaunchGraphs::~LaunchGraphs() {
  for (Graph& graph : graphs_) Destroy(graph);
}

void LaunchGraphs::Destroy(Graph& graph) const {
  // Launches that are under way go on to their end.
  if (graph.executable != nullptr) gpu_.driver->GraphExecDestroy(std::exchange(graph.executable, nullptr));
  if (graph.graph != nullptr) gpu_.driver->GraphDestroy(std::exchange(graph.graph, nullptr));
  graph.nodes.clear();
}

bool LaunchGraphs::Enqueue(CUstream stream, absl::Span<const Call> calls) {
  key_.assign(1, reinterpret_cast<uint64_t>(stream));
  for (const Call& call : calls) {
    key_.push_back(call.form);
    key_.push_back(call.prepared->launches().size());
    const absl::Span<const uint64_t> addresses = call.prepared->addresses();
    key_.insert(key_.end(), addresses.begin(), addresses.end());
  }
  hash_ = HashOf(key_);
  Graph* graph = Find();
  if (graph == nullptr) {
    if (seen_.size() >= kMaxKeys && !seen_.contains(hash_)) seen_.clear();
    if (int& times = seen_[hash_]; times < kTimesBefore) {
      ++times;
      return false;
    }
    seen_.erase(hash_);
    graph = &Make(calls);
  }
  if (graph->executable == nullptr || !SetNodes(calls, *graph)) return false;
  const bool is_launched = gpu_.driver->GraphLaunch(graph->executable, stream) == CUDA_SUCCESS;
  if (!is_launched) Destroy(*graph);
  return is_launched;
}

LaunchGraphs::Graph* LaunchGraphs::Find() {
  const auto known = by_hash_.find(hash_);
  if (known == by_hash_.end() || known->second->key != key_) return nullptr;
  graphs_.splice(graphs_.begin(), graphs_, known->second);
  return &graphs_.front();
}

LaunchGraphs::Graph& LaunchGraphs::Make(absl::Span<const Call> calls) {
  const auto remove = [this](Graphs::iterator graph) {
    by_hash_.erase(HashOf(graph->key));
    Destroy(*graph);
    graphs_.erase(graph);
  };
  if (const auto other = by_hash_.find(hash_); other != by_hash_.end()) remove(other->second);
  if (graphs_.size() >= kMaxGraphs) remove(std::prev(graphs_.end()));
  graphs_.emplace_front().key = key_;
  by_hash_[hash_] = graphs_.begin();
  Graph& graph = graphs_.front();
  const Driver& driver = *gpu_.driver;
  const bool is_made = driver.GraphCreate(&graph.graph, 0) == CUDA_SUCCESS && AddNodes(calls, graph) == CUDA_SUCCESS &&
                       driver.GraphInstantiateWithFlags(&graph.executable, graph.graph, 0) == CUDA_SUCCESS;
  if (!is_made) Destroy(graph);
  return graph;
}

namespace {

CUDA_KERNEL_NODE_PARAMS ParametersOf(const PreparedCall::Enqueued& one, void** parameters) {
  CUDA_KERNEL_NODE_PARAMS node = {};
  const Launch& launch = *one.launch;
  node.kern = one.kernel;
  node.gridDimX = launch.grid[0];
  node.gridDimY = launch.grid[1];
  node.gridDimZ = launch.grid[2];
  node.blockDimX = launch.block[0];
  node.blockDimY = launch.block[1];
  node.blockDimZ = launch.block[2];
  node.sharedMemBytes = launch.shared_bytes;
  node.kernelParams = parameters;
  return node;
}

}  // namespace

CUresult LaunchGraphs::AddNodes(absl::Span<const Call> calls, Graph& graph) const {
  const std::vector<std::vector<size_t>> dependencies = DependenciesOf(calls);
  std::vector<size_t> last;  // node of a call
  for (size_t c = 0; c < calls.size(); ++c) {
    std::vector<CUgraphNode> after;
    for (const size_t other : dependencies[c]) after.push_back(graph.nodes[last[other]].node);
    // A call's kernels follow each other.
    for (const PreparedCall::Enqueued& one : calls[c].prepared->launches()) {
      const Launch& launch = *one.launch;
      Node node{.kernel = one.kernel,
                .grid = launch.grid,
                .block = launch.block,
                .shared_bytes = launch.shared_bytes,
                .parameters = launch.parameters};
      void* parameters[] = {node.parameters.data()};
      const CUDA_KERNEL_NODE_PARAMS added = ParametersOf(one, parameters);
      const CUresult result =
          gpu_.driver->GraphAddKernelNode(&node.node, graph.graph, after.data(), after.size(), &added);
      if (result != CUDA_SUCCESS) return result;
      after = {node.node};
      graph.nodes.push_back(std::move(node));
    }
    last.push_back(graph.nodes.size() - 1);
  }
  return CUDA_SUCCESS;
}

bool LaunchGraphs::SetNodes(absl::Span<const Call> calls, Graph& graph) const {
  const auto is_set = [](const Node& node, const PreparedCall::Enqueued& one) {
    const Launch& launch = *one.launch;
    // Not by the vectors' own operator, which goes byte by byte.
    return node.parameters.size() == launch.parameters.size() &&
           std::memcmp(node.parameters.data(), launch.parameters.data(), node.parameters.size()) == 0 &&
           node.kernel == one.kernel && node.grid == launch.grid && node.block == launch.block &&
           node.shared_bytes == launch.shared_bytes;
  };
  const auto for_each = [&](auto visit) {
    auto node = graph.nodes.begin();
    for (const Call& call : calls) {
      for (const PreparedCall::Enqueued& one : call.prepared->launches()) {
        if (!visit(*node++, one)) return false;
      }
    }
    return true;
  };
  size_t different = 0;
  for_each([&](const Node& node, const PreparedCall::Enqueued& one) {
    different += is_set(node, one) ? 0 : 1;
    return true;
  });
  if (different == 0) return true;
  if (different + 1 >= graph.nodes.size()) return false;
  return for_each([&](Node& node, const PreparedCall::Enqueued& one) {
    if (is_set(node, one)) return true;
    void* parameters[] = {const_cast<std::byte*>(one.launch->parameters.data())};
    const CUDA_KERNEL_NODE_PARAMS wanted = ParametersOf(one, parameters);
    if (gpu_.driver->GraphExecKernelNodeSetParams(graph.executable, node.node, &wanted) != CUDA_SUCCESS) {
      Destroy(graph);
      return false;
    }
    node.kernel = one.kernel;
    node.grid = one.launch->grid;
    node.block = one.launch->block;
    node.shared_bytes = one.launch->shared_bytes;
    node.parameters = one.launch->parameters;  // of the same size
    return true;
  });
}

}  // namespace tessera::cuda
