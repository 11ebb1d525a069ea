#include "server/plan/movement/worker_hosts.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

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

WorkerHosts HostsAmong(const WorkerHosts& hosts, const Mesh& source, const Mesh& destination) {
  constexpr int32_t kElsewhere = -1;
  if (!hosts.several()) return hosts;
  std::vector<int32_t> among;
  absl::flat_hash_set<int32_t> different;
  size_t workers = 0;
  for (const Mesh* mesh : {&source, &destination}) {
    for (const WorkerIndex worker : mesh->workers()) {
      const size_t index = static_cast<size_t>(worker.value);
      if (index >= among.size()) among.resize(index + 1, kElsewhere);
      if (among[index] == kElsewhere) ++workers;
      among[index] = hosts.HostOf(worker);
      different.insert(among[index]);
    }
  }
  if (different.size() <= 1 || different.size() == workers) return WorkerHosts();
  WorkerHosts made(among);
  return made == hosts ? hosts : made;  // one list for all, where all are in it
}

}  // namespace tessera
