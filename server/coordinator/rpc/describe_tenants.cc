#include <algorithm>

#include "server/coordinator/rpc/describe.h"
#include "server/coordinator/rpc/tenants_codec.h"

namespace tessera {

void DescribeTenants(const Hub& hub, const StatusView& view, wire::Session::TenantsResults::Builder builder) {
  const StateMachine& machine = hub.machine();
  std::vector<const TenantEntry*> shown;
  for (const TenantEntry* tenant : machine.tenants().all()) {
    const bool is_own = machine.sessions().at(view.asking).tenant == tenant;
    const bool is_there = !tenant->is_removed || tenant->sessions > 0;
    if (is_own || (view.role == Role::kAdmin && is_there)) shown.push_back(tenant);
  }
  std::sort(shown.begin(), shown.end(),
            [](const TenantEntry* a, const TenantEntry* b) { return a->limits.name < b->limits.name; });
  auto list = builder.initTenants(static_cast<unsigned>(shown.size()));
  for (unsigned i = 0; i < shown.size(); ++i) {
    const TenantEntry& tenant = *shown[i];
    auto info = list[i];
    EncodeTenantLimits(tenant.limits, info.initLimits());
    const auto most = std::max_element(tenant.used_bytes.begin(), tenant.used_bytes.end());
    info.setUsedBytes(most == tenant.used_bytes.end() ? 0 : *most);
    info.setSpilledBytes(tenant.spilled_bytes);
    info.setSessions(static_cast<uint64_t>(tenant.sessions));
    info.setConnections(static_cast<uint64_t>(hub.tenants_edge().ConnectionsOf(tenant.limits.name)));
    info.setQueued(static_cast<uint64_t>(machine.QueuedBy(tenant)));
    info.setDeviceSeconds(static_cast<double>(tenant.device_ns) * 1e-9);
    info.setRemoved(tenant.is_removed);
  }
}

void DescribeDrain(const DrainState& state, wire::DrainReport::Builder builder) {
  builder.setPhase(static_cast<wire::DrainReport::Phase>(state.phase));
  builder.setTensors(state.tensors);
  builder.setBytes(state.bytes);
  builder.setOutstanding(state.outstanding);
  builder.setWhy(state.why.c_str());
  auto list = builder.initLosses(static_cast<unsigned>(state.losses.size()));
  for (unsigned i = 0; i < list.size(); ++i) {
    const DrainState::Loss& loss = state.losses[i];
    list[i].setSession(loss.session.value);
    list[i].setTenant(loss.tenant.c_str());
    list[i].setName(loss.name.c_str());
    list[i].setTensors(loss.tensors);
    list[i].setBytes(loss.bytes);
  }
}

}  // namespace tessera
