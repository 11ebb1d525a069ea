#include "server/device/cuda/cuda_device.h"

#include <utility>

#include "schemas/types/status_macros.h"
#include "server/device/cuda/device_loop.h"

namespace tessera::cuda {

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Prepare(const Gpu& gpu) {
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Loop> loop, Loop::Prepare(gpu));
  return std::unique_ptr<CudaDevice>(new CudaDevice(std::move(loop)));
}
absl::Status CudaDevice::Begin(const CudaDeviceOptions& options) { return loop_->Begin(options); }

CudaDevice::CudaDevice(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
CudaDevice::~CudaDevice() = default;

void CudaDevice::Hold() { loop_->Hold(); }
void CudaDevice::Flush() { loop_->Flush(); }
void CudaDevice::EnqueueWait(StreamId stream, const CounterWait& wait) {
  loop_->Push(NumberOf(stream), PageWait{wait});
}
void CudaDevice::EnqueueRun(StreamId stream, DeviceWork work) { loop_->Push(NumberOf(stream), std::move(work)); }
void CudaDevice::EnqueueRead(StreamId stream, CopyWork work) {
  loop_->Push(NumberOf(stream), ReadItem{std::move(work)});
}
void CudaDevice::EnqueueAsync(StreamId stream, Start start) {
  loop_->Push(NumberOf(stream), AsyncItem{.start = std::move(start)});
}
void CudaDevice::EnqueueSignal(StreamId stream, uint64_t value) { loop_->Push(NumberOf(stream), SignalItem{value}); }
void CudaDevice::EnqueueReport(StreamId stream, Report report) {
  loop_->Push(NumberOf(stream), ReportItem{std::move(report)});
}
absl::Status CudaDevice::Transfer(const CopyWork& work, TransferSide side) { return loop_->Transfer(work, side); }
TransferCounts CudaDevice::transfer_counts() const { return loop_->transfer_counts(); }
void CudaDevice::KeepReachable(std::byte* base, int64_t bytes, std::shared_ptr<void> keeper) {
  loop_->KeepReachable(base, bytes, std::move(keeper));
}
void CudaDevice::LetGoOf(const std::byte* base) { loop_->LetGoOf(base); }
absl::StatusOr<std::shared_ptr<std::byte>> CudaDevice::MakeStaging(int64_t bytes, StagingPlace place) {
  return loop_->MakeStaging(bytes, place);
}
void CudaDevice::MarkDead(WorkerIndex worker) { loop_->SetPeer(worker, nullptr); }
void CudaDevice::MapCounters(WorkerIndex worker, std::shared_ptr<CounterPage> page) {
  loop_->SetPeer(worker, std::move(page));
}
bool CudaDevice::WasAtWork() { return loop_->WasAtWork(); }
void CudaDevice::Drain() { loop_->Drain(); }

}  // namespace tessera::cuda
