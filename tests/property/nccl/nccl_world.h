#pragma once

// NcclWorldOptions: a WorkerWorld of GPU workers whose messages go by NCCL, each a rank of its own in this process, on
// the emulated driver and library.

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "tests/unit/worker/worker_world.h"

namespace tessera::testing {

// All of them exchange messages, but for those of one of `hosts` (by worker), which map each other.
WorldOptions NcclWorldOptions(int workers, const std::vector<int32_t>& hosts = {});
// Their exchanges are calls where they can be. `entered`, which outlives the world, counts those of each kind as
// workers make them.
using CallCounts = std::array<std::atomic<int>, 3>;
WorldOptions NcclCallsOptions(int workers, CallCounts& entered);

}  // namespace tessera::testing
