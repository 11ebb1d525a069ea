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
    int64_t spilled_bytes = 0;
    int64_t spilled_to_host_bytes = 0;
    int64_t total_bytes = 0;
    int64_t received_bytes = 0;  // from other workers
    std::array<int64_t, kLaneCount> outstanding = {};
    bool is_cordoned = false;
    bool is_draining = false;
    int64_t done_us = 0;  // when it reported something last, by the machine's clock
  };
  // A tenant's sessions that are there, with a client and without.
  struct Sessions {
    int64_t connected = 0;
    int64_t detached = 0;
    int64_t pending_records = 0;
  };
  // A tenant that is here, or several of them as "other".
  struct Tenant {
    int64_t weight = 0;
    std::vector<int64_t> used_bytes;  // by worker
    int64_t spilled_bytes = 0;
    int64_t guaranteed_bytes = 0;  // of each worker
    int64_t max_bytes = -1;        // -1: none
    int64_t device_ns = 0;
  };
  // A session, of those that hold the most.
  struct Holder {
    SessionId session;
    std::string tenant;
    std::string name;
    std::string client;
    uint64_t tensors = 0;
    int64_t bytes = 0;  // on each worker, at most
    int64_t queued = 0;
    bool is_connected = false;
  };
  int64_t now_us = 0;
  double uptime_s = 0;
  double loop_s = 0;  // that the coordinator's own work took
  std::string version;
  std::vector<Worker> workers;
  std::map<std::string, Sessions> sessions;  // by tenant
  std::map<std::string, TenantMetrics> tenants;
  std::map<std::string, Tenant> shares;  // by the names of `tenants`
  std::vector<Holder> holders;           // kMaxHolders at most, the one with the most bytes first
  uint64_t session_count = 0;
  uint64_t dropped_audit = 0;
  uint64_t plans_found = 0;
  uint64_t plans_made = 0;
};

inline constexpr size_t kMaxHolders = 50;  // docs/limits.md: max_holders
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
