#pragma once

// The beginning of each call that the emulated driver exports. Private to the library's sources.

#include <array>
#include <cstdint>
#include <vector>

#include <cuda.h>

#include "tests/emulator/cuda/engine.h"

namespace tessera::emulator {

inline Engine& Emulated() { return Engine::Get(); }

template <typename Call>
CUresult Entered(const char* function, Call call) {
  const CUresult result = Emulated().Enter(function);
  return result == CUDA_SUCCESS ? call() : result;
}

// Enters a call that may wait for all that runs (engine.h).
template <typename Call>
CUresult EnteredToWait(const char* function, Call call) {
  return Entered(function, [&] {
    const CUresult result = Emulated().MayWaitForAll(function);
    return result == CUDA_SUCCESS ? call() : result;
  });
}

// Whether a GPU takes a launch of that shape.
inline bool IsLaunchable(const std::array<uint32_t, 3>& grid, const std::array<uint32_t, 3>& block,
                         uint32_t shared_bytes) {
  constexpr unsigned kMaxBlockThreads = 1024;
  constexpr unsigned kMaxGridRows = 65535;
  constexpr unsigned kMaxSharedBytes = 227 << 10;
  const uint64_t threads = uint64_t{block[0]} * block[1] * block[2];
  return grid[0] > 0 && grid[1] > 0 && grid[2] > 0 && grid[0] <= 0x7FFFFFFF && grid[1] <= kMaxGridRows &&
         grid[2] <= kMaxGridRows && threads > 0 && threads <= kMaxBlockThreads && shared_bytes <= kMaxSharedBytes;
}

// With a copy of the parameters.
inline LaunchOperation LaunchOf(const ptx::Kernel* kernel, const std::array<uint32_t, 3>& grid,
                                const std::array<uint32_t, 3>& block, uint32_t shared_bytes, void** parameters) {
  const auto* first = static_cast<const std::byte*>(kernel->parameter_bytes > 0 ? parameters[0] : nullptr);
  return {.kernel = kernel,
          .parameters = {first, first + kernel->parameter_bytes},
          .grid = grid,
          .block = block,
          .shared_bytes = shared_bytes};
}

}  // namespace tessera::emulator
