#pragma once

// NcclStream: a stream of the GPU for launches of NCCL, which says how many of them it has passed. Used by the
// transport's one thread.
//
//   stream.Open(gpu, slots);       // the first time; then it is there
//   ncclSend(..., stream.get());   // launch 1
//   stream.Mark(1);                // stream.passed() is 1 when it is over

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "server/device/cuda/cuda_memory.h"
#include "server/transport/nccl/library.h"

namespace tessera {

class NcclStream {
 public:
  // On the thread that has entered the GPU. Memory and stream last as long as the process.
  absl::Status Open(const cuda::Gpu& gpu, cuda::PinnedSlots& slots);
  // Behind all that is in the stream: so many launches are over.
  absl::Status Mark(uint64_t launches);
  // 0 before it is open.
  uint64_t passed() const;
  cudaStream_t get() const { return reinterpret_cast<cudaStream_t>(stream_); }

 private:
  const cuda::Driver* driver_ = nullptr;
  CUstream stream_ = nullptr;
  std::byte* progress_ = nullptr;  // pinned: the number of the last mark that the stream has passed
};

}  // namespace tessera
