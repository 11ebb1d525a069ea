#pragma once

// GpuUse: what all that uses a GPU's context in this process shares: which memory is the GPU's, whether streams have
// queues of their own, and whether kernels are under way that wait for other ranks. From any thread.
//
//   gpu.use->AddMemory(address, bytes);          if (!gpu.use->IsDeviceMemory(address)) ...  // the host's
//   auto kernel = gpu.use->BeginSpinning();      // until it is let go of, TryQuiet says no
//   if (auto quiet = gpu.use->TryQuiet()) ...    // none spins, and none begins while `quiet` is held
//
// The GPU takes what streams give it from a few queues, in order. A stream that stands at a wait stops its queue, so
// streams that share one may wait for each other without an end. Each stream has a queue of its own while there are no
// more streams than queues. Else the host holds what may stand still (device_loop.h).

#include <atomic>
#include <cstdint>
#include <map>
#include <shared_mutex>
#include <utility>

#include <cuda.h>

namespace tessera::cuda {

// Queues that the driver is asked for: CUDA_DEVICE_MAX_CONNECTIONS, unless it is set. Each takes a channel of the GPU,
// and the channels are shared by all of its processes: 14 with 32 each had no room, 50 with 8 have. A worker has seven
// streams, and one for transfers of each direction. docs/limits.md: gpu_connections
inline constexpr int kConnections = 9;
// CUDA_DEVICE_MAX_CONNECTIONS, or kConnections where it isn't set.
int Connections();

class GpuUse {
 public:
  // The context's one. It lasts as long as the process.
  static GpuUse& Of(CUcontext context);

  // Memory of a GPU that is mapped here. Memory outside of it is the host's: the only other memory that streams are
  // given is pinned.
  void AddMemory(CUdeviceptr address, int64_t bytes);
  void RemoveMemory(CUdeviceptr address);
  bool IsDeviceMemory(CUdeviceptr address) const;

  void AddStream() { ++streams_; }
  void RemoveStream() { --streams_; }
  // Streams will come whose number isn't known: those of a library.
  void ExpectStreams() { expects_streams_ = true; }
  bool StreamsOwnQueues() const { return !expects_streams_ && streams_ <= Connections(); }

  // A kernel that waits for other ranks, until it is destroyed.
  class Spinning {
   public:
    Spinning() = default;
    explicit Spinning(std::atomic<int>* count) : count_(count) {}
    Spinning(Spinning&& other) noexcept : count_(std::exchange(other.count_, nullptr)) {}
    Spinning& operator=(Spinning&& other) noexcept {
      std::swap(count_, other.count_);
      return *this;
    }
    ~Spinning() {
      if (count_ != nullptr) --*count_;
    }

   private:
    std::atomic<int>* count_ = nullptr;
  };
  // Before the kernel is launched. Waits while someone holds what TryQuiet gave.
  Spinning BeginSpinning();
  bool is_quiet() const { return spinning_ == 0; }
  // The lock is held where no kernel spins; by several threads at once.
  std::shared_lock<std::shared_mutex> TryQuiet();

 private:
  mutable std::shared_mutex memory_mutex_;
  std::map<CUdeviceptr, int64_t> memory_;  // bytes by address
  std::atomic<int> streams_ = 0;
  std::atomic<bool> expects_streams_ = false;
  std::shared_mutex quiet_mutex_;
  std::atomic<int> spinning_ = 0;
};

}  // namespace tessera::cuda
