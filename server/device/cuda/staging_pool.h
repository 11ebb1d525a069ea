#pragma once

// StagingPool: pinned memory of the host for messages. A block comes back when its last owner lets go of it, from any
// thread and also when the device is gone, and is used again: the driver's call that frees pinned memory may wait for
// all streams, so none is freed before the end.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "absl/status/statusor.h"
#include "server/device/cuda/cuda_memory.h"

namespace tessera::cuda {

class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  static std::shared_ptr<StagingPool> Make(const Gpu& gpu) {
    return std::shared_ptr<StagingPool>(new StagingPool(gpu));
  }
  ~StagingPool();
  // From any thread. ResourceExhausted that says how many bytes were wanted.
  absl::StatusOr<std::shared_ptr<std::byte>> Take(int64_t bytes);

 private:
  explicit StagingPool(const Gpu& gpu) : gpu_(gpu) {}
  const Gpu gpu_;
  std::mutex mutex_;
  std::multimap<int64_t, std::byte*> free_;  // by size; guarded by mutex_
};

}  // namespace tessera::cuda
