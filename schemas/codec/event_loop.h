#pragma once

// RunLoop: a KJ event loop that doesn't sleep at once. For a short while after something happened it polls,
// giving its core to whoever wants it between two looks: the next message of a conversation then costs no
// wake-up, which on a virtual machine is most of a round trip.

#include <cstdint>

#include <kj/async-io.h>

namespace tessera {

// docs/limits.md: loop_poll. Of polling after the last event.
inline constexpr int64_t kLoopPollNs = 50'000;

// Runs the loop of this thread until the promise is resolved; throws what it was rejected with.
void RunLoop(kj::Promise<void> until, kj::AsyncIoContext& io);

}  // namespace tessera
