#include "server/device/cpu/cpu_device.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace tessera {
int DefaultDeviceThreads(int workers_on_host) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores / std::max(1, workers_on_host));
}

int DefaultSpinPauses(int workers_on_host) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (workers_on_host > cores) return 10;
  return workers_on_host > cores / 2 ? 200 : 2000;
}

CpuDevice::CpuDevice(const CpuDeviceOptions& options) {
  StreamPoolOptions batch = {.self = options.self,
                             .counters = options.counters,
                             .lane = Lane::kBatch,
                             .threads = options.threads,
                             .nice = options.nice,
                             .spin_pauses = options.spin_pauses,
                             .linger_ns = options.linger_ns,
                             .first_slot = options.first_slot};
  StreamPoolOptions light = batch;
  light.lane = Lane::kLight;
  light.threads = 1;
  light.nice = 0;
  lanes_[0] = std::make_shared<StreamPool>(batch);
  light.yields_to = lanes_[0].get();
  lanes_[1] = std::make_shared<StreamPool>(light);
  for (const auto& lane : lanes_) lane->Start();
}
// The light lane's threads look at the batch lane.
CpuDevice::~CpuDevice() {
  lanes_[1]->Stop();
  lanes_[0]->Stop();
}

void CpuDevice::Hold() {
  for (const auto& lane : lanes_) lane->Hold();
}
void CpuDevice::Flush() {
  for (const auto& lane : lanes_) lane->Flush();
}
void CpuDevice::EnqueueWait(StreamId stream, const CounterWait& wait) { PoolOf(stream).Push(stream, PageWait{wait}); }
void CpuDevice::EnqueueRun(StreamId stream, DeviceWork work) { PoolOf(stream).Push(stream, std::move(work)); }
void CpuDevice::EnqueueAsync(StreamId stream, Start start) { PoolOf(stream).Push(stream, AsyncItem{std::move(start)}); }
void CpuDevice::EnqueueSignal(StreamId stream, uint64_t value) { PoolOf(stream).Push(stream, SignalItem{value}); }
void CpuDevice::EnqueueReport(StreamId stream, Report report) {
  PoolOf(stream).Push(stream, ReportItem{std::move(report)});
}
void CpuDevice::MarkDead(WorkerIndex worker) { MapCounters(worker, nullptr); }
void CpuDevice::MapCounters(WorkerIndex worker, std::shared_ptr<CounterPage> page) {
  for (const auto& lane : lanes_) lane->SetPeer(worker, page);
}
bool CpuDevice::WasAtWork() {
  const bool was_batch = lanes_[0]->WasAtWork();
  return lanes_[1]->WasAtWork() || was_batch;
}
void CpuDevice::Drain() {
  for (const auto& lane : lanes_) lane->Drain();
}

}  // namespace tessera
