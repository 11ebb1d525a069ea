#include "tests/emulator/cuda/graphs.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

namespace tessera::emulator {

CUresult Engine::MakeGraph(CUgraph* graph) {
  *graph = reinterpret_cast<CUgraph>(new Graph());
  return CUDA_SUCCESS;
}

CUresult Engine::DestroyGraph(CUgraph graph) {
  std::lock_guard lock(mutex_);
  auto* destroyed = reinterpret_cast<Graph*>(graph);
  for (NodeHandle* handle : destroyed->handles) handle->graph = nullptr;
  delete destroyed;
  return sticky_;
}

CUresult Engine::AddNode(CUgraph to, absl::Span<const CUgraphNode> after, LaunchOperation launch, CUgraphNode* node) {
  std::lock_guard lock(mutex_);
  auto* graph = reinterpret_cast<Graph*>(to);
  GraphNode added{.launch = std::move(launch), .after = {}};
  for (const CUgraphNode one : after) {
    const auto* before = reinterpret_cast<const NodeHandle*>(one);
    if (before->graph != graph) return CUDA_ERROR_INVALID_VALUE;
    added.after.push_back(before->number);
  }
  auto* handle = new NodeHandle{.graph = graph, .number = graph->nodes.size()};
  graph->nodes.push_back(std::move(added));
  graph->handles.push_back(handle);
  *node = reinterpret_cast<CUgraphNode>(handle);
  return sticky_;
}

uint32_t Engine::MakeLane() {
  streams_.push_back(std::make_unique<Stream>());
  streams_.back()->number = static_cast<uint32_t>(streams_.size() - 1);
  streams_.back()->is_destroyed = true;
  return streams_.back()->number;
}

// A node goes on in the lane of the first one that it depends on, where no other one does: they are in order.
CUresult Engine::Instantiate(CUgraph graph, CUgraphExec* executable) {
  std::lock_guard lock(mutex_);
  const auto* of = reinterpret_cast<const Graph*>(graph);
  auto nodes = std::make_shared<GraphNodes>(of->nodes);
  std::vector<char> is_continued(nodes->size(), 0);
  for (GraphNode& node : *nodes) {
    const bool goes_on = !node.after.empty() && is_continued[node.after[0]] == 0;
    if (goes_on) is_continued[node.after[0]] = 1;
    node.lane = goes_on ? (*nodes)[node.after[0]].lane : MakeLane();
  }
  *executable =
      reinterpret_cast<CUgraphExec>(new ExecutableGraph{.made_of = of, .nodes = std::move(nodes), .last = nullptr});
  return sticky_;
}

CUresult Engine::SetNode(CUgraphExec executable, CUgraphNode node, LaunchOperation launch) {
  std::lock_guard lock(mutex_);
  auto* graph = reinterpret_cast<ExecutableGraph*>(executable);
  const auto* handle = reinterpret_cast<const NodeHandle*>(node);
  if (handle->graph == nullptr) return End("a node is set of a graph that was destroyed");
  if (handle->graph != graph->made_of) return CUDA_ERROR_INVALID_VALUE;
  // Launches that were enqueued keep theirs.
  auto nodes = std::make_shared<GraphNodes>(*graph->nodes);
  (*nodes)[handle->number].launch = std::move(launch);
  graph->nodes = std::move(nodes);
  return sticky_;
}

CUresult Engine::LaunchGraph(CUgraphExec executable, CUstream stream) {
  std::shared_ptr<GraphLaunch> launch;
  {
    std::lock_guard lock(mutex_);
    auto* graph = reinterpret_cast<ExecutableGraph*>(executable);
    launch = std::make_shared<GraphLaunch>(GraphLaunch{.nodes = graph->nodes,
                                                       .before = graph->last,
                                                       .clocks = std::vector<Clock>(graph->nodes->size()),
                                                       .has_run = std::vector<char>(graph->nodes->size(), 0),
                                                       .left = graph->nodes->size(),
                                                       .begin = {},
                                                       .end = {}});
    graph->last = launch;
  }
  return Push(stream, GraphOperation{std::move(launch)});
}

CUresult Engine::DestroyExecutable(CUgraphExec executable) {
  std::lock_guard lock(mutex_);
  delete reinterpret_cast<ExecutableGraph*>(executable);  // launches that are under way have what they need
  return sticky_;
}

bool Engine::IsOver(const GraphLaunch* launch) { return launch == nullptr || launch->left == 0; }

bool Engine::MayBegin(const GraphOperation& graph) { return IsOver(graph.launch->before.get()); }

void Engine::RunNode(Stream& stream, std::unique_lock<std::mutex>& lock) {
  const Operation& head = stream.queue.front();
  const std::shared_ptr<GraphLaunch> launch = std::get<GraphOperation>(head.what).launch;
  const std::shared_ptr<const GraphNodes> nodes = launch->nodes;  // which stay as they are without the lock
  if (launch->left == nodes->size() && finds_hazards_) {
    stream.clock.Join(head.host);
    if (launch->before != nullptr) stream.clock.Join(launch->before->end);
    launch->begin = stream.clock;
  }
  launch->before = nullptr;
  std::vector<size_t> ready;
  for (size_t n = 0; n < nodes->size(); ++n) {
    const auto has_run = [&](size_t other) { return launch->has_run[other] != 0; };
    const std::vector<size_t>& after = (*nodes)[n].after;
    if (!has_run(n) && std::all_of(after.begin(), after.end(), has_run)) ready.push_back(n);
  }
  std::string wrong;
  if (!ready.empty()) {  // else it has no node
    const size_t number = ready[random_() % ready.size()];
    const GraphNode& node = (*nodes)[number];
    if (finds_hazards_) {
      Clock& clock = launch->clocks[number];
      clock = launch->begin;
      for (const size_t before : node.after) clock.Join(launch->clocks[before]);
      // Nodes of this lane in earlier launches came before this one.
      clock.Tick(node.lane);
      hazards_.Begin(node.lane, clock, node.launch.kernel->name);
      launch->end.Join(clock);
    }
    stream.is_busy = true;
    const std::shared_ptr<const RangeMap> mapped = memory_.Mapped();
    const uint32_t seed = random_();
    lock.unlock();
    wrong = RunKernel(node.launch, *mapped, seed);
    lock.lock();
    stream.is_busy = false;
    launch->has_run[number] = 1;
    --launch->left;
  }
  if (launch->left == 0) {
    stream.clock.Join(launch->end);
    stream.passed = stream.queue.front().number;
    stream.queue.pop_front();
  }
  if (wrong.empty()) return;
  std::fprintf(stderr, "emulator: in a graph: %s\n", wrong.c_str());
  sticky_ = CUDA_ERROR_ILLEGAL_ADDRESS;
}

}  // namespace tessera::emulator
