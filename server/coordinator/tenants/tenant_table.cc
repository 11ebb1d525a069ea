#include "server/coordinator/tenants/tenant_table.h"

#include <algorithm>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {

absl::Status CheckSessions(const TenantEntry& tenant) {
  if (tenant.sessions < tenant.limits.max_sessions) return absl::OkStatus();
  return absl::ResourceExhaustedError(StrCat("connect: ", tenant.sessions, " sessions of tenant \"",
                                             Printable(tenant.limits.name), "\" are open, its sessions is ",
                                             tenant.limits.max_sessions));
}

TenantEntry& TenantTable::Of(std::string_view name) {
  const auto found = by_name_.find(name);
  if (found != by_name_.end()) return *found->second;
  auto made = std::make_unique<TenantEntry>();
  made->limits.name = std::string(name);
  made->number = static_cast<int32_t>(by_number_.size());
  by_number_.push_back(made.get());
  return *by_name_.emplace(std::string(name), std::move(made)).first->second;
}

void TenantTable::Change(const std::vector<TenantLimits>& listed) {
  std::map<std::string, bool> now;
  for (const TenantLimits& limits : listed) {
    TenantEntry& tenant = Of(limits.name);
    tenant.limits = limits;
    tenant.is_removed = false;
    now[limits.name] = true;
  }
  for (const auto& [name, was] : listed_) {
    if (now.contains(name)) continue;
    TenantEntry& gone = Of(name);
    gone.limits = TenantLimits{.name = name};
    gone.is_removed = name != kDefaultTenant;
  }
  listed_ = std::move(now);
  Recount();
}

std::vector<TenantLimits> TenantTable::Listed() const {
  std::vector<TenantLimits> listed;
  for (const auto& [name, is] : listed_) listed.push_back(by_name_.at(name)->limits);
  return listed;
}

void TenantTable::Recount() {
  guaranteed_bytes_ = 0;
  kept_.clear();
  for (const TenantEntry* tenant : by_number_) {
    guaranteed_bytes_ += tenant->limits.guaranteed_bytes;
    kept_.resize(std::max(kept_.size(), tenant->used_bytes.size()));
    for (size_t w = 0; w < tenant->used_bytes.size(); ++w) {
      kept_[w] += std::min(tenant->used_bytes[w], tenant->limits.guaranteed_bytes);
    }
  }
}

// Guaranteed bytes of a worker that nobody uses: its tenants may come for them.
int64_t TenantTable::ReservedOn(WorkerIndex worker) const {
  const auto at = static_cast<size_t>(worker.value);
  return guaranteed_bytes_ - (at < kept_.size() ? kept_[at] : 0);
}

int64_t TenantTable::HeadroomOf(const TenantEntry& tenant, absl::Span<const WorkerIndex> workers,
                                const MemoryMap& memory) const {
  int64_t headroom = tenant.is_removed ? 0 : kUnlimited;
  for (const WorkerIndex worker : workers) {
    const int64_t used = tenant.UsedOn(worker);
    const int64_t own = std::max<int64_t>(0, tenant.limits.guaranteed_bytes - used);
    const int64_t free = memory.TotalBytes(worker) - memory.UsedBytes(worker);
    const int64_t allowed = tenant.limits.max_bytes == kUnlimited ? kUnlimited : tenant.limits.max_bytes - used;
    headroom = std::min({headroom, allowed, free - (ReservedOn(worker) - own)});
  }
  return std::max<int64_t>(0, headroom);
}

absl::Status TenantTable::Charge(TenantEntry& tenant, absl::Span<const WorkerIndex> workers, int64_t bytes,
                                 const MemoryMap& memory, std::string_view op) {
  const int64_t size = memory.RoundUp(bytes);
  if (size <= 0 || workers.empty()) return absl::OkStatus();
  if (tenant.is_removed) {
    return absl::ResourceExhaustedError(StrCat(op, ": tenant \"", Printable(tenant.limits.name),
                                               "\" is no more in the tenants file: its sessions take no "
                                               "new memory, and ",
                                               bytes, " bytes are wanted on each of ", workers.size(), " workers"));
  }
  const bool is_limited = tenant.limits.max_bytes != kUnlimited || guaranteed_bytes_ > 0;
  for (const WorkerIndex worker : is_limited ? workers : absl::Span<const WorkerIndex>()) {
    const int64_t used = tenant.UsedOn(worker);
    const int64_t free = memory.TotalBytes(worker) - memory.UsedBytes(worker);
    const int64_t own = std::max<int64_t>(0, tenant.limits.guaranteed_bytes - used);
    const int64_t reserved = ReservedOn(worker) - own;
    const auto wanted = [&](std::string_view why) {
      return StrCat(op, ": ", why, ": ", bytes, " bytes wanted on each of ", workers.size(), " workers; tenant \"",
                    Printable(tenant.limits.name), "\" uses ", used, " of worker ", worker.value);
    };
    if (tenant.limits.max_bytes != kUnlimited && size > tenant.limits.max_bytes - used) {
      return absl::ResourceExhaustedError(StrCat(wanted("is above the tenant's memory.max"), ", its memory.max is ",
                                                 tenant.limits.max_bytes, "; ", free, " bytes are free there"));
    }
    // Where it is full, that is said by the memory map.
    if (size <= free && size > free - reserved) {
      return absl::ResourceExhaustedError(StrCat(wanted("would take what is guaranteed to others"), ", where ", free,
                                                 " bytes are free and ", reserved,
                                                 " of them are guaranteed to other tenants"));
    }
  }
  for (const WorkerIndex worker : workers) Add(tenant, worker, size);
  return absl::OkStatus();
}

void TenantTable::Return(TenantEntry& tenant, absl::Span<const WorkerIndex> workers, int64_t bytes,
                         const MemoryMap& memory) {
  const int64_t size = memory.RoundUp(bytes);
  if (size <= 0) return;
  for (const WorkerIndex worker : workers) {
    if (memory.Knows(worker)) Add(tenant, worker, -size);
  }
}

void TenantTable::Add(TenantEntry& tenant, WorkerIndex worker, int64_t bytes) {
  const auto at = static_cast<size_t>(worker.value);
  if (tenant.used_bytes.size() <= at) tenant.used_bytes.resize(at + 1);
  int64_t& used = tenant.used_bytes[at];
  if (tenant.limits.guaranteed_bytes > 0) {
    if (kept_.size() <= at) kept_.resize(at + 1);
    kept_[at] -= std::min(used, tenant.limits.guaranteed_bytes);
    kept_[at] += std::min(used + bytes, tenant.limits.guaranteed_bytes);
  }
  used += bytes;
}

void TenantTable::ForgetWorker(WorkerIndex worker) {
  const auto at = static_cast<size_t>(worker.value);
  for (TenantEntry* tenant : by_number_) {
    if (at < tenant->used_bytes.size()) tenant->used_bytes[at] = 0;
  }
  if (at < kept_.size()) kept_[at] = 0;
}

}  // namespace tessera
