#pragma once

// Metrics: counters of a coordinator, by tenant, kept as things happen. The state machine adds to them and never looks
// at them. A copy of all of them is a Prometheus scrape's (rpc/metrics_text.h).
//
//   TenantMetrics& tenant = metrics.Of("vision");   // the same object for as long as the coordinator lives
//   tenant.AddOp("matmul", 0.003);
//
// Beyond max_metric_tenants tenants the rest is "other".

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "schemas/types/ids.h"
#include "schemas/types/streams.h"

namespace tessera {

inline constexpr size_t kMaxMetricTenants = 200;  // docs/limits.md: max_metric_tenants

// Seconds.
class SecondsHistogram {
 public:
  static constexpr std::array<double, 12> kBounds = {1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1, 3, 10, 30};

  void Add(double seconds) {
    size_t bucket = 0;
    while (bucket < kBounds.size() && seconds > kBounds[bucket]) ++bucket;
    ++counts_[bucket];
    sum_ += seconds;
  }
  // By bucket, not added up; the last one is what is above all bounds.
  const std::array<uint64_t, kBounds.size() + 1>& counts() const { return counts_; }
  double sum() const { return sum_; }

 private:
  std::array<uint64_t, kBounds.size() + 1> counts_ = {};
  double sum_ = 0;
};

struct TenantMetrics {
  absl::flat_hash_map<std::string_view, uint64_t> ops;     // that ended, by name, which the catalog has
  std::map<absl::StatusCode, uint64_t> failed;             // of them
  std::map<absl::StatusCode, uint64_t> refused;            // calls that were not issued
  SecondsHistogram op_seconds;                             // from issue to the last worker's report
  SecondsHistogram wait_seconds;                           // from a batch's coming until all of it was taken up
  std::vector<std::array<int64_t, kLaneCount>> device_ns;  // by worker
  int64_t uploaded_bytes = 0;
  int64_t downloaded_bytes = 0;

  void AddOp(std::string_view name, const absl::Status& status, double seconds) {
    ++ops[name];
    op_seconds.Add(seconds);
    if (!status.ok()) ++failed[status.code()];
  }
  void AddDeviceTime(WorkerIndex worker, Lane lane, int64_t busy_ns) {
    const auto at = static_cast<size_t>(worker.value);
    if (device_ns.size() <= at) device_ns.resize(at + 1);
    device_ns[at][static_cast<size_t>(lane)] += busy_ns;
  }
};

class Metrics {
 public:
  TenantMetrics& Of(const std::string& tenant) {
    const auto known = tenants_.find(tenant);
    if (known != tenants_.end()) return known->second;
    return tenants_[tenants_.size() < kMaxMetricTenants ? tenant : "other"];
  }
  // Under which name the tenant's are kept.
  std::string NameOf(const std::string& tenant) const { return tenants_.contains(tenant) ? tenant : "other"; }
  const std::map<std::string, TenantMetrics>& tenants() const { return tenants_; }

 private:
  std::map<std::string, TenantMetrics> tenants_;
};

}  // namespace tessera
