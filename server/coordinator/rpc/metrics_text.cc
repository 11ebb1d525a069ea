#include "server/coordinator/rpc/metrics_text.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <nlohmann/json.hpp>

#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

constexpr double kNsToSeconds = 1e-9;
constexpr std::array<const char*, kLaneCount> kLaneNames = {"batch", "light"};

const char* NameOf(WorkerState state) {
  switch (state) {
    case WorkerState::kAlive: return "alive";
    case WorkerState::kSuspect: return "suspect";
    case WorkerState::kDead: return "lost";
  }
  return "unknown";
}

std::string TenantName(const std::string& tenant) { return tenant.empty() ? "default" : tenant; }
std::string CodeName(absl::StatusCode code) { return absl::StatusCodeToString(code); }

// Families in the order in which they were begun.
class Families {
 public:
  void Begin(std::string name, std::string help, MetricType type) {
    families_.push_back({std::move(name), std::move(help), type, {}});
  }
  void Add(Labels labels, double value) {
    ClientMetric& metric = families_.back().metric.emplace_back();
    metric.label = std::move(labels);
    (families_.back().type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  }
  void Add(Labels labels, const SecondsHistogram& histogram) {
    ClientMetric& metric = families_.back().metric.emplace_back();
    metric.label = std::move(labels);
    uint64_t count = 0;
    for (size_t b = 0; b < histogram.counts().size(); ++b) {
      count += histogram.counts()[b];
      const bool is_last = b == SecondsHistogram::kBounds.size();
      metric.histogram.bucket.push_back(
          {count, is_last ? std::numeric_limits<double>::infinity() : SecondsHistogram::kBounds[b]});
    }
    metric.histogram.sample_count = count;
    metric.histogram.sample_sum = histogram.sum();
  }
  std::string Text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  std::vector<prometheus::MetricFamily> families_;
};

void AddTenants(const MetricsSnapshot& snapshot, Families& to) {
  const auto for_each = [&](const auto& add) {
    for (const auto& [tenant, metrics] : snapshot.tenants) add(TenantName(tenant), metrics);
  };
  to.Begin("tessera_ops_total", "Ops that ended, by the op's name.", MetricType::Counter);
  for_each([&](const std::string& tenant, const TenantMetrics& metrics) {
    const std::map<std::string_view, uint64_t> sorted(metrics.ops.begin(), metrics.ops.end());
    for (const auto& [op, count] : sorted) {
      to.Add({{"tenant", tenant}, {"op", std::string(op)}}, static_cast<double>(count));
    }
  });
  to.Begin("tessera_failed_total", "Ops that ended with an error, by its code.", MetricType::Counter);
  for_each([&](const std::string& tenant, const TenantMetrics& metrics) {
    for (const auto& [code, count] : metrics.failed) {
      to.Add({{"tenant", tenant}, {"code", CodeName(code)}}, static_cast<double>(count));
    }
  });
  to.Begin("tessera_refused_total", "Calls that were refused before anything ran, by the error's code.",
           MetricType::Counter);
  for_each([&](const std::string& tenant, const TenantMetrics& metrics) {
    for (const auto& [code, count] : metrics.refused) {
      to.Add({{"tenant", tenant}, {"why", CodeName(code)}}, static_cast<double>(count));
    }
  });
  to.Begin("tessera_op_seconds", "From an op's issue to the last worker's report.", MetricType::Histogram);
  for_each([&](const std::string& tenant, const TenantMetrics& metrics) {
    to.Add({{"tenant", tenant}}, metrics.op_seconds);
  });
  to.Begin("tessera_op_wait_seconds", "From a batch's coming until all of its records were taken up.",
           MetricType::Histogram);
  for_each([&](const std::string& tenant, const TenantMetrics& metrics) {
    to.Add({{"tenant", tenant}}, metrics.wait_seconds);
  });
  to.Begin("tessera_tenant_device_seconds_total", "Time for which a tenant's ops had a worker's device.",
           MetricType::Counter);
  for_each([&](const std::string& tenant, const TenantMetrics& metrics) {
    for (size_t worker = 0; worker < metrics.device_ns.size(); ++worker) {
      for (size_t lane = 0; lane < kLaneCount; ++lane) {
        to.Add({{"tenant", tenant}, {"worker", StrCat(worker)}, {"lane", kLaneNames[lane]}},
               static_cast<double>(metrics.device_ns[worker][lane]) * kNsToSeconds);
      }
    }
  });
  to.Begin("tessera_transferred_bytes_total", "Bytes between workers and clients or files.", MetricType::Counter);
  for_each([&](const std::string& tenant, const TenantMetrics& metrics) {
    to.Add({{"tenant", tenant}, {"kind", "upload"}}, static_cast<double>(metrics.uploaded_bytes));
    to.Add({{"tenant", tenant}, {"kind", "download"}}, static_cast<double>(metrics.downloaded_bytes));
  });
}

// A share of 1 is what the weights say; above it is more.
void AddShares(const MetricsSnapshot& snapshot, Families& to) {
  double all_weights = 0, all_ns = 0;
  for (const auto& [tenant, share] : snapshot.shares) {
    if (share.device_ns == 0) continue;
    all_weights += static_cast<double>(share.weight);
    all_ns += static_cast<double>(share.device_ns);
  }
  to.Begin("tessera_weighted_share", "A tenant's part of all device time over its part of the weights of who had any.",
           MetricType::Gauge);
  for (const auto& [tenant, share] : snapshot.shares) {
    const double weights = all_weights > 0 ? static_cast<double>(share.weight) / all_weights : 0;
    const double time = all_ns > 0 ? static_cast<double>(share.device_ns) / all_ns : 0;
    to.Add({{"tenant", TenantName(tenant)}}, weights > 0 ? time / weights : 0);
  }
  to.Begin("tessera_tenant_memory_bytes", "Bytes of a worker that a tenant's tensors have.", MetricType::Gauge);
  for (const auto& [tenant, share] : snapshot.shares) {
    for (size_t worker = 0; worker < share.used_bytes.size(); ++worker) {
      to.Add({{"tenant", TenantName(tenant)}, {"worker", StrCat(worker)}, {"state", "resident"}},
             static_cast<double>(share.used_bytes[worker]));
    }
  }
  to.Begin("tessera_spilled_bytes", "Bytes of a tenant in files of a worker, at most.", MetricType::Gauge);
  for (const auto& [tenant, share] : snapshot.shares) {
    to.Add({{"tenant", TenantName(tenant)}}, static_cast<double>(share.spilled_bytes));
  }
  to.Begin("tessera_tenant_quota_bytes", "Bytes of each worker that a tenant was given.", MetricType::Gauge);
  for (const auto& [tenant, share] : snapshot.shares) {
    to.Add({{"tenant", TenantName(tenant)}, {"bound", "guaranteed"}}, static_cast<double>(share.guaranteed_bytes));
    to.Add({{"tenant", TenantName(tenant)}, {"bound", "max"}},
           share.max_bytes < 0 ? std::numeric_limits<double>::infinity() : static_cast<double>(share.max_bytes));
  }
}

void AddSessions(const MetricsSnapshot& snapshot, Families& to) {
  to.Begin("tessera_sessions", "Sessions, by whether a client is connected.", MetricType::Gauge);
  for (const auto& [tenant, sessions] : snapshot.sessions) {
    to.Add({{"tenant", TenantName(tenant)}, {"connected", "true"}}, static_cast<double>(sessions.connected));
    to.Add({{"tenant", TenantName(tenant)}, {"connected", "false"}}, static_cast<double>(sessions.detached));
  }
  to.Begin("tessera_pending_records", "Records that wait in sessions' queues.", MetricType::Gauge);
  for (const auto& [tenant, sessions] : snapshot.sessions) {
    to.Add({{"tenant", TenantName(tenant)}}, static_cast<double>(sessions.pending_records));
  }
}

void AddWorkers(const MetricsSnapshot& snapshot, Families& to) {
  const auto number = [](const MetricsSnapshot::Worker& worker) {
    return ClientMetric::Label{"worker", StrCat(worker.index.value)};
  };
  to.Begin("tessera_worker_state", "1 for each state that a worker is in.", MetricType::Gauge);
  for (const auto& worker : snapshot.workers) {
    for (const WorkerState state : {WorkerState::kAlive, WorkerState::kSuspect, WorkerState::kDead}) {
      to.Add({number(worker), {"state", NameOf(state)}}, worker.state == state ? 1 : 0);
    }
    to.Add({number(worker), {"state", "cordoned"}}, worker.is_cordoned ? 1 : 0);
    to.Add({number(worker), {"state", "draining"}}, worker.is_draining ? 1 : 0);
  }
  to.Begin("tessera_worker_memory_bytes", "A worker's arena: bytes that tensors have, and all.", MetricType::Gauge);
  for (const auto& worker : snapshot.workers) {
    to.Add({number(worker), {"state", "used"}}, static_cast<double>(worker.used_bytes));
    to.Add({number(worker), {"state", "total"}}, static_cast<double>(worker.total_bytes));
    to.Add({number(worker), {"state", "spilled"}}, static_cast<double>(worker.spilled_bytes));
    to.Add({number(worker), {"state", "spilled_to_host"}}, static_cast<double>(worker.spilled_to_host_bytes));
  }
  to.Begin("tessera_worker_outstanding", "Instructions issued to a worker and not reported.", MetricType::Gauge);
  for (const auto& worker : snapshot.workers) {
    for (size_t lane = 0; lane < kLaneCount; ++lane) {
      to.Add({number(worker), {"lane", kLaneNames[lane]}}, static_cast<double>(worker.outstanding[lane]));
    }
  }
  to.Begin("tessera_moved_bytes_total", "Bytes that a worker received from others.", MetricType::Counter);
  for (const auto& worker : snapshot.workers) to.Add({number(worker)}, static_cast<double>(worker.received_bytes));
}

}  // namespace

namespace {

// Beyond the tenants that metrics tell apart all are one.
std::string ShownName(const Metrics& metrics, const std::string& tenant) {
  return metrics.tenants().size() < kMaxMetricTenants ? tenant : metrics.NameOf(tenant);
}

void AddShares(const StateMachine& machine, MetricsSnapshot& snapshot) {
  for (const TenantEntry* entry : machine.tenants().all()) {
    if (entry->is_removed && entry->sessions == 0) continue;
    const TenantLimits& limits = entry->limits;
    std::string name = ShownName(machine.metrics(), limits.name);
    if (snapshot.shares.size() >= kMaxMetricTenants && !snapshot.shares.contains(name)) name = "other";
    const bool is_first = !snapshot.shares.contains(name);
    MetricsSnapshot::Tenant& share = snapshot.shares[name];
    share.weight += limits.weight;
    share.device_ns += entry->device_ns;
    share.spilled_bytes += entry->spilled_bytes;
    share.guaranteed_bytes += limits.guaranteed_bytes;
    const bool is_limited = limits.max_bytes != kUnlimited && (is_first || share.max_bytes >= 0);
    share.max_bytes = is_limited ? std::max<int64_t>(0, share.max_bytes) + limits.max_bytes : -1;
    if (share.used_bytes.size() < entry->used_bytes.size()) share.used_bytes.resize(entry->used_bytes.size());
    for (size_t worker = 0; worker < entry->used_bytes.size(); ++worker) {
      share.used_bytes[worker] += entry->used_bytes[worker];
    }
  }
}

void AddHolders(const StateMachine& machine, MetricsSnapshot& snapshot) {
  std::vector<const SessionEntry*> all;
  for (const auto& [id, session] : machine.sessions()) all.push_back(&session);
  const size_t shown = std::min(all.size(), kMaxHolders);
  std::partial_sort(all.begin(), all.begin() + static_cast<ptrdiff_t>(shown), all.end(),
                    [](const SessionEntry* a, const SessionEntry* b) {
                      return a->bytes != b->bytes ? a->bytes > b->bytes : a->info.session < b->info.session;
                    });
  for (size_t i = 0; i < shown; ++i) {
    const SessionEntry& session = *all[i];
    snapshot.holders.push_back({session.info.session, session.info.tenant, session.info.name, session.info.client,
                                session.tensors.size(), session.bytes, session.queue_weight, session.connected});
  }
  snapshot.session_count = all.size();
}

}  // namespace

MetricsSnapshot SnapshotOf(const StateMachine& machine) {
  MetricsSnapshot snapshot;
  snapshot.now_us = machine.now_us();
  for (const auto& [index, entry] : machine.workers()) {
    MetricsSnapshot::Worker& worker = snapshot.workers.emplace_back();
    worker.index = index;
    worker.state = entry.state;
    worker.used_bytes = machine.memory().UsedBytes(index);
    worker.total_bytes = machine.memory().TotalBytes(index);
    worker.received_bytes = entry.received_bytes;
    worker.spilled_bytes = entry.spilled_bytes;
    worker.spilled_to_host_bytes = entry.spilled_to_host_bytes;
    for (size_t lane = 0; lane < kLaneCount; ++lane) worker.outstanding[lane] = entry.windows.lanes[lane].outstanding;
    worker.done_us = entry.done_us;
    worker.is_cordoned = entry.newest_admitted != SessionId();
    worker.is_draining = entry.admits == Admits::kNobody;
  }
  AddShares(machine, snapshot);
  AddHolders(machine, snapshot);
  for (const auto& [id, session] : machine.sessions()) {
    MetricsSnapshot::Sessions& sessions = snapshot.sessions[ShownName(machine.metrics(), session.info.tenant)];
    ++(session.connected ? sessions.connected : sessions.detached);
    sessions.pending_records += session.queue_weight;
  }
  snapshot.tenants = machine.metrics().tenants();
  snapshot.plans_found = machine.plans().hits();
  snapshot.plans_made = machine.plans().misses();
  return snapshot;
}

std::string MetricsText(const MetricsSnapshot& snapshot) {
  Families families;
  families.Begin("tessera_build_info", "The coordinator's version.", MetricType::Gauge);
  families.Add({{"version", snapshot.version}}, 1);
  families.Begin("tessera_has_leader", "1: this coordinator serves.", MetricType::Gauge);
  families.Add({}, 1);
  families.Begin("tessera_uptime_seconds", "Since the coordinator began.", MetricType::Gauge);
  families.Add({}, snapshot.uptime_s);
  families.Begin("tessera_loop_seconds_total", "Time for which the coordinator's loop worked on events.",
                 MetricType::Counter);
  families.Add({}, snapshot.loop_s);
  families.Begin("tessera_plans_total", "Plans that were asked for, by whether they had to be made.",
                 MetricType::Counter);
  families.Add({{"made", "false"}}, static_cast<double>(snapshot.plans_found));
  families.Add({{"made", "true"}}, static_cast<double>(snapshot.plans_made));
  AddWorkers(snapshot, families);
  AddSessions(snapshot, families);
  AddTenants(snapshot, families);
  AddShares(snapshot, families);
  families.Begin("tessera_audit_dropped_total", "Entries of the audit that were left out: its disk is full or slow.",
                 MetricType::Counter);
  families.Add({}, static_cast<double>(snapshot.dropped_audit));
  return families.Text();
}

namespace {

bool IsReady(const MetricsSnapshot::Worker& worker, int64_t now_us) {
  return worker.state != WorkerState::kDead && now_us - worker.done_us < kReadyWithinUs;
}

}  // namespace

bool IsReady(const MetricsSnapshot& snapshot) {
  return !snapshot.workers.empty() &&
         std::all_of(snapshot.workers.begin(), snapshot.workers.end(),
                     [&](const MetricsSnapshot::Worker& worker) { return IsReady(worker, snapshot.now_us); });
}

std::string ReadinessJson(const MetricsSnapshot& snapshot) {
  nlohmann::json json = {{"ready", IsReady(snapshot)}, {"workers", nlohmann::json::array()}};
  for (const MetricsSnapshot::Worker& worker : snapshot.workers) {
    if (IsReady(worker, snapshot.now_us)) continue;
    json["workers"].push_back({{"worker", worker.index.value},
                               {"state", NameOf(worker.state)},
                               {"silent_s", static_cast<double>(snapshot.now_us - worker.done_us) * 1e-6}});
  }
  return json.dump() + "\n";
}

}  // namespace tessera
