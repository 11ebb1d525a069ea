#pragma once

// Laws of the state machine that hold at any time, after any events.

#include "absl/status/status.h"
#include "server/coordinator/state_machine.h"

namespace tessera {

// No byte of a worker is in two buffers of tensors that aren't lost.
absl::Status CheckBuffers(const StateMachine& machine);
// When all sessions are closed: no op, no group and no byte of memory.
absl::Status CheckNothingIsLeft(const StateMachine& machine);

}  // namespace tessera
