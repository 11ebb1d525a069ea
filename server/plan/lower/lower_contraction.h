#pragma once

// Lowering of a contraction: one worker's products as kernels whose inputs lie where they are. Used by
// LowerPlan alone.

#include "absl/status/status.h"
#include "server/plan/lower/chunks.h"
#include "server/plan/lower/program.h"
#include "server/plan/plan.h"

namespace tessera {

// Appends the phase's instructions and peers, and its messages to `drafts` unless that is null; lists may repeat a
// worker or a buffer.
absl::Status LowerContraction(const Plan& plan, const ContractStep& step, WorkerIndex worker, MessageDrafts* drafts,
                              Phase& phase);

}  // namespace tessera
