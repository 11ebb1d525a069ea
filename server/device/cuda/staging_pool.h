#pragma once

// StagingPool: memory for messages: pinned memory of the host, and the GPU's own. A block comes back when its last
// owner lets go of it, from any thread and also when the device is gone, and is used again: the driver's calls that
// free memory may wait for all streams. So pinned memory isn't freed before the end, and of the GPU's what is larger
// than a stream keeps when the loop says that no stream stands still.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "server/device/cuda/cuda_memory.h"
#include "server/device/device.h"

namespace tessera::cuda {

// docs/limits.md: max_kept_gpu_staging_bytes
inline constexpr int64_t kMaxKeptDeviceBytes = int64_t{64} << 20;

class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  static std::shared_ptr<StagingPool> Make(const Gpu& gpu) {
    return std::shared_ptr<StagingPool>(new StagingPool(gpu));
  }
  ~StagingPool();
  // From any thread. ResourceExhausted that says how many bytes were wanted.
  absl::StatusOr<std::shared_ptr<std::byte>> Take(int64_t bytes, StagingPlace place);
  // Whether these bytes lie in a block of the host's memory, which the GPU reaches by itself.
  bool IsPinned(const void* memory, int64_t bytes) const;
  // Frees what came back and isn't kept.
  void FreeLarge();
  bool has_large() const { return has_large_; }

 private:
  explicit StagingPool(const Gpu& gpu) : gpu_(gpu) {}
  absl::StatusOr<std::shared_ptr<std::byte>> TakeHost(int64_t bytes);
  absl::StatusOr<std::shared_ptr<std::byte>> TakeDevice(int64_t bytes);

  const Gpu gpu_;
  mutable std::mutex mutex_;
  std::multimap<int64_t, std::byte*> host_;                       // by size; guarded by mutex_
  std::map<const std::byte*, int64_t> pinned_;                    // all blocks of the host; likewise
  std::multimap<int64_t, std::shared_ptr<DeviceMemory>> device_;  // likewise
  std::vector<std::shared_ptr<DeviceMemory>> large_;              // likewise; not kept
  std::atomic<bool> has_large_ = false;
};

}  // namespace tessera::cuda
