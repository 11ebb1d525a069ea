#pragma once

// MetricsText: what a Prometheus scrape of the coordinator reads (docs/operate.md has the table). Pure: a snapshot is
// taken on the coordinator's loop, and its text is made elsewhere.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/coordinator/metrics.h"
#include "server/coordinator/state_machine.h"

namespace tessera {

struct MetricsSnapshot {
  struct Worker {
    WorkerIndex index;
    WorkerState state = WorkerState::kAlive;
    int64_t used_bytes = 0;
    int64_t total_bytes = 0;
    int64_t received_bytes = 0;  // from other workers
    std::array<int64_t, kLaneCount> outstanding = {};
    int64_t done_us = 0;  // when it reported something last, by the machine's clock
  };
  // A tenant's sessions that are there, with a client and without.
  struct Sessions {
    int64_t connected = 0;
    int64_t detached = 0;
    int64_t pending_records = 0;
  };
  int64_t now_us = 0;
  double uptime_s = 0;
  double loop_s = 0;  // that the coordinator's own work took
  std::string version;
  std::vector<Worker> workers;
  std::map<std::string, Sessions> sessions;  // by tenant
  std::map<std::string, TenantMetrics> tenants;
  uint64_t plans_found = 0;
  uint64_t plans_made = 0;
};

MetricsSnapshot SnapshotOf(const StateMachine& machine);

// The text format, version 0.0.4. A tenant without a name is "default".
std::string MetricsText(const MetricsSnapshot& snapshot);

// Whether each worker that isn't lost has reported a piece of work of its device in the last kReadyWithinUs, and there
// is one at least; none is lost.
inline constexpr int64_t kReadyWithinUs = 10'000'000;  // docs/limits.md: ready_within
bool IsReady(const MetricsSnapshot& snapshot);
// {"ready":false,"workers":[{"worker":1,"state":"suspect","silent_s":12.5}]}: those that are the reason.
std::string ReadinessJson(const MetricsSnapshot& snapshot);

}  // namespace tessera
