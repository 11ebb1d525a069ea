#pragma once

// WorkerHosts: which workers share a host, as far as a plan must know it. A value; copies share the list.
//
//   WorkerHosts({3, 3, 7, 7}) == WorkerHosts({0, 0, 1, 1}): hosts are numbered as they come, by worker index.
//   WorkerHosts({2, 2, 2}) == WorkerHosts(): all on one host, so there is nothing to know.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "schemas/types/ids.h"
#include "schemas/types/mesh.h"

namespace tessera {

class WorkerHosts {
 public:
  WorkerHosts() = default;
  // By worker index; numbers of any kind.
  explicit WorkerHosts(absl::Span<const int32_t> host_of_worker);

  bool several() const { return hosts_ != nullptr; }
  // 0 for a worker that is not listed.
  int32_t HostOf(WorkerIndex worker) const {
    const size_t index = static_cast<size_t>(worker.value);
    return hosts_ != nullptr && index < hosts_->size() ? (*hosts_)[index] : 0;
  }
  // By worker index; empty when all share one host.
  absl::Span<const int32_t> list() const {
    return hosts_ == nullptr ? absl::Span<const int32_t>() : absl::Span<const int32_t>(*hosts_);
  }
  bool operator==(const WorkerHosts& other) const { return hosts_ == other.hosts_ || list() == other.list(); }

 private:
  std::shared_ptr<const std::vector<int32_t>> hosts_;  // never changed
};

// The hosts as an exchange between these meshes knows them, whoever else is in its plan: none where its workers are on
// one host, or each on its own, so that nobody is nearer than others.
WorkerHosts HostsAmong(const WorkerHosts& hosts, const Mesh& source, const Mesh& destination);

}  // namespace tessera
