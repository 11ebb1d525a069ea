#pragma once

// Limits of tenants <-> schemas/session.capnp, for the journal and for those who ask.

#include <vector>

#include "absl/status/statusor.h"
#include "schemas/session.capnp.h"
#include "server/coordinator/tenants/tenant_limits.h"

namespace tessera {

void EncodeTenantLimits(const TenantLimits& limits, wire::TenantLimits::Builder builder);
TenantLimits DecodeTenantLimits(wire::TenantLimits::Reader reader);
// InvalidArgument for limits that CheckTenants refuses.
absl::StatusOr<std::vector<TenantLimits>> DecodeTenants(capnp::List<wire::TenantLimits>::Reader list);

}  // namespace tessera
