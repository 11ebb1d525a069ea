#include "tests/property/planner/level_solver.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "schemas/types/layout.h"

namespace tessera {
namespace {

// Augmenting paths over a dense graph: enough for a few hundred nodes.
class FlowGraph {
 public:
  explicit FlowGraph(size_t nodes) : room_(nodes, std::vector<int64_t>(nodes, 0)) {}

  void Connect(size_t from, size_t to, int64_t capacity) { room_[from][to] += capacity; }

  int64_t MaxFlow(size_t source, size_t sink) {
    int64_t flow = 0;
    while (const int64_t more = Augment(source, sink)) flow += more;
    return flow;
  }

 private:
  int64_t Augment(size_t source, size_t sink) {
    const size_t nowhere = room_.size();
    std::vector<size_t> previous(room_.size(), nowhere);
    std::queue<size_t> open;
    open.push(source);
    previous[source] = source;
    while (!open.empty() && previous[sink] == nowhere) {
      const size_t at = open.front();
      open.pop();
      for (size_t to = 0; to < room_.size(); ++to) {
        if (room_[at][to] == 0 || previous[to] != nowhere) continue;
        previous[to] = at;
        open.push(to);
      }
    }
    if (previous[sink] == nowhere) return 0;
    int64_t most = std::numeric_limits<int64_t>::max();
    for (size_t at = sink; at != source; at = previous[at]) most = std::min(most, room_[previous[at]][at]);
    for (size_t at = sink; at != source; at = previous[at]) {
      room_[previous[at]][at] -= most;
      room_[at][previous[at]] += most;
    }
    return most;
  }

  std::vector<std::vector<int64_t>> room_;
};

struct WantedBox {
  int64_t size = 0;             // elements or bytes
  std::vector<size_t> holders;  // workers that may give it
};

std::vector<int64_t> StartsOf(const Box& box) {
  std::vector<int64_t> starts;
  for (const Interval& interval : box) starts.push_back(interval.start);
  return starts;
}

// The boxes that destinations lack, and the holders that can give them.
std::vector<WantedBox> WantedBoxes(const TensorSpec& source, const TensorSpec& destination,
                                   const std::vector<int32_t>& host_of_worker) {
  const auto host_of = [&host_of_worker](WorkerIndex worker) {
    const size_t index = static_cast<size_t>(worker.value);
    return index < host_of_worker.size() ? host_of_worker[index] : 0;
  };
  std::map<std::vector<int64_t>, std::vector<size_t>> holders_of;  // by the source's box (and kept terms)
  std::vector<std::vector<int64_t>> keys;
  std::vector<Box> boxes;
  const bool same_mesh = HaveSameArrangement(source.mesh, destination.mesh);
  for (int64_t flat = 0; flat < source.mesh.size(); ++flat) {
    const Position position = source.mesh.PositionAt(flat);
    boxes.push_back(LocalBox(source, position));
    std::vector<int64_t>& key = keys.emplace_back();
    for (const Interval& interval : boxes.back()) key.insert(key.end(), {interval.start, interval.stop});
    for (size_t j = 0; j < position.size(); ++j) key.push_back(source.placements[j].is_partial() ? position[j] : 0);
    holders_of[key].push_back(static_cast<size_t>(flat));
  }
  std::vector<WantedBox> wanted;
  std::set<std::tuple<int32_t, std::vector<int64_t>, std::vector<int64_t>>> taken_from_far;
  for (int64_t flat = 0; flat < destination.mesh.size(); ++flat) {
    const Position position = destination.mesh.PositionAt(flat);
    const Box box = LocalBox(destination, position);
    const auto own = source.mesh.FindWorker(destination.mesh.WorkerAt(position));
    for (const auto& [key, holders] : holders_of) {
      if (own.has_value() && keys[static_cast<size_t>(*own)] == key) continue;
      bool same_terms = true;
      for (size_t j = 0; same_mesh && j < position.size(); ++j) {
        const int64_t term = key[key.size() - position.size() + j];
        same_terms = same_terms && (!source.placements[j].is_partial() || term == position[j]);
      }
      const int64_t elements = same_terms ? NumElements(Intersect(box, boxes[holders[0]])) : 0;
      if (elements == 0) continue;
      WantedBox box_of_one = {elements, {}};
      std::vector<size_t> workers;
      for (const size_t holder : holders) workers.push_back(static_cast<size_t>(source.mesh.workers()[holder].value));
      for (const size_t holder : holders) {
        if (host_of(source.mesh.workers()[holder]) == host_of(destination.mesh.WorkerAt(position))) {
          box_of_one.holders.push_back(static_cast<size_t>(source.mesh.workers()[holder].value));
        }
      }
      if (box_of_one.holders.empty()) {
        if (!taken_from_far.emplace(host_of(destination.mesh.WorkerAt(position)), key, StartsOf(box)).second) continue;
        box_of_one.holders = std::move(workers);
      }
      wanted.push_back(std::move(box_of_one));
    }
  }
  return wanted;
}

// The smallest limit on every sender under which all boxes are given.
int64_t LeastLimit(const std::vector<WantedBox>& wanted) {
  int64_t total = 0;
  size_t senders = 0;
  for (const WantedBox& box : wanted) {
    total += box.size;
    for (const size_t holder : box.holders) senders = std::max(senders, holder + 1);
  }
  const size_t start = senders + wanted.size();
  int64_t low = 0;
  int64_t high = total;
  while (low < high) {
    const int64_t limit = low + (high - low) / 2;
    FlowGraph graph(start + 2);
    for (size_t i = 0; i < wanted.size(); ++i) {
      graph.Connect(start, senders + i, wanted[i].size);
      for (const size_t holder : wanted[i].holders) graph.Connect(senders + i, holder, wanted[i].size);
    }
    for (size_t holder = 0; holder < senders; ++holder) graph.Connect(holder, start + 1, limit);
    if (graph.MaxFlow(start, start + 1) == total) {
      high = limit;
    } else {
      low = limit + 1;
    }
  }
  return low;
}

}  // namespace

int64_t LeastBusiestSender(const TensorSpec& source, const TensorSpec& destination,
                           const std::vector<int32_t>& host_of_worker) {
  return LeastLimit(WantedBoxes(source, destination, host_of_worker));
}

}  // namespace tessera
