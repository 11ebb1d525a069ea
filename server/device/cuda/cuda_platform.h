#pragma once

// A GPU of the host as a Platform. Where the program was built without the CUDA toolkit there is none.

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/device/platform.h"

namespace tessera {

struct CudaPlatformOptions {
  int gpu = -1;     // negative: those of the host in turn, by the worker's number
  int worker = -1;  // negative: not known
  int workers_on_host = 1;
  // The GPU is of no use any more; nothing is reported from then on. From a thread of the device.
  std::function<void(const absl::Status&)> lost;
  // The GPU goes on, more slowly. Likewise.
  std::function<void(const absl::Status&)> warn = {};
};

// FailedPrecondition, which names libcuda.so.1, where there is no driver, and where there is no such GPU.
absl::StatusOr<std::unique_ptr<Platform>> MakeCudaPlatform(const CudaPlatformOptions& options);

}  // namespace tessera
