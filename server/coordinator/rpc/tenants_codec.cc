#include "server/coordinator/rpc/tenants_codec.h"

#include "schemas/codec/values.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

int64_t ToWire(int64_t limit) { return limit == kUnlimited ? -1 : limit; }
int64_t FromWire(int64_t limit) { return limit == -1 ? kUnlimited : limit; }

}  // namespace

void EncodeTenantLimits(const TenantLimits& limits, wire::TenantLimits::Builder builder) {
  builder.setName(limits.name.c_str());
  builder.setWeight(limits.weight);
  builder.setGuaranteedBytes(limits.guaranteed_bytes);
  builder.setMaxBytes(ToWire(limits.max_bytes));
  builder.setMaxSessions(ToWire(limits.max_sessions));
  builder.setMaxConnections(ToWire(limits.max_connections));
  builder.setMaxSpilledBytes(ToWire(limits.max_spilled_bytes));
  builder.setMaxQueuedRecords(ToWire(limits.max_queued_records));
  builder.setDeviceSharePermille(ToWire(limits.max_device_permille));
  builder.setMaxDetachedBytes(ToWire(limits.max_detached_bytes));
  builder.setLanes(limits.lanes);
}

TenantLimits DecodeTenantLimits(wire::TenantLimits::Reader reader) {
  return {.name = TextOf(reader.getName()),
          .weight = reader.getWeight(),
          .guaranteed_bytes = reader.getGuaranteedBytes(),
          .max_bytes = FromWire(reader.getMaxBytes()),
          .max_sessions = FromWire(reader.getMaxSessions()),
          .max_connections = FromWire(reader.getMaxConnections()),
          .max_spilled_bytes = FromWire(reader.getMaxSpilledBytes()),
          .max_queued_records = FromWire(reader.getMaxQueuedRecords()),
          .max_device_permille = FromWire(reader.getDeviceSharePermille()),
          .max_detached_bytes = FromWire(reader.getMaxDetachedBytes()),
          .lanes = reader.getLanes()};
}

absl::StatusOr<std::vector<TenantLimits>> DecodeTenants(capnp::List<wire::TenantLimits>::Reader list) {
  if (list.size() > kMaxTenants) {
    return absl::InvalidArgumentError(StrCat(list.size(), " tenants; max_tenants is ", kMaxTenants));
  }
  std::vector<TenantLimits> tenants;
  for (const auto item : list) tenants.push_back(DecodeTenantLimits(item));
  TESSERA_RETURN_IF_ERROR(CheckTenants(tenants));
  return tenants;
}

}  // namespace tessera
