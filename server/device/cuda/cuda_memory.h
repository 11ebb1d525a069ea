#pragma once

// Memory of a GPU by cuMemCreate: exported by a descriptor, which peers of the host map; and pinned memory of the host,
// which the GPU and the host both use.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/device/cuda/driver.h"
#include "server/device/cuda/gpu_use.h"
#include "server/device/shared_arena.h"

namespace tessera::cuda {

// A GPU of this process, with its primary context.
struct Gpu {
  // FailedPrecondition where there is no such GPU. Makes its context the calling thread's.
  static absl::StatusOr<Gpu> Open(const Driver& driver, int number);
  // The one of that number, or where it is -1 a worker's: the host's in turn.
  static absl::StatusOr<Gpu> OpenFor(const Driver& driver, int number, int worker);
  // Each thread that calls the driver begins so.
  absl::Status Enter() const;

  const Driver* driver = nullptr;
  CUdevice device = 0;
  CUcontext context = nullptr;
  GpuUse* use = nullptr;  // the context's
};

// docs/limits.md: gpu_reserve_bytes. The part of its GPU that a worker leaves free for memory beside arenas: contexts,
// workspaces, compiled maps, NCCL's buffers.
inline constexpr int64_t kGpuReserveBytes = int64_t{512} << 20;
// Bytes for the arena of one of so many workers of the host, which share its GPUs evenly: an equal part of this GPU's
// memory less the reserve (of a small GPU an eighth of it), so that workers who start together agree, and of what
// others hold already no more than is free. ResourceExhausted where nothing is.
absl::StatusOr<int64_t> ShareOfMemory(const Gpu& gpu, int workers_on_host);

// Whether others may map it.
enum class Sharing : uint8_t { kPrivate, kExported };
// `bytes` are rounded up to the GPU's pages. ResourceExhausted says how many were wanted and are free.
absl::StatusOr<std::unique_ptr<DeviceMemory>> MakeMemory(const Gpu& gpu, int64_t bytes, Sharing sharing);
// InvalidArgument where the descriptor is not memory of a GPU, or of fewer bytes.
absl::StatusOr<std::unique_ptr<DeviceMemory>> MapMemory(const Gpu& gpu, OwnedFd fd, int64_t bytes);

inline CUdeviceptr AddressOf(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

// Pinned memory of the host in slots of one size, zeroed when they are taken. Used by one thread.
class PinnedSlots {
 public:
  PinnedSlots(const Gpu& gpu, int64_t slot_bytes) : gpu_(gpu), slot_bytes_(slot_bytes) {}
  ~PinnedSlots();
  PinnedSlots(const PinnedSlots&) = delete;
  PinnedSlots& operator=(const PinnedSlots&) = delete;
  absl::StatusOr<std::byte*> Take();
  void Give(std::byte* slot) { free_.push_back(slot); }
  // Whether Take asks the driver for no memory.
  bool has_free() const { return !free_.empty(); }
  int64_t slot_bytes() const { return slot_bytes_; }

 private:
  const Gpu gpu_;
  const int64_t slot_bytes_;
  std::vector<void*> blocks_;
  std::vector<std::byte*> free_;
};

}  // namespace tessera::cuda
