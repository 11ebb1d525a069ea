#pragma once

// CpuDevice: a slice of a host's cores. Its threads take the streams' items; a stream is run by one
// thread at a time, and a parked stream holds none.
//
//   CpuDevice device({.counters = arena.counters(), .threads = 1});
//   device.MapCounters(WorkerIndex(1), {peer, peer->counters()});
//   device.EnqueueWait(StreamId::kCompute, {WorkerIndex(1), StreamId::kCompute, DoneValue(Ordinal(7))});
//
// Maps and reductions that follow each other in a stream and share operands run in one pass over memory
// (kernels/joined_kernels.h), where they are enqueued before the first of them runs.
//
// Waiting spins for `spin_pauses`, then lingers (schemas/codec/linger.h), then sleeps on the own page's doorbell.

#include <memory>

#include "schemas/codec/linger.h"
#include "server/device/device.h"

namespace tessera {

inline constexpr int64_t kMaxHeldItems = 64;  // docs/limits.md: max_held_items

struct CpuDeviceOptions {
  WorkerIndex self;
  CounterPage* counters = nullptr;  // the own page; outlives the device
  int threads = 1;
  int spin_pauses = 200;
  int64_t linger_ns = kLingerNs;
  int first_slot = -1;  // of a home for each thread (HomeCore); negative: none has one
};

// max(1, cores / workers on the host).
int DefaultDeviceThreads(int workers_on_host);
// 2000 when the host has two cores for each of its workers; 200 when it has one, since others have work too; 10 when it
// has less: who is waited for may need this one.
int DefaultSpinPauses(int workers_on_host);

class CpuDevice : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options);
  // Ends the threads after their current items; what is still enqueued is dropped, not run.
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

  class State;

 private:
  std::shared_ptr<State> state_;  // shared with the Done of what is under way
};

}  // namespace tessera
