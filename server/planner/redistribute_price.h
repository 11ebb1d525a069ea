#pragma once

// RedistributePrice: what a redistribution costs, by worker and by host, without planning it. For grids (grids.h), of
// which many are priced.
//
//   f64[8,4] @ mesh(4) [S(0)] -> [R], workers 0 and 1 on one host, 2 and 3 on the other:
//   each worker receives 192 bytes, each host 128: elements that both workers want of the other host cross once.

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "schemas/types/tensor_spec.h"
#include "server/plan/cost.h"

namespace tessera {

// The workers of a mesh that are on each host.
using HostWorkers = std::map<int32_t, std::vector<WorkerIndex>>;
HostWorkers WorkersByHost(const Mesh& mesh, const Topology& topology);

// Keeps references. Exact on meshes of up to 64 workers; on larger ones sums are what a formula says, and where a
// host's workers want more than 64 boxes some stand for all.
class RedistributePrice {
 public:
  RedistributePrice(const TensorSpec& source, const TensorSpec& destination, const Topology& topology);

  // Bytes that the worker takes from others.
  int64_t ReceivedBy(WorkerIndex worker) const;
  // Bytes that `takers`, workers of one host, want and have not on their host, each once. `holders`: of the source's
  // workers those on the host.
  int64_t ReceivedByHost(int32_t host, absl::Span<const WorkerIndex> takers,
                         absl::Span<const WorkerIndex> holders) const;

 private:
  struct HeldBox {
    Box box;
    Position term;  // coordinates on pending mesh dims; of others 0
    bool operator==(const HeldBox&) const = default;
  };
  // The boxes that the workers have, each different one once.
  static std::vector<HeldBox> BoxesOf(const TensorSpec& spec, absl::Span<const WorkerIndex> workers);
  static std::pair<std::vector<HeldBox>, double> SampleOf(std::vector<HeldBox> boxes);
  void ReduceExactly(const Topology& topology);
  int64_t ReducedByHost(absl::Span<const HeldBox> wanted, absl::Span<const HeldBox> held, size_t takers) const;

  const TensorSpec& source_;
  const TensorSpec& destination_;
  int64_t terms_;
  // For sums: elements by the destination's flat position, and what comes to each host from others. Empty: a formula
  // says it.
  std::vector<int64_t> reduced_elements_;
  std::map<int32_t, int64_t> reduced_elements_of_hosts_;
};

}  // namespace tessera
