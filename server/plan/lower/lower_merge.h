#pragma once

// Lowers local steps that read where others hold (merged_runs.h): one kernel, with an input for each run of a merge, or
// for each shard of a gather.

#include "server/plan/lower/chunks.h"
#include "server/plan/lower/program.h"
#include "server/plan/plan.h"

namespace tessera {

// Adds to the phase what `worker` merges, and who reads its own runs. `drafts`: null where no messages are wanted.
// `input_received_bytes` of a peer's run is what an element has: the kernel says how many it takes.
// Whether other steps are in its phase. A merge that is alone in its phase gets ranges of the runs by messages, where
// that is fewer bytes (merge_ranges.h).
enum class PhaseShare : uint8_t { kAlone = 0, kWithOthers = 1 };

// The same of a gather of shards that lie apart, for workers that map each other: it has no messages.
void LowerGather(const Plan& plan, const LocalStep& step, WorkerIndex worker, Phase& phase);

void LowerMerge(const Plan& plan, const LocalStep& step, WorkerIndex worker, PhaseShare share, MessageDrafts* drafts,
                Phase& phase);

}  // namespace tessera
