#pragma once

// A worker may start before its coordinator, as when a host or a service manager starts both: it dials until somebody
// listens, or the time is over.
//
//   auto stream = AwaitCoordinator(*dialer, io.provider->getTimer(), 60).wait(io.waitScope);

#include <kj/async-io.h>
#include <kj/timer.h>

#include "schemas/link/dialer.h"

namespace tessera {

inline constexpr double kJoinTimeoutS = 60;  // docs/limits.md: join_timeout

// Dial's errors (dialer.h): Unavailable, nobody listens, after timeout_s, and all others at once, as waiting mends none
// of them. A line goes to the log when it begins to wait. Both outlive the promise.
kj::Promise<kj::Own<kj::AsyncIoStream>> AwaitCoordinator(Dialer& dialer, kj::Timer& timer, double timeout_s);

}  // namespace tessera
