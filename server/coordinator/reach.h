#pragma once

// Whether two workers can exchange anything: by memory that both map, or by messages of a kind that both have. Workers
// that can't are never in one cluster: the one that comes second is refused.

#include "absl/status/status.h"
#include "server/coordinator/events.h"

namespace tessera {

// FailedPrecondition: they reach each other in no way; names both, and what to start them with. Workers of one host
// with different devices are in no mesh together, and need no way.
absl::Status CheckReach(const WorkerJoinedEvent& comer, const WorkerJoinedEvent& there);

}  // namespace tessera
