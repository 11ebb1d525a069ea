#pragma once

// VerifyPlan proves, before a plan runs, that it means what it says: each output element is written
// exactly once, or reduced exactly once per term (per dim and by product; and piece by piece, as receivers take and as
// senders give them: movement/piece_check.h); reads lie inside shards and buffers; steps read only what was written;
// values fit their buffers; peak bytes are within the limit.

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "server/plan/plan.h"

namespace tessera {

class PiecesOfPlan;

struct VerifyOptions {
  std::optional<int64_t> memory_limit_bytes = std::nullopt;  // per worker
  PiecesOfPlan* pieces = nullptr;                            // or null: its own
};
// Internal with the offending step's line and numbers; InvalidArgument where the bytes that move don't fit in 2^63 - 1;
// ResourceExhausted when the peak doesn't fit.
absl::Status VerifyPlan(const Plan& plan, const VerifyOptions& options = {});

}  // namespace tessera
