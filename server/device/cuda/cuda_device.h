#pragma once

// CudaDevice: a GPU's streams behind the Device interface. A wait is a cuStreamWaitValue64 on a counter page that is
// registered with the driver, a signal a cuStreamWriteValue64, work a few launches (launcher.h). Operations on words
// that follow each other are one cuStreamBatchMemOp.
//
// One thread, the loop, makes every call that enqueues something on the GPU. It submits what each stream was given, up
// to a number of operations that the GPU's queues hold without blocking, and looks at the progress words that the
// streams write: items of the host (a report, the start of a message) happen there.
//
// Law: the loop waits for nothing but progress. A stream that is parked on the GPU holds up itself alone.
//
// The host computes steps that have no kernel here (host_steps.h).
//
// An error that leaves the context unusable (an illegal address) ends all: `lost` is called, once, from the loop, and
// nothing is reported any more.

#include <functional>
#include <memory>

#include "server/device/cuda/cuda_memory.h"
#include "server/device/cuda/host_steps.h"
#include "server/device/cuda/launcher.h"
#include "server/device/cuda/registered_memory.h"
#include "server/device/device.h"

namespace tessera::cuda {

struct CudaDeviceOptions {
  WorkerIndex self = WorkerIndex(0);
  CounterPage* counters = nullptr;  // the own page, of whole pages of the host; outlives the device
  std::function<void(const absl::Status&)> lost = {};
  // Maps can't be compiled, and the host computes them from then on; or a product isn't cuBLASLt's, and the image's
  // kernels compute it. From the loop, once of each. Memory of clients isn't registered: from another thread, once.
  std::function<void(const absl::Status&)> warn = {};
  int64_t max_host_step_bytes = DefaultHostStepBytes();  // host_steps.h
  int64_t registered_idle_ns = kRegisteredIdleNs;        // registered_memory.h
};

// Bytes of transfers so far, and how many of them the host copied, between its own places.
struct TransferCounts {
  int64_t moved_bytes = 0;
  int64_t host_copied_bytes = 0;
};

class CudaDevice : public Device {
 public:
  // Loads the kernels and makes the streams: this may fail where the GPU has too little of something.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Prepare(const Gpu& gpu);
  // Before anything is enqueued.
  absl::Status Begin(const CudaDeviceOptions& options);
  // Ends the loop; items still enqueued are dropped. Work that the GPU runs then may still touch the arena.
  ~CudaDevice() override;

  void Hold() override;
  void Flush() override;
  void EnqueueWait(StreamId stream, const CounterWait& wait) override;
  void EnqueueRun(StreamId stream, DeviceWork work) override;
  void EnqueueRead(StreamId stream, CopyWork work) override;
  void EnqueueAsync(StreamId stream, Start start) override;
  void EnqueueSignal(StreamId stream, uint64_t value) override;
  void EnqueueReport(StreamId stream, Report report) override;
  absl::Status Transfer(const CopyWork& work, TransferSide side) override;
  TransferCounts transfer_counts() const;
  // registered_memory.h
  void KeepReachable(std::byte* base, int64_t bytes, std::shared_ptr<void> keeper) override;
  void LetGoOf(const std::byte* base) override;
  // staging_pool.h
  absl::StatusOr<std::shared_ptr<std::byte>> MakeStaging(int64_t bytes, StagingPlace place) override;
  bool IsHostMemory() const override { return false; }
  void MarkDead(WorkerIndex worker) override;
  // The page lies alone in pages of the host.
  void MapCounters(WorkerIndex worker, std::shared_ptr<CounterPage> page) override;
  bool WasAtWork() override;
  void Drain() override;

 private:
  class Loop;
  explicit CudaDevice(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace tessera::cuda
