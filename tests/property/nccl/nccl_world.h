#pragma once

// NcclWorldOptions: a WorkerWorld of GPU workers whose messages go by NCCL, each a rank of its own in this process, on
// the emulated driver and library.

#include <cstdint>
#include <vector>

#include "tests/unit/worker/worker_world.h"

namespace tessera::testing {

// All of them exchange messages, but for those of one of `hosts` (by worker), which map each other.
WorldOptions NcclWorldOptions(int workers, const std::vector<int32_t>& hosts = {});

}  // namespace tessera::testing
