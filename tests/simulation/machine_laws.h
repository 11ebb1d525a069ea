#pragma once

// Laws of the state machine that hold at any time, after any events.

#include "absl/status/status.h"
#include "server/coordinator/state_machine.h"

namespace tessera {

// No byte of a worker is in two buffers of tensors that aren't lost.
absl::Status CheckBuffers(const StateMachine& machine);
// No op was issued for a tensor in files (StateMachine::Issue refuses it by an internal error).
absl::Status CheckAwaited(const SessionEvent& event);
// When all sessions are closed: no op, no group and no byte of memory.
absl::Status CheckNothingIsLeft(const StateMachine& machine);

}  // namespace tessera
