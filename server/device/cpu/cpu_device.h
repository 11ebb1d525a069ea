#pragma once

// CpuDevice: a slice of a host's cores. Each lane (schemas/types/streams.h) has threads of its own, which take its
// streams' items (stream_pool.h). The batch lane has as many threads as the slice has cores, and they are nice: the
// light lane's one thread gets a core at once. It sleeps while it has nothing to do.
//
//   CpuDevice device({.counters = arena.counters(), .threads = 1});
//   device.MapCounters(WorkerIndex(1), {peer, peer->counters()});
//   device.EnqueueWait(StreamId::kCompute, {WorkerIndex(1), StreamId::kCompute, DoneValue(Ordinal(7))});
//
// Maps and reductions that follow each other in a stream and share operands run in one pass over memory
// (kernels/joined_kernels.h), where they are enqueued before the first of them runs.
//
// Waiting spins for `spin_pauses`, then lingers (schemas/host/linger.h), then sleeps on the own page's doorbell.

#include <array>
#include <memory>

#include "schemas/host/linger.h"
#include "server/device/cpu/stream_pool.h"
#include "server/device/device.h"

namespace tessera {

inline constexpr int kBatchNice = 10;  // docs/limits.md: batch_nice

struct CpuDeviceOptions {
  WorkerIndex self;
  CounterPage* counters = nullptr;  // the own page; outlives the device
  int threads = 1;                  // of the batch lane
  int nice = kBatchNice;            // the same: added to that of the process
  int spin_pauses = 200;
  int64_t linger_ns = kLingerNs;
  int first_slot = -1;  // of a home for each thread (HomeCore); negative: none has one
};

// max(1, cores / workers on the host).
int DefaultDeviceThreads(int workers_on_host);
// 2000 when the host has two cores for each of its workers; 200 when it has one, since others have work too; 10 when it
// has less: the awaited worker may need this one.
int DefaultSpinPauses(int workers_on_host);

class CpuDevice : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options);
  // Ends the threads after their current items; items still enqueued are dropped, not run.
  ~CpuDevice() override;

  void Hold() override;
  void Flush() override;
  void EnqueueWait(StreamId stream, const CounterWait& wait) override;
  void EnqueueRun(StreamId stream, DeviceWork work) override;
  void EnqueueAsync(StreamId stream, Start start) override;
  void EnqueueSignal(StreamId stream, uint64_t value) override;
  void EnqueueReport(StreamId stream, Report report) override;
  void MarkDead(WorkerIndex worker) override;
  void MapCounters(WorkerIndex worker, std::shared_ptr<CounterPage> page) override;
  bool WasAtWork() override;
  void Drain() override;

 private:
  StreamPool& PoolOf(StreamId stream) { return *lanes_[static_cast<size_t>(ThreadsOf(stream))]; }
  std::array<std::shared_ptr<StreamPool>, kLaneCount> lanes_;  // shared with the Done of what is under way
};

}  // namespace tessera
