// The hub's part of tenants: a file that was read, and limits that an admin changes.

#include <spdlog/spdlog.h>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/hub.h"

namespace tessera {

void Hub::SetTenants(TenantsFile file) {
  spdlog::info("the tenants file has {} tenants and {} tokens", file.tenants.size(), file.tokens.size());
  Record({.verb = "tenants-file",
          .object = StrCat(file.tenants.size(), " tenants, ", file.tokens.size(), " tokens"),
          .decision = "allowed"});
  tenants_edge_.Change(std::move(file.tokens));
  Apply(TenantsChangedEvent{std::move(file.tenants)});
}

absl::Status Hub::SetLimitByAdmin(const std::string& tenant, const std::string& key, const std::string& value,
                                  SessionId by) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<TenantLimits> listed, WithLimit(machine_.tenants(), tenant, key, value));
  spdlog::info("tenant \"{}\": the admin of session {} sets {} to {}", Printable(tenant, kMaxLogChars), by.value,
               Printable(key, kMaxLogChars), Printable(value, kMaxLogChars));
  Apply(TenantsChangedEvent{std::move(listed)});
  return absl::OkStatus();
}

TenantLimits Hub::LimitsOf(const std::string& tenant) const {
  for (const TenantEntry* entry : machine_.tenants().all()) {
    if (entry->limits.name == tenant) return entry->limits;
  }
  return {};
}

}  // namespace tessera
