#pragma once

// StreamPool: a lane of a CpuDevice: some streams and the threads that take their items. A stream is run by one thread
// at a time, and a parked stream holds none. Pools share nothing but the counter page, so a thread that loses its core
// keeps no other lane from going on.
//
// Calls are those of Device (device.h), for streams of the pool alone.

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "schemas/host/linger.h"
#include "server/device/counters.h"
#include "server/device/cpu/item_queue.h"
#include "server/device/cpu/thread_cpu_clock.h"
#include "server/device/run_clock.h"

namespace tessera {

inline constexpr int64_t kMaxHeldItems = 64;  // docs/limits.md: max_held_items

struct StreamPoolOptions {
  WorkerIndex self;
  CounterPage* counters = nullptr;  // the own page; outlives the pool
  Lane lane = Lane::kBatch;
  int threads = 1;
  int nice = 0;  // added to that of the process
  int spin_pauses = 200;
  int64_t linger_ns = kLingerNs;
  int first_slot = -1;  // of a home for each thread (HomeCore); negative: none has one
  // While this one runs something, threads that wait sleep at once: they share its cores.
  const class StreamPool* yields_to = nullptr;
};

class StreamPool : public std::enable_shared_from_this<StreamPool> {
 public:
  explicit StreamPool(const StreamPoolOptions& options);

  void Start();
  // Ends the threads after their current items; items still enqueued are dropped, not run.
  void Stop();

  void Push(StreamId stream, DeviceItem item);
  void Hold();
  void Flush();
  void SetPeer(WorkerIndex worker, std::shared_ptr<CounterPage> page);
  bool WasAtWork();
  void Drain();
  bool IsRunning() const { return running_.load(std::memory_order_relaxed) > 0; }

 private:
  struct StreamState {
    ItemQueue queue;
    bool busy = false;  // an item of it runs, or is under way elsewhere
    absl::Status error;
    RunClock clock;
    std::vector<DeviceItem> joined;          // kernels that run with the item at hand; its memory is used again
    std::shared_ptr<StreamPool> keep_alive;  // while an item is under way elsewhere, which outlives the device
  };
  // A parked stream waits for these.
  struct Parked {
    std::atomic<uint64_t>* counter = nullptr;
    uint64_t value = 0;
    std::shared_ptr<CounterPage> page;  // a peer's, shared while a thread looks at the counter
    bool met() const { return counter->load(std::memory_order_seq_cst) >= value; }
  };
  using ParkedList = std::array<Parked, kStreamCount>;
  struct Peer {
    std::shared_ptr<CounterPage> page;  // null: unmapped or dead
    uint32_t number = 0;                // of the page
  };

  StreamState& At(StreamId stream) { return streams_[static_cast<size_t>(stream)]; }
  LaneBell& bell() { return options_.counters->bell(options_.lane); }
  Peer& PeerAt(WorkerIndex worker);
  bool IsIdle() const;
  std::atomic<uint64_t>* CounterOf(const PageWait& wait);
  size_t FindRunnable(ParkedList& parked, size_t& parked_count);
  void Loop(int thread);
  void AwaitChange(uint32_t doorbell, const ParkedList& parked, size_t count, Linger& linger, ThreadCpuClock& cpu);
  void RunItem(StreamId id, std::unique_lock<std::mutex>& lock, ThreadCpuClock& cpu);
  static void TakeJoined(const DeviceWork& work, StreamState& stream);
  void EndItem(StreamState& stream, absl::Status status);
  void FinishAsync(StreamId id, absl::Status status);
  void Publish(StreamId id, uint64_t value);
  bool MayWaitAwake() const { return options_.yields_to == nullptr || !options_.yields_to->IsRunning(); }

  const StreamPoolOptions options_;
  std::mutex mutex_;
  std::condition_variable drained_;
  std::array<StreamState, kStreamCount> streams_;  // those of other lanes are never used
  std::vector<size_t> own_;                        // numbers of the lane's streams
  std::vector<Peer> peers_;                        // by worker index
  size_t next_stream_ = 0;                         // of own_
  int drainers_ = 0;
  bool has_worked_ = false;       // since WasAtWork was asked
  std::atomic<int> running_ = 0;  // works of EnqueueRun
  bool stopping_ = false;
  bool is_held_ = false;
  int64_t held_items_ = 0;  // for which nobody was rung
  std::vector<std::thread> threads_;
};

}  // namespace tessera
