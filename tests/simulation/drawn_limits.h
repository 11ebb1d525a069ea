#pragma once

// The limits of a tenant, as a simulation draws them.

#include <algorithm>
#include <string>
#include <utility>

#include "server/coordinator/tenants/tenant_limits.h"
#include "tests/simulation/generator.h"

namespace tessera {

inline TenantLimits DrawLimits(std::string name, Generator& random) {
  TenantLimits limits{.name = std::move(name)};
  limits.weight = random.Between(1, 5);
  if (random.OneIn(2)) limits.max_bytes = random.Between(1, 96) << 10;
  if (random.OneIn(3)) limits.guaranteed_bytes = std::min(limits.max_bytes, random.Between(1, 32) << 10);
  if (random.OneIn(6)) limits.max_queued_records = random.Between(4, 100);
  // Not so little that work would wait for longer than a run settles.
  if (random.OneIn(4)) limits.max_device_permille = random.Between(100, 1000);
  if (random.OneIn(10)) limits.max_detached_bytes = random.Between(0, 48) << 10;
  limits.lanes = random.Between(kLanesAuto, kLanesBatch);
  return limits;
}

}  // namespace tessera
