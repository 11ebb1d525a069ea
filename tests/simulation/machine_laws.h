#pragma once

// Laws of the state machine that hold at any time, after any events.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/coordinator/config.h"
#include "server/coordinator/state_machine.h"

namespace tessera {

// No byte of a worker is in two buffers of tensors that aren't lost.
absl::Status CheckBuffers(const StateMachine& machine);
// No op was issued for a tensor in files (StateMachine::Issue refuses it by an internal error).
absl::Status CheckAwaited(const SessionEvent& event);
// When all sessions are closed: no op, no group and no byte of memory.
absl::Status CheckNothingIsLeft(const StateMachine& machine);

void AddTexts(const Effects& effects, std::vector<std::string>& texts);
// The events, which a machine was given at these times, lead another one to the same effects.
absl::Status CheckReplay(const CoordinatorConfig& config, const std::vector<std::pair<int64_t, Event>>& events,
                         const std::vector<std::string>& texts);

}  // namespace tessera
