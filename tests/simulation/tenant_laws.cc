#include "tests/simulation/tenant_laws.h"

#include <algorithm>

#include "schemas/types/str_cat.h"

namespace tessera {

TenantLaws::Bytes TenantLaws::ChargedBy(const StateMachine& machine) {
  Bytes charged;
  for (const TenantEntry* tenant : machine.tenants().all()) {
    for (const auto& [index, worker] : machine.workers()) {
      charged[{tenant->limits.name, index}] = tenant->UsedOn(index);
    }
  }
  return charged;
}

TenantLaws::Bytes TenantLaws::HeldBy(const StateMachine& machine) const {
  Bytes held;
  std::set<std::pair<const BufferEntry*, WorkerIndex>> seen;
  const auto add = [&](const TensorEntry& tensor, const std::string& tenant) {
    if (tensor.buffer == nullptr || !tensor.status.ok()) return;
    if (machine.PlaceOf(tensor) == SpillPlace::kAway) return;  // in files, where no limit of memory counts it
    for (const WorkerIndex worker : *tensor.buffer->workers) {
      // A worker that was lost took its part along, and one that joined since has nothing of it.
      if (!Holds(machine.workers().at(worker), *tensor.buffer)) continue;
      if (!seen.insert({tensor.buffer.get(), worker}).second) continue;
      held[{tenant, worker}] += machine.memory().RoundUp(tensor.buffer->bytes);
    }
  };
  // A published tensor is its publisher's, whoever has it.
  for (const auto& [name, publication] : machine.publications().all()) {
    for (const auto& one : publication.tensors) add(*one.tensor, name.substr(0, name.find('/')));
  }
  for (const auto& [id, session] : machine.sessions()) {
    const auto tenant = tenant_of_.find(id);
    for (const auto& [handle, tensor] : session.tensors) {
      if (tenant == tenant_of_.end()) continue;
      const bool is_attached = tensor->buffer != nullptr && tensor->buffer->is_published;
      add(*tensor, is_attached ? tensor->buffer->tenant->limits.name : tenant->second);
    }
  }
  return held;
}

void TenantLaws::Changed(const StateMachine& machine, const std::vector<TenantLimits>& tenants) {
  max_bytes_.clear();
  max_detached_.clear();
  for (const TenantLimits& limits : tenants) {
    max_bytes_[limits.name] = limits.max_bytes;
    max_detached_[limits.name] = limits.max_detached_bytes;
  }
  for (const auto& [tenant, bytes] : DetachedBy(machine)) {
    int64_t& ceiling = detached_ceilings_[tenant];
    ceiling = std::max(ceiling, bytes);
  }
  for (const auto& [at, bytes] : ChargedBy(machine)) {
    int64_t& ceiling = ceilings_[at];
    ceiling = std::max(ceiling, bytes);
  }
}

absl::Status TenantLaws::Check(const StateMachine& machine) {
  const Bytes charged = ChargedBy(machine);
  for (const auto& [index, worker] : machine.workers()) {
    int64_t sum = 0;
    for (const auto& [at, bytes] : charged) sum += at.second == index ? bytes : 0;
    if (sum == machine.memory().UsedBytes(index)) continue;
    return absl::InternalError(StrCat("tenants are charged ", sum, " bytes of worker ", index.value, ", and ",
                                      machine.memory().UsedBytes(index), " are taken"));
  }
  for (const auto& [at, bytes] : HeldBy(machine)) {
    const auto found = charged.find(at);
    const int64_t own = found == charged.end() ? 0 : found->second;
    if (own >= bytes) continue;
    return absl::InternalError(StrCat("tenant ", at.first, " is charged ", own, " bytes of worker ", at.second.value,
                                      ", and its tensors have ", bytes));
  }
  for (const auto& [at, bytes] : charged) {
    const auto limit = max_bytes_.find(at.first);
    if (limit == max_bytes_.end() || limit->second == kUnlimited) continue;
    int64_t& ceiling = ceilings_[at];
    if (bytes > std::max(limit->second, ceiling)) {
      return absl::InternalError(StrCat("tenant ", at.first, " has ", bytes, " bytes of worker ", at.second.value,
                                        ", above its memory.max of ", limit->second));
    }
    ceiling = bytes > limit->second ? bytes : 0;
  }
  return CheckDetached(machine);
}

std::map<std::string, int64_t> TenantLaws::DetachedBy(const StateMachine& machine) {
  std::map<std::string, int64_t> detached;
  for (const auto& [id, session] : machine.sessions()) {
    detached[session.tenant->limits.name] += session.connected ? 0 : session.bytes;
  }
  return detached;
}

absl::Status TenantLaws::CheckDetached(const StateMachine& machine) {
  for (const auto& [tenant, bytes] : DetachedBy(machine)) {
    const auto limit = max_detached_.find(tenant);
    if (limit == max_detached_.end() || limit->second == kUnlimited) continue;
    int64_t& ceiling = detached_ceilings_[tenant];
    if (bytes > std::max(limit->second, ceiling)) {
      return absl::InternalError(StrCat("sessions of tenant ", tenant, " without a client have ", bytes,
                                        " bytes of each worker, above its detached of ", limit->second));
    }
    ceiling = bytes > limit->second ? bytes : 0;
  }
  return absl::OkStatus();
}

}  // namespace tessera
