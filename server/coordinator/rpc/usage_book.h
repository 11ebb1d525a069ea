#pragma once

// UsageBook: rows of the audit's usage table, from what the state machine counts for each session. A row has what was
// used since the session's row before, so the sum over any rows of it is what it used in their time.

#include <map>
#include <vector>

#include "server/coordinator/rpc/audit.h"
#include "server/coordinator/state_machine.h"

namespace tessera {

class UsageBook {
 public:
  // A former process's rows have the use of its sessions.
  void Begin(const StateMachine& machine);
  // The rows of all sessions that used or hold something. Once a minute.
  std::vector<UsageRow> Minute(const StateMachine& machine);
  // The last row of a session; none where nothing is to tell.
  std::vector<UsageRow> Last(const EndSession& end);

 private:
  std::map<SessionId, SessionUsage> told_;
};

}  // namespace tessera
