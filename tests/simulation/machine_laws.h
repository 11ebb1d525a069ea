#pragma once

// What is true of the state machine at any time, whatever it was told.

#include "absl/status/status.h"
#include "server/coordinator/state_machine.h"

namespace tessera {

// What tensors have that aren't lost: no byte of a worker is in two buffers.
absl::Status CheckBuffers(const StateMachine& machine);
// When all sessions are closed: no op, no group and no byte of memory.
absl::Status CheckNothingIsLeft(const StateMachine& machine);

}  // namespace tessera
