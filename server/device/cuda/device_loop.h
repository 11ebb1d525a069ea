#pragma once

// The loop of a CudaDevice (cuda_device.h): its thread, its streams, and what other threads hand to it.
//
// Items are submitted in the order in which they were handed over, whatever their streams: the order of instructions.
// So all that an item may wait for was submitted before it, here and at peers. Where a stream has as much as fits its
// queue, others go on as long as what they have can't stand still. So what has been submitted ends even if nothing more
// is. That is what lets the loop wait for a rest: what isn't loaded yet (launcher.h) is loaded when nothing runs on any
// stream, and pages of peers are let go of then, too: for either a driver may wait for all streams. Until then the loop
// submits nothing more, and goes on with all else.
//
// Transfers are in no order with streams, and wait for nothing.

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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
  // The stream whose next item is to be submitted now.
  std::optional<size_t> NextStream() const;
  // Whether a stream may stand at the item until something comes that isn't its own.
  bool MayStandStill(const StreamItem& item) const;
  // Nothing of a worker that isn't mapped, whose counters count as met.
  absl::StatusOr<std::optional<Stream::Awaited>> AwaitedOf(const CounterWait& wait) const;
  bool IsAtRest(size_t streams) const;  // so many of them
  // Marks tell when there is one.
  void BeginRest();
  bool Poll();
  void Sleep();
  void LookForLoss();
  void End();

  absl::Status Submit(Stream& stream, size_t number, StreamItem& item, bool* must_load);
  absl::Status SubmitWait(Stream& stream, const CounterWait& wait);
  // `must_load`, where it isn't null, says that nothing was submitted: the work waits for a rest.
  absl::Status SubmitWork(Stream& stream, const DeviceWork& work, bool* must_load = nullptr);
  // Whether the work was submitted, and with it what follows it in the queue, as one call of a library. What isn't
  // there yet isn't waited for.
  absl::StatusOr<bool> SubmitWithNext(Stream& stream, const DeviceWork& work, Launcher::Turn& turn);
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
  uint64_t next_number_ = 0;           // of an item
  std::optional<size_t> resting_for_;  // the stream whose next item waits for a rest
  // Registered pages of peers that are gone.
  std::vector<std::shared_ptr<CounterPage>> until_rest_;

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
