#include "server/plan/worker_hosts.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace tessera {

WorkerHosts::WorkerHosts(absl::Span<const int32_t> host_of_worker) {
  absl::flat_hash_map<int32_t, int32_t> numbers;
  std::vector<int32_t> hosts;
  hosts.reserve(host_of_worker.size());
  for (const int32_t host : host_of_worker) {
    hosts.push_back(numbers.emplace(host, static_cast<int32_t>(numbers.size())).first->second);
  }
  if (numbers.size() > 1) hosts_ = std::make_shared<const std::vector<int32_t>>(std::move(hosts));
}

}  // namespace tessera
