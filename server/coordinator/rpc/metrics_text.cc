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
  to.Begin("tessera_worker_state", "1 for the state that a worker is in.", MetricType::Gauge);
  for (const auto& worker : snapshot.workers) {
    for (const WorkerState state : {WorkerState::kAlive, WorkerState::kSuspect, WorkerState::kDead}) {
      to.Add({number(worker), {"state", NameOf(state)}}, worker.state == state ? 1 : 0);
    }
  }
  to.Begin("tessera_worker_memory_bytes", "A worker's arena: bytes that tensors have, and all.", MetricType::Gauge);
  for (const auto& worker : snapshot.workers) {
    to.Add({number(worker), {"state", "used"}}, static_cast<double>(worker.used_bytes));
    to.Add({number(worker), {"state", "total"}}, static_cast<double>(worker.total_bytes));
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
    for (size_t lane = 0; lane < kLaneCount; ++lane) worker.outstanding[lane] = entry.windows.lanes[lane].outstanding;
    worker.done_us = entry.done_us;
  }
  for (const auto& [id, session] : machine.sessions()) {
    MetricsSnapshot::Sessions& sessions = snapshot.sessions[session.info.tenant];
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
