#pragma once

// The limits of a simulated coordinator: small, so that a run meets them.

#include <cstdint>

#include "server/coordinator/config.h"

namespace tessera {

inline constexpr int64_t kSpillBytes = 128 << 10;  // of a worker: somewhat more than its arena

inline CoordinatorConfig SimulatedConfig(uint64_t seed) {
  CoordinatorConfig config;
  config.debug_fill = seed % 3 == 0 ? 1 : 0;
  config.max_outstanding_per_worker = 12;
  config.max_cached_plans = 12;
  config.max_segment_ops = 6;
  config.work_timeout_us = 60'000;
  config.max_queued_records = 96;  // more than three processes with credit have under way
  config.min_spill_bytes = 512;
  config.spill_retry_us = 5'000;
  config.max_slice_looks = 20;  // a death and a close go on for some slices
  return config;
}

}  // namespace tessera
