#pragma once

// TenantTable: the tenants of a pool as the state machine knows them, with what each has: bytes of each worker,
// sessions, device time. Not thread-safe; bookkeeping alone.
//
// The law: the bytes charged to a tenant on a worker are those of its live buffers there, rounded up as MemoryMap
// rounds them. A charge is refused when it goes above the tenant's memory.max, or takes what memory.guaranteed promises
// to others. A limit that is lowered below the use takes nothing away: the next charge is refused.
//
//   TenantTable tenants;
//   tenants.Change({{.name = "a", .max_bytes = 4096}, {.name = "b", .guaranteed_bytes = 8192}});
//   tenants.Charge(tenants.Of("a"), {WorkerIndex(0)}, 8192, memory, "zeros");   // ResourceExhausted

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "schemas/types/ids.h"
#include "server/coordinator/memory_map.h"
#include "server/coordinator/tenants/device_share.h"
#include "server/coordinator/tenants/tenant_limits.h"

namespace tessera {

struct TenantEntry {
  TenantLimits limits;
  int32_t number = 0;
  // The file named it, and names it no more: its sessions go on until they end, and take no new memory.
  bool is_removed = false;
  int64_t sessions = 0;
  int64_t spilled_bytes = 0;        // in files, on each worker at most
  int64_t device_ns = 0;            // that its work took, summed over workers
  std::vector<int64_t> used_bytes;  // by worker; shorter where the rest is 0
  DeviceShare share;                // where it has a device_share

  int64_t UsedOn(WorkerIndex worker) const {
    const auto at = static_cast<size_t>(worker.value);
    return at < used_bytes.size() ? used_bytes[at] : 0;
  }
};

// ResourceExhausted where another one would be too many.
absl::Status CheckSessions(const TenantEntry& tenant);

class TenantTable {
 public:
  // One that nobody has listed has no limits, and weight 1.
  TenantEntry& Of(std::string_view name);
  TenantEntry& at(int32_t number) { return *by_number_[static_cast<size_t>(number)]; }
  const TenantEntry& at(int32_t number) const { return *by_number_[static_cast<size_t>(number)]; }
  // By their numbers.
  const std::vector<TenantEntry*>& all() const { return by_number_; }

  // These are listed from now on. One that was listed and isn't is removed; the default one never is.
  void Change(const std::vector<TenantLimits>& listed);
  // As Change would take them, in the order of their names.
  std::vector<TenantLimits> Listed() const;

  // ResourceExhausted, with what is wanted, used, allowed and free, when a limit forbids it; else it is the tenant's.
  absl::Status Charge(TenantEntry& tenant, absl::Span<const WorkerIndex> workers, int64_t bytes,
                      const MemoryMap& memory, std::string_view op);
  void Return(TenantEntry& tenant, absl::Span<const WorkerIndex> workers, int64_t bytes, const MemoryMap& memory);
  // The most that Charge would let pass on each of the workers, whatever is free in one piece.
  int64_t HeadroomOf(const TenantEntry& tenant, absl::Span<const WorkerIndex> workers, const MemoryMap& memory) const;
  // Its memory went with it: nobody has any there.
  void ForgetWorker(WorkerIndex worker);

 private:
  friend class Snapshot;
  void Recount();
  void Add(TenantEntry& tenant, WorkerIndex worker, int64_t bytes);
  int64_t ReservedOn(WorkerIndex worker) const;

  std::map<std::string, std::unique_ptr<TenantEntry>, std::less<>> by_name_;
  std::vector<TenantEntry*> by_number_;
  std::map<std::string, bool> listed_;
  int64_t guaranteed_bytes_ = 0;  // of all tenants together, on each worker
  std::vector<int64_t> kept_;     // by worker: guaranteed bytes that their tenants use
};

}  // namespace tessera
