#pragma once

// The laws of tenants, as the simulation checks them after every event: all taken bytes of a worker are charged to its
// tenants, and no more; each tenant is charged at least for what its sessions' tensors have; nobody has more than
// memory.max, but for what it had when that was lowered; a tenant's sessions without a client have no more than its
// detached, but for what they had when that was lowered.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/coordinator/state_machine.h"

namespace tessera {

class TenantLaws {
 public:
  // The tenant of a session, as its client has it.
  void Opened(SessionId session, std::string tenant) { tenant_of_[session] = std::move(tenant); }
  // Limits that hold from the next Check on.
  void Changed(const StateMachine& machine, const std::vector<TenantLimits>& tenants);
  absl::Status Check(const StateMachine& machine);

 private:
  using Bytes = std::map<std::pair<std::string, WorkerIndex>, int64_t>;
  static Bytes ChargedBy(const StateMachine& machine);
  Bytes HeldBy(const StateMachine& machine) const;
  static std::map<std::string, int64_t> DetachedBy(const StateMachine& machine);
  absl::Status CheckDetached(const StateMachine& machine);

  std::map<SessionId, std::string> tenant_of_;
  std::map<std::string, int64_t> max_bytes_;
  std::map<std::string, int64_t> max_detached_, detached_ceilings_;
  Bytes ceilings_;  // what was above a limit when it was lowered, and has not gone below since
};

}  // namespace tessera
