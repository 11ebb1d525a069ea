#pragma once

// The loop of a CudaDevice (cuda_device.h): its thread, its streams, and what other threads hand to it.

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "server/device/cuda/cuda_device.h"
#include "server/device/cuda/staging_pool.h"
#include "server/device/cuda/stream.h"

namespace tessera::cuda {

// The device's streams, and one for transfers, which no counter orders.
inline constexpr size_t kTransferStream = kStreamCount;

class CudaDevice::Loop {
 public:
  static absl::StatusOr<std::unique_ptr<Loop>> Prepare(const Gpu& gpu);
  absl::Status Begin(const CudaDeviceOptions& options);
  ~Loop();

  void Push(size_t stream, StreamItem item);
  void SetPeer(WorkerIndex worker, std::shared_ptr<CounterPage> page);
  void Hold();
  void Flush();
  void Drain();
  bool WasAtWork() { return was_at_work_.exchange(false) || is_at_work_.load(); }
  absl::Status Transfer(const CopyWork& work, TransferSide side);
  absl::StatusOr<std::shared_ptr<std::byte>> MakeStaging(int64_t bytes, StagingPlace place) {
    return staging_->Take(bytes, place);
  }

 private:
  struct Given {
    size_t stream = 0;
    StreamItem item;
  };
  struct NewPeer {
    WorkerIndex worker;
    std::shared_ptr<CounterPage> page;
  };
  // A peer's counters as the GPU sees them; where they can't be registered, why.
  struct Peer {
    std::shared_ptr<CounterPage> page;
    absl::Status status;
  };

  explicit Loop(const Gpu& gpu) : gpu_(gpu), staging_(StagingPool::Make(gpu)), reads_(gpu, kReadBytes) {}
  static constexpr int64_t kReadBytes = 4096;  // of a slot, which EnqueueRead's copy fits

  void Run();
  // What others handed over. Whether there was anything.
  bool Take();
  bool SubmitSome();
  bool Poll();
  void Sleep();
  void LookForLoss();
  void End();

  absl::Status Submit(Stream& stream, size_t number, StreamItem& item);
  absl::Status SubmitWait(Stream& stream, const CounterWait& wait);
  absl::Status SubmitWork(Stream& stream, const DeviceWork& work);
  absl::Status SubmitHostStep(Stream& stream, const KernelWork& work);
  absl::Status SubmitRead(Stream& stream, const CopyWork& work);
  absl::Status SubmitAsync(Stream& stream, Device::Start start);
  absl::Status SubmitReport(Stream& stream, Device::Report report);
  absl::Status SubmitTransfer(Stream& stream, TransferItem& transfer);
  void Fail(Stream& stream, absl::Status status);
  // That something isn't computed as it should be; once of each kind.
  void WarnOnce(const absl::Status& why, std::string_view what, bool* has_warned);
  void ReplacePeer(NewPeer peer);

  // Of the thread that transfers.
  absl::Status MakeRing();
  std::byte* SlotOf(size_t piece) const { return ring_[piece % ring_.size()]; }
  void SubmitPiece(CopyWork piece);
  // Until so many pieces are there. Unavailable where the device is gone.
  absl::Status AwaitPieces(size_t count);

  const Gpu gpu_;
  CudaDeviceOptions options_;  // from Begin on
  std::unique_ptr<Launcher> launcher_;
  const std::shared_ptr<StagingPool> staging_;
  PinnedSlots reads_;
  HostThread host_;
  bool has_warned_of_programs_ = false, has_warned_of_products_ = false;
  std::array<std::unique_ptr<Stream>, kStreamCount + 1> streams_;
  std::map<WorkerIndex, Peer> peers_;
  std::atomic<bool> was_at_work_ = false, is_at_work_ = false;
  bool is_lost_ = false;

  std::mutex mutex_;
  std::condition_variable given_, idle_;
  std::vector<Given> new_items_;    // guarded by mutex_
  std::vector<NewPeer> new_peers_;  // likewise
  bool is_held_ = false, is_stopping_ = false, is_idle_ = true;
  std::thread thread_;

  std::mutex transfer_mutex_;     // one at a time
  std::vector<std::byte*> ring_;  // pinned slots; guarded by transfer_mutex_
  std::condition_variable piece_done_;
  size_t pieces_done_ = 0;  // of the transfer at hand; guarded by mutex_, as what follows
  absl::Status transfer_error_;
  bool is_over_ = false;  // the loop runs no more
};

}  // namespace tessera::cuda
