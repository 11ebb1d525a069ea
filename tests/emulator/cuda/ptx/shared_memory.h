#pragma once

// A block's shared memory, and who used it: a byte that two threads use without a barrier between them, of which one
// writes, is a race, and so is a read of a byte that nobody wrote.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/emulator/cuda/ptx/ptx.h"

namespace tessera::ptx {

class SharedMemory {
 public:
  // `granule`: the smallest element that the kernel's instructions name, a power of two; each access is some of them.
  SharedMemory(size_t bytes, uint64_t granule, size_t warps);

  // As a block begins: nobody has used it.
  void Begin();
  // All threads have met at a barrier.
  void OrderThreads() { ++epoch_; }
  // Lanes of the warp have met.
  void OrderLanes(size_t warp) { ++warp_epochs_[warp]; }
  // The place of bytes that the thread uses; null, and what is wrong, where it may not.
  std::byte* Use(uint32_t thread, uint64_t offset, uint64_t bytes, AccessKind kind, std::string* wrong);

 private:
  // The last users of a granule: one thread, or several, of one warp or several.
  struct Users {
    static constexpr uint32_t kNobody = ~uint32_t{0}, kSeveral = kNobody - 1;
    uint32_t thread = kNobody;
    uint32_t warp = kNobody;
    uint32_t epoch = 0;
    uint32_t warp_epoch = 0;
  };
  // Whether the use is by another thread, with no barrier between.
  bool Races(const Users& users, uint32_t thread) const;
  void Record(uint32_t thread, Users* users) const;
  static std::string RaceText(uint64_t byte, const Users& users, std::string_view what);

  std::vector<std::byte> bytes_;
  const uint64_t granule_;
  std::vector<Users> writes_, reads_;
  std::vector<uint32_t> warp_epochs_;
  uint32_t epoch_ = 1;
};

}  // namespace tessera::ptx
