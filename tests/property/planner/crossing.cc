#include "tests/property/planner/crossing.h"

#include <algorithm>
#include <bit>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "schemas/types/layout.h"

namespace tessera {
namespace {

// Positions that hold, or want, the same elements.
struct Alike {
  Box box;
  std::vector<int64_t> kept;                                      // coordinates of terms that stay pending
  std::map<std::vector<int64_t>, std::set<WorkerIndex>> by_term;  // by coordinates of terms that don't
};

std::vector<Alike> AlikePositions(const TensorSpec& spec, const TensorSpec& other) {
  const bool same_mesh = HaveSameArrangement(spec.mesh, other.mesh);
  std::map<std::vector<int64_t>, Alike> found;
  for (int64_t flat = 0; flat < spec.mesh.size(); ++flat) {
    const Position position = spec.mesh.PositionAt(flat);
    const Box box = LocalBox(spec, position);
    std::vector<int64_t> key, kept, term;
    for (const Interval& interval : box) key.insert(key.end(), {interval.start, interval.stop});
    for (size_t j = 0; j < position.size(); ++j) {
      if (!spec.placements[j].is_partial()) continue;
      (same_mesh && other.placements[j].is_partial() ? kept : term).push_back(position[j]);
    }
    key.insert(key.end(), kept.begin(), kept.end());
    Alike& alike = found[key];
    alike.box = box;
    alike.kept = kept;
    alike.by_term[term].insert(spec.mesh.WorkerAt(position));
  }
  std::vector<Alike> all;
  for (auto& [key, alike] : found) all.push_back(std::move(alike));
  return all;
}

std::set<int32_t> HostsOf(const std::set<WorkerIndex>& workers, const std::vector<int32_t>& host_of_worker) {
  std::set<int32_t> hosts;
  for (const WorkerIndex worker : workers) hosts.insert(host_of_worker[static_cast<size_t>(worker.value)]);
  return hosts;
}

// The fewest hosts besides `host` that have all terms it has not.
int64_t FewestSums(const std::vector<std::set<int32_t>>& terms, int32_t host) {
  std::set<int32_t> others;
  for (const std::set<int32_t>& term : terms) others.insert(term.begin(), term.end());
  others.erase(host);
  const std::vector<int32_t> list(others.begin(), others.end());
  int64_t fewest = static_cast<int64_t>(list.size());
  for (uint64_t chosen = 0; chosen < uint64_t{1} << list.size(); ++chosen) {
    const bool has_all = std::all_of(terms.begin(), terms.end(), [&](const std::set<int32_t>& term) {
      bool has = term.contains(host);
      for (size_t i = 0; i < list.size(); ++i) has = has || (((chosen >> i) & 1) != 0 && term.contains(list[i]));
      return has;
    });
    if (has_all) fewest = std::min<int64_t>(fewest, std::popcount(chosen));
  }
  return fewest;
}

}  // namespace

Crossing CountLeastCrossing(const TensorSpec& source, const TensorSpec& destination,
                            const std::vector<int32_t>& host_of_worker) {
  Crossing least;
  const std::vector<Alike> wanting = AlikePositions(destination, source);
  for (const Alike& held : AlikePositions(source, destination)) {
    std::vector<std::set<int32_t>> terms;
    std::set<WorkerIndex> holders;
    for (const auto& [term, workers] : held.by_term) {
      terms.push_back(HostsOf(workers, host_of_worker));
      holders.insert(workers.begin(), workers.end());
    }
    for (const Alike& wanted : wanting) {
      const int64_t elements = NumElements(Intersect(held.box, wanted.box));
      if (elements == 0 || held.kept != wanted.kept) continue;
      const std::set<WorkerIndex>& takers = wanted.by_term.begin()->second;
      const std::set<int32_t> hosts = HostsOf(takers, host_of_worker);
      if (terms.size() == 1) {
        for (const int32_t host : hosts) least.moves += terms[0].contains(host) ? 0 : elements;
        continue;
      }
      std::set<WorkerIndex> reducers;
      std::set_intersection(takers.begin(), takers.end(), holders.begin(), holders.end(),
                            std::inserter(reducers, reducers.end()));
      int64_t fewest = static_cast<int64_t>(terms.size());
      for (const int32_t host : HostsOf(reducers.empty() ? takers : reducers, host_of_worker)) {
        fewest = std::min(fewest, FewestSums(terms, host));
      }
      least.sums += fewest * elements;
      least.spreads += (static_cast<int64_t>(hosts.size()) - 1) * elements;
    }
  }
  return least;
}

}  // namespace tessera
