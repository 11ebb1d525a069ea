#include "server/planner/redistribute_price.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "schemas/types/layout.h"
#include "server/plan/movement/exchange.h"
#include "server/plan/movement/same_shards.h"
#include "server/planner/alternatives.h"
#include "server/planner/overlay.h"

namespace tessera {
namespace {

constexpr int64_t kExactUpTo = 64;  // workers

}  // namespace

HostWorkers WorkersByHost(const Mesh& mesh, const Topology& topology) {
  HostWorkers by_host;
  for (const WorkerIndex worker : mesh.workers()) by_host[topology.HostOf(worker)].push_back(worker);
  return by_host;
}

RedistributePrice::RedistributePrice(const TensorSpec& source, const TensorSpec& destination, const Topology& topology)
    : source_(source), destination_(destination), terms_(PendingTerms(source, destination)) {
  if (terms_ > 1 && destination.mesh.size() <= kExactUpTo) ReduceExactly(topology);
}

int64_t RedistributePrice::ReceivedBy(WorkerIndex worker) const {
  const std::optional<int64_t> to = destination_.mesh.FindWorker(worker);
  if (!to.has_value()) return 0;
  const int64_t element_bytes = SizeBytes(source_.dtype);
  if (!reduced_elements_.empty()) return reduced_elements_[static_cast<size_t>(*to)] * element_bytes;
  const Box wanted = LocalBox(destination_, destination_.mesh.PositionAt(*to));
  const std::optional<int64_t> from = source_.mesh.FindWorker(worker);
  const int64_t held =
      from.has_value() ? NumElements(Intersect(wanted, LocalBox(source_, source_.mesh.PositionAt(*from)))) : 0;
  if (terms_ == 1) return (NumElements(wanted) - held) * element_bytes;
  // It reduces its share of what the replicas get together, and takes the others' shares.
  const double replicas = static_cast<double>(CountReplicas(destination_));
  const double elements = static_cast<double>(NumElements(wanted));
  const double own_terms = elements > 0 ? static_cast<double>(held) / elements : 0;
  const double words =
      elements / replicas * (static_cast<double>(terms_) - own_terms) + elements * (replicas - 1) / replicas;
  return static_cast<int64_t>(std::ceil(words)) * element_bytes;
}

std::vector<RedistributePrice::HeldBox> RedistributePrice::BoxesOf(const TensorSpec& spec,
                                                                   absl::Span<const WorkerIndex> workers) {
  std::vector<HeldBox> boxes;
  for (const WorkerIndex worker : workers) {
    const std::optional<int64_t> flat = spec.mesh.FindWorker(worker);
    if (!flat.has_value()) continue;
    const Position position = spec.mesh.PositionAt(*flat);
    HeldBox box = {LocalBox(spec, position), position};
    for (size_t j = 0; j < position.size(); ++j) {
      if (!spec.placements[j].is_partial()) box.term[j] = 0;
    }
    if (!IsEmpty(box.box)) boxes.push_back(std::move(box));
  }
  // Boxes of one tensor are the same or have nothing in common: where they start tells them apart.
  std::sort(boxes.begin(), boxes.end(), [](const HeldBox& a, const HeldBox& b) {
    for (size_t d = 0; d < a.box.size(); ++d) {
      if (a.box[d].start != b.box[d].start) return a.box[d].start < b.box[d].start;
    }
    return a.term < b.term;
  });
  boxes.erase(std::unique(boxes.begin(), boxes.end()), boxes.end());
  return boxes;
}

// Some of many, which stand for as many each: evenly, but not always at the same place of a row.
std::pair<std::vector<RedistributePrice::HeldBox>, double> RedistributePrice::SampleOf(std::vector<HeldBox> boxes) {
  constexpr size_t kAllUpTo = 64, kSampled = 16;
  if (boxes.size() <= kAllUpTo) return {std::move(boxes), 1};
  const size_t stride = boxes.size() / kSampled;
  std::vector<HeldBox> sample;
  for (size_t i = 0; i < kSampled; ++i) sample.push_back(boxes[i * stride + (5 * i) % stride]);
  return {std::move(sample), static_cast<double>(boxes.size()) / kSampled};
}

int64_t RedistributePrice::ReceivedByHost(int32_t host, absl::Span<const WorkerIndex> takers,
                                          absl::Span<const WorkerIndex> holders) const {
  const int64_t element_bytes = SizeBytes(source_.dtype);
  if (!reduced_elements_.empty()) {
    const auto found = reduced_elements_of_hosts_.find(host);
    return found == reduced_elements_of_hosts_.end() ? 0 : found->second * element_bytes;
  }
  std::vector<HeldBox> wanted = BoxesOf(destination_, takers);
  const std::vector<HeldBox> held = BoxesOf(source_, holders);
  if (terms_ > 1) return ReducedByHost(wanted, held, takers.size()) * element_bytes;
  const auto [sample, times] = SampleOf(std::move(wanted));
  int64_t elements = 0;
  for (const HeldBox& want : sample) {
    elements += NumElements(want.box);
    for (const HeldBox& have : held) {
      // A pending term that stays pending is on the same mesh.
      if (!destination_.has_partial() || have.term == want.term) elements -= NumElements(Intersect(want.box, have.box));
    }
  }
  return static_cast<int64_t>(std::ceil(times * static_cast<double>(elements))) * element_bytes;
}

// It reduces its share of what the hosts get together, of one sum of each other host, and takes the others' shares.
int64_t RedistributePrice::ReducedByHost(absl::Span<const HeldBox> wanted, absl::Span<const HeldBox> held,
                                         size_t takers) const {
  if (wanted.empty()) return 0;
  int64_t elements = 0;
  for (const HeldBox& want : wanted) elements += NumElements(want.box);
  // Mesh dims that stay pending tell several sums apart.
  const bool same_mesh = HaveSameArrangement(source_.mesh, destination_.mesh);
  const auto is_of_first_sum = [&](const HeldBox& have) {
    bool is_same = have.box == held[0].box;
    for (size_t j = 0; j < have.term.size(); ++j) {
      const bool is_kept = same_mesh && destination_.placements[j].is_partial();
      is_same = is_same && (!is_kept || have.term[j] == held[0].term[j]);
    }
    return is_same;
  };
  const auto terms_here = std::count_if(held.begin(), held.end(), is_of_first_sum);
  const double destinations_here = static_cast<double>(takers) / static_cast<double>(wanted.size());
  const double hosts = std::max(1.0, static_cast<double>(CountReplicas(destination_)) / destinations_here);
  const double sums =
      held.empty() ? static_cast<double>(terms_) : static_cast<double>(terms_) / static_cast<double>(terms_here) - 1;
  return static_cast<int64_t>(std::ceil(static_cast<double>(elements) * (sums + hosts - 1) / hosts));
}

void RedistributePrice::ReduceExactly(const Topology& topology) {
  const absl::StatusOr<std::vector<NamedExchange>> exchanges = MakeExchanges(source_, destination_, {}, {});
  if (!exchanges.ok()) return;
  reduced_elements_.resize(static_cast<size_t>(destination_.mesh.size()));
  const bool is_one_host = AreOnOneHost({&source_.mesh, &destination_.mesh}, topology);
  for (const NamedExchange& named : *exchanges) {
    Pieces(named.exchange)
        .VisitTotals(
            [this](WorkerIndex worker, int64_t elements) {
              reduced_elements_[static_cast<size_t>(*destination_.mesh.FindWorker(worker))] += elements;
            },
            [](WorkerIndex, int64_t) {});
    if (is_one_host) continue;
    ExchangeStep by_hosts;
    by_hosts.exchange = named.exchange;
    by_hosts.exchange.hosts = HostsAmong(WorkerHosts(topology.host_of_worker), source_.mesh, destination_.mesh);
    if (by_hosts.exchange.role == ExchangeRole::kGatherReduced) TakeOnce(by_hosts);
    const Pieces pieces(by_hosts.exchange);
    for (const WorkerIndex worker : destination_.mesh.workers()) {
      const int32_t host = topology.HostOf(worker);
      pieces.VisitReceived(worker, [&](WorkerIndex from, int64_t elements) {
        if (topology.HostOf(from) != host) reduced_elements_of_hosts_[host] += elements;
      });
    }
  }
}

}  // namespace tessera
