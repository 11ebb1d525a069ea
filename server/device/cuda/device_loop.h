#pragma once

// The loop of a CudaDevice (cuda_device.h): its thread, its streams, and what other threads hand to it.
//
// Calls of the driver may block: one that loads or takes memory until all that was enqueued has run, and any one until
// its stream's queue has room. The loop opens gates and starts messages, so it must never be in a call that waits for
// these. Hence:
//
// 1. The worker is clear when every wait and gate that was submitted on any stream is met, as the host reads its word,
//    and no kernel of NCCL waits for other ranks. All calls but launches of loaded kernels, fills, copies with the
//    GPU's memory on one side and operations on words are made when it is clear: those for graphs, too.
// 2. Behind a wait that isn't met a stream takes kParkedOperations.
// 3. Items are submitted in the order in which they were handed over, whatever their streams: the order of
//    instructions. Where the next item has to wait (2., or 1.), other streams go on with items that can't stand still.
//    So a wait that isn't met is for something of a smaller ordinal than the item that the worker must be clear for,
//    and is met even if that item is not submitted. Items of the light lane that can't stand still go before all
//    others.
// 4. A stream waits for another stream of the worker by an event, once the signal was submitted.
// 5. Where streams share the queues of the GPU (gpu_use.h), the host holds waits and gates: the stream's next item is
//    submitted when they are met, and none stands still on the GPU. It holds the gates of host steps, too, of a worker
//    that has waited for no other one: such a worker is always clear.
// 6. The loop makes nothing that takes long: other threads compile programs and compute host steps, for each lane one,
//    and one makes plans of libraries. The stream that needs it goes on when it is made; meanwhile others do, as in 3.
//
// Transfers are in no order with streams, and wait for nothing.
//
// Another thread's calls that may wait for all streams, about memory of clients or plans of libraries, are made in a
// turn that the loop gives when the worker is clear; meanwhile it submits nothing at which a stream may stand still.
//
// The loop lingers (linger.h): while something is under way, and for a while after, it polls and gives its core away in
// between; a thread that hands it something then wakes nobody. When others need the core, or nothing has passed for
// kUnderWayLingerNs, it sleeps between two looks.

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "schemas/host/linger.h"
#include "server/device/cuda/cuda_device.h"
#include "server/device/cuda/registered_memory.h"
#include "server/device/cuda/staging_pool.h"
#include "server/device/cuda/stream.h"

namespace tessera::cuda {

// The device's streams, and one for transfers of each direction, which no counter orders. A GPU copies in both at once.
inline constexpr size_t kUploadStream = kStreamCount, kDownloadStream = kStreamCount + 1;
inline constexpr size_t kAllStreams = kStreamCount + 2;

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
  TransferCounts transfer_counts() const { return {moved_bytes_, host_copied_bytes_}; }
  void KeepReachable(std::byte* base, int64_t bytes, std::shared_ptr<void> keeper) {
    registered_->Add(base, bytes, std::move(keeper));
  }
  void LetGoOf(const std::byte* base) { registered_->Remove(base); }
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
    uint32_t number = 0;
  };
  // A peer's counters as the GPU sees them; where they can't be registered, why.
  struct Peer {
    std::shared_ptr<CounterPage> page;
    uint32_t number = 0;
    bool is_registered = false;  // else waits for it aren't submitted yet
    absl::Status status = absl::OkStatus();
  };
  // To be let go of when all that was submitted before has run, and the worker is clear.
  struct Leaving {
    std::shared_ptr<void> what;
    std::array<uint64_t, kAllStreams> submitted;  // by stream
  };

  explicit Loop(const Gpu& gpu) : gpu_(gpu), staging_(StagingPool::Make(gpu)), reads_(gpu, kReadBytes) {}
  static constexpr int64_t kReadBytes = 4096;  // of a slot, which EnqueueRead's copy fits

  void Run();
  // Takes what others handed over. Says whether there was anything.
  bool Take();
  bool SubmitSome();
  // The stream whose next item is to be submitted now.
  std::optional<size_t> NextStream();
  // Whether the first item of the stream's queue may be submitted now.
  bool MaySubmit(size_t stream);
  bool MaySubmitWait(size_t stream, const PageWait& wait);
  // Whether the stream may stand at the item, on the GPU, until something comes that isn't its own.
  bool MayStandStill(const StreamItem& item);
  // Whether it starts something that may wait for others, or for which the stream may stand at a gate.
  bool MayHaveGate(const StreamItem& item) const;
  // Whether others, peers or senders of messages, end it.
  bool IsForOthers(const StreamItem& item) const;
  // Nothing of a worker that isn't mapped, whose counters count as met.
  absl::StatusOr<std::optional<Stream::Awaited>> AwaitedOf(const PageWait& wait) const;
  bool NoneStandsStill();
  bool IsClear() { return gpu_.use->is_quiet() && NoneStandsStill(); }
  // Whether the host holds what may stand still.
  bool HoldsWaits() const { return !gpu_.use->StreamsOwnQueues(); }
  void LetGoLater(std::shared_ptr<void> what);
  // Makes what is made when the worker is clear, beside items; says whether there was anything.
  bool DoWhenClear();
  bool Poll();
  void FlushAll();
  // Nothing has come or passed since the last look.
  void AwaitMore();
  void Sleep(bool is_idle);
  void LookForLoss();
  void End();

  // Where the stream says afterwards what it wants, the item was not submitted.
  absl::Status Submit(size_t number, QueuedItem& item);
  absl::Status SubmitWait(size_t number, const PageWait& wait);
  absl::Status SubmitWork(Stream& stream, const DeviceWork& work, uint64_t number);
  absl::Status SubmitRest(Stream& stream, RestItem& rest, uint64_t number);
  Launcher::Turn TurnOf(Stream& stream);
  // Behind a turn for the work, or a part of it, which had this status. Where the stream says afterwards that it wants
  // something, nothing was submitted.
  absl::Status EndTurn(Stream& stream, const DeviceWork& work, uint64_t number, Launcher::Turn turn,
                       absl::Status status);
  // Whether the work was submitted, and with it what follows it in the queue: as one call of a library, one row
  // program, or a run of prepared kernels. The next works are joined only if they are in the queue already, or are
  // being handed over.
  absl::StatusOr<bool> SubmitWithNext(Stream& stream, const DeviceWork& work, Launcher::Turn& turn);
  // Puts the first kernel into run_, and those of the queue that may be joined with it.
  void FindRun(Stream& stream, const KernelWork& first);
  // Puts the copies and the gate that the step is made of in its place, in the queue.
  absl::Status QueueHostStep(Stream& stream, const KernelWork& work, uint64_t number);
  absl::Status SubmitRead(Stream& stream, const CopyWork& work);
  absl::Status SubmitAsync(Stream& stream, AsyncItem item);
  absl::Status SubmitReport(Stream& stream, Device::Report report);
  absl::Status SubmitTransfer(Stream& stream, TransferItem& transfer);
  void Fail(Stream& stream, absl::Status status);
  // Warns that something isn't computed as it should be; once of each kind.
  void WarnOnce(const absl::Status& why, std::string_view what, bool* has_warned);
  void ReplacePeer(NewPeer peer);

  // Used by threads that transfer.
  struct Moving {
    size_t done = 0;  // pieces; guarded by mutex_, as the first error
    absl::Status error;
  };
  // Pinned slots for the transfers of one direction, one at a time.
  struct Ring {
    absl::Status Make(const Gpu& gpu);
    std::byte* SlotOf(size_t piece) const { return slots[piece % slots.size()]; }
    std::mutex mutex;
    std::vector<std::byte*> slots;  // guarded by mutex
  };
  struct ReachedPiece {
    CopyWork work;
    std::shared_ptr<void> use = nullptr;
  };
  // Pieces of a transfer that the GPU does by itself; nothing where it can't.
  std::optional<std::vector<ReachedPiece>> PiecesReached(const CopyWork& work, TransferSide side);
  absl::Status Upload(const CopyWork& work, const Ring& ring);
  absl::Status Download(const CopyWork& work, const Ring& ring);
  void SubmitPiece(CopyWork piece, TransferSide side, const std::shared_ptr<Moving>& moving);
  // Until so many pieces are there. Unavailable where the device is gone.
  absl::Status AwaitPieces(const Moving& moving, size_t count);

  // Calls the function, of another thread, in a turn of its own, or when the loop is over.
  void InTurn(absl::FunctionRef<void()> call);
  void GiveTurn();

  const Gpu gpu_;
  CudaDeviceOptions options_;  // from Begin on
  std::unique_ptr<Launcher> launcher_;
  const std::shared_ptr<StagingPool> staging_;
  PinnedSlots reads_;
  std::array<HostThread, kLaneCount> host_;  // that compute for the streams of each lane
  bool has_warned_of_programs_ = false, has_warned_of_products_ = false, has_warned_of_dnn_ = false;
  bool has_warned_of_transforms_ = false, has_warned_of_solvers_ = false;
  bool has_warned_of_registered_ = false;  // of the thread that registers
  std::array<std::unique_ptr<Stream>, kAllStreams> streams_;
  std::map<WorkerIndex, Peer> peers_;
  std::atomic<bool> was_at_work_ = false, is_at_work_ = false;
  bool is_lost_ = false;
  bool is_alone_ = true;                // nothing has come so far that others end
  uint64_t next_number_ = 0;            // of an item
  bool is_clear_ = false;               // while an item is submitted, for all of that
  std::vector<const KernelWork*> run_;  // likewise: kernels that may be joined
  std::vector<Leaving> leaving_;
  Linger linger_;
  bool is_lingering_ = false;      // since the last news
  int64_t next_loss_look_ns_ = 0;  // at the earliest
  bool has_nothing_ = false;       // and what is held may come as a whole
  uint64_t taken_ = 0;             // of handed_over_

  std::mutex mutex_;
  std::atomic<uint64_t> handed_over_ = 0;  // items and peers so far; written under mutex_
  bool is_asleep_ = false;                 // guarded by mutex_: it is to be woken
  std::condition_variable given_, idle_;
  std::vector<Given> new_items_;           // guarded by mutex_
  std::vector<NewPeer> new_peers_;         // likewise
  std::map<WorkerIndex, uint32_t> pages_;  // likewise: the number of each peer's last page
  std::atomic<bool> is_held_ = false;      // written under mutex_
  bool is_idle_ = true;
  std::atomic<bool> is_stopping_ = false;  // written under mutex_
  std::thread thread_;

  enum class OtherTurn : uint8_t { kNone, kWanted, kGiven };
  std::atomic<OtherTurn> turn_ = OtherTurn::kNone;  // not kNone: written under mutex_
  std::condition_variable turn_given_;
  std::mutex turns_mutex_;  // of who has a turn, or wants one
  std::unique_ptr<RegisteredMemory> registered_;

  Ring up_, down_;
  std::atomic<int64_t> moved_bytes_ = 0, host_copied_bytes_ = 0;
  std::condition_variable piece_done_;
  bool is_over_ = false;  // the loop runs no more; guarded by mutex_
};

}  // namespace tessera::cuda
