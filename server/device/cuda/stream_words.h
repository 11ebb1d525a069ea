#pragma once

// StreamWords: what a stream of the GPU and the host tell each other, in pinned memory. The stream writes how far it
// has come; the host opens a gate that the stream waits at.

#include <atomic>
#include <cstdint>
#include <memory>

#include "server/device/cuda/cuda_memory.h"

namespace tessera::cuda {

struct StreamWords {
  alignas(64) std::atomic<uint64_t> progress;
  alignas(64) std::atomic<uint64_t> gate;
};

// It stays while someone has a share: a gate may be opened when the device is gone.
absl::StatusOr<std::shared_ptr<StreamWords>> MakeStreamWords(const Gpu& gpu);

// Waits compare signed: this is more than any counter, and ~0 would be less than all.
inline constexpr uint64_t kAlwaysMet = uint64_t{1} << 62;

}  // namespace tessera::cuda
