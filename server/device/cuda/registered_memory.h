#pragma once

// RegisteredMemory: memory of clients that the driver knows of, so that the GPU's copies reach it by themselves, with
// no pass by the host. A thread registers what is added, piece by piece, since a call of the driver takes milliseconds,
// and lets go of it: of what is removed, and of what no transfer has used for a while. A client that freed its array
// says so to nobody.
//
//   memory.Add(base, 1 << 30, keeper);         returns at once; the pieces come one after the other
//   auto reached = memory.Find(at);            reached.bytes from `at` on are registered, while reached.use is held
//   memory.Remove(base);                       when no `use` is held any more it is unregistered, then keeper let go of
//
// Law: the driver is called in turns that `in_turn` gives, in which no stream of the worker stands still
// (device_loop.h): its calls about the host's memory may wait for all streams.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "server/device/cuda/cuda_memory.h"

namespace tessera::cuda {

// docs/limits.md: gpu_registered_piece_bytes
inline constexpr int64_t kRegisteredPieceBytes = int64_t{64} << 20;
// Memory that no transfer has used for so long is let go of. docs/limits.md: gpu_registered_idle
inline constexpr int64_t kRegisteredIdleNs = 10'000'000'000;
// The part of the host's memory that a worker registers at most. docs/limits.md: max_gpu_registered_bytes
inline constexpr int64_t kRegisteredHostParts = 4;

class RegisteredMemory {
 public:
  struct Options {
    // Calls the function in a turn as the law says, or when there are no turns any more.
    std::function<void(absl::FunctionRef<void()>)> in_turn;
    // Memory that the driver refuses is reached as other memory is. From the thread, once.
    std::function<void(const absl::Status&)> refused;
    int64_t idle_ns = kRegisteredIdleNs;
  };
  RegisteredMemory(const Gpu& gpu, Options options);
  // All is let go of. No `use` is held any more.
  ~RegisteredMemory();
  RegisteredMemory(const RegisteredMemory&) = delete;

  // From any thread. The keeper keeps the memory where it is.
  void Add(std::byte* base, int64_t bytes, std::shared_ptr<void> keeper);
  void Remove(const std::byte* base);
  struct Reached {
    std::shared_ptr<void> use;
    int64_t bytes = 0;  // up to the end of the piece
  };
  Reached Find(const void* at);

 private:
  struct Memory {
    std::byte* base = nullptr;
    int64_t bytes = 0;
    std::shared_ptr<void> keeper;
    std::atomic<int64_t> registered_bytes = 0;  // from the base on
    std::atomic<int64_t> used_ns = 0;
    bool is_refused = false;  // of the thread
  };
  using MemoryPointer = std::shared_ptr<Memory>;

  void Run();
  // These three are called with the mutex held.
  void AwaitChange(std::unique_lock<std::mutex>& lock);
  // Memory that is idle or removed, and that nobody uses, leaves the table.
  std::vector<MemoryPointer> TakeLeaving();
  MemoryPointer FirstUnfinished();
  // These two are called in a turn.
  void RegisterPiece(Memory& memory);
  void LetGo(const Memory& memory);

  const Gpu gpu_;
  const Options options_;
  const int64_t max_bytes_;
  int64_t bytes_ = 0;  // registered; of the thread
  bool has_refused_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<const std::byte*, MemoryPointer> memory_;  // by base; guarded by mutex_
  std::vector<MemoryPointer> removed_;                // likewise
  bool is_stopping_ = false;                          // likewise
  std::thread thread_;                                // from the first Add on
};

}  // namespace tessera::cuda
