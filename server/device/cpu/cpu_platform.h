#pragma once

// The host's memory and cores as a Platform.

#include <memory>

#include "server/device/platform.h"

namespace tessera {

struct CpuPlatformOptions {
  int threads = 1;
  int workers_on_host = 1;  // that share the cores
  int batch_nice = 10;      // added to the niceness of the batch lane's threads
};

std::unique_ptr<Platform> MakeCpuPlatform(const CpuPlatformOptions& options);

}  // namespace tessera
