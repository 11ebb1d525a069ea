#pragma once

// Host steps: what the GPU has no kernel for is computed by the CPU's kernels on the worker's host, in order with the
// stream. Operands come to pinned memory, the stream stands at a gate while the host computes, and the results go to
// where they belong:
//
//   copy a -> pinned    copy b -> pinned    [host: RunKernel]    copy pinned -> output
//
// Law: the thread that enqueues waits for none of it, and the memory of a stream is used by one step after the other,
// in the stream's order: at most max_bytes at once, and as much again for what was outgrown.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/kernel.h"
#include "server/device/cuda/cuda_memory.h"
#include "server/device/device.h"

namespace tessera::cuda {

// A call whose operands and results lie in pinned memory, and the copies to it and from it.
struct HostStep {
  std::vector<CopyWork> before, after;
  std::vector<KernelInput> inputs;
  std::vector<KernelOutput> more_outputs;
  KernelCall call = {};
};
// Bytes of pinned memory that the step needs. An element that is read many times (a stride of 0) is there once.
int64_t HostStepBytes(const KernelCall& call);
// `memory` has HostStepBytes, aligned to 64.
std::shared_ptr<HostStep> MakeHostStep(const KernelCall& call, std::byte* memory);

// docs/limits.md: gpu_host_step_bytes
int64_t DefaultHostStepBytes();

// Pinned memory of one stream for its host steps. It grows, and is given back in the end: the driver's call for that
// may wait for all streams.
class HostStepMemory {
 public:
  explicit HostStepMemory(const Gpu& gpu) : gpu_(gpu) {}
  ~HostStepMemory();
  HostStepMemory(const HostStepMemory&) = delete;
  HostStepMemory& operator=(const HostStepMemory&) = delete;
  // ResourceExhausted where they are more than `max_bytes`, or than the host gives.
  absl::StatusOr<std::byte*> Reserve(int64_t bytes, int64_t max_bytes);
  // Whether Reserve asks the driver for memory.
  bool Grows(int64_t bytes) const { return bytes > bytes_ || blocks_.empty(); }

 private:
  const Gpu gpu_;
  std::vector<std::byte*> blocks_;
  int64_t bytes_ = 0;  // of the last one
};

}  // namespace tessera::cuda
