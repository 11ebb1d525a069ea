#pragma once

// The tenants file: tenants with their limits, and tokens, as an operator writes them (TOML). docs/tenants.md has a
// whole one.
//
//   [[tenant]]
//   name = "vision"
//   weight = 3
//   memory = { guaranteed = "2GiB", max = "8GiB" }
//   sessions = 20
//
//   [[token]]
//   id = "vision-2026"
//   sha256 = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8"
//   tenant = "vision"
//   expires = 2027-01-01
//
// It is read whole or not at all: a key that is none, a tenant or a token that is there twice, a number out of its
// range are errors, which name file, line and reason.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/coordinator/tenants/tenant_limits.h"
#include "server/coordinator/tenants/token_table.h"

namespace tessera {

inline constexpr size_t kMaxTenantsFileBytes = size_t{4} << 20;  // docs/limits.md: max_tenants_file_bytes

struct TenantsFile {
  std::vector<TenantLimits> tenants;
  std::vector<TokenEntry> tokens;
};

// InvalidArgument "tenants.toml:7: ...". `name` is for messages.
absl::StatusOr<TenantsFile> ParseTenants(std::string_view text, const std::string& name);
// NotFound, InvalidArgument for what is no file or is too large, else what ParseTenants says. Reads: not for an event
// loop.
absl::StatusOr<TenantsFile> ReadTenants(const std::string& path);

}  // namespace tessera
