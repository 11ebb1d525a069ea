#include "server/device/cpu/cpu_device.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "kernels/joined_kernels.h"
#include "schemas/codec/monotonic_clock.h"
#include "server/device/cpu/doorbell.h"
#include "server/device/cpu/item_queue.h"
#include "server/device/run_clock.h"
#include "server/device/work.h"

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

class CpuDevice::State : public std::enable_shared_from_this<CpuDevice::State> {
 public:
  explicit State(const CpuDeviceOptions& options) : options_(options) {}

  void Start() {
    for (int t = 0; t < std::max(1, options_.threads); ++t) threads_.emplace_back([this, t] { Loop(t); });
  }

  void Stop() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    Ring(*options_.counters);
    for (std::thread& thread : threads_) thread.join();
    // Items may hold the last reference to what reports into this state: they go without the lock.
    std::array<ItemQueue, kStreamCount> dropped;
    {
      std::lock_guard lock(mutex_);
      for (size_t s = 0; s < kStreamCount; ++s) std::swap(dropped[s], streams_[s].queue);
    }
  }

  void Push(StreamId stream, DeviceItem item) {
    {
      std::lock_guard lock(mutex_);
      At(stream).queue.Push(std::move(item));
      if (is_held_ && ++held_items_ < kMaxHeldItems) return;
      held_items_ = 0;
    }
    Ring(*options_.counters);
  }

  void Hold() {
    std::lock_guard lock(mutex_);
    is_held_ = true;
  }

  void Flush() {
    {
      std::lock_guard lock(mutex_);
      is_held_ = false;
      if (std::exchange(held_items_, 0) == 0) return;
    }
    Ring(*options_.counters);
  }

  // A page may be the last share of an arena, which takes a while to unmap: it goes without the lock.
  void SetPeer(WorkerIndex worker, std::shared_ptr<CounterPage> page) {
    {
      std::lock_guard lock(mutex_);
      std::swap(PeerAt(worker), page);
    }
    Ring(*options_.counters);
  }

  bool WasAtWork() {
    std::lock_guard lock(mutex_);
    return std::exchange(has_worked_, false) || running_ > 0;
  }

  void Drain() {
    std::unique_lock lock(mutex_);
    ++drainers_;
    drained_.wait(lock, [&] { return IsIdle(); });
    --drainers_;
  }

 private:
  struct StreamState {
    ItemQueue queue;
    bool busy = false;  // an item of it runs, or is under way elsewhere
    absl::Status error;
    RunClock clock;
    std::vector<DeviceItem> joined;     // kernels that run with the item at hand; its memory is used again
    std::shared_ptr<State> keep_alive;  // while an item is under way elsewhere, which outlives the device
  };
  // What a parked stream waits for.
  struct Parked {
    std::atomic<uint64_t>* counter = nullptr;
    uint64_t value = 0;
    std::shared_ptr<CounterPage> page;  // a peer's, shared while a thread looks at the counter
    bool met() const { return counter->load(std::memory_order_seq_cst) >= value; }
  };
  using ParkedList = std::array<Parked, kStreamCount>;

  StreamState& At(StreamId stream) { return streams_[static_cast<size_t>(stream)]; }
  std::shared_ptr<CounterPage>& PeerAt(WorkerIndex worker) {
    const size_t index = static_cast<size_t>(worker.value);
    if (peers_.size() <= index) peers_.resize(index + 1);
    return peers_[index];
  }
  bool IsIdle() const {
    return std::all_of(streams_.begin(), streams_.end(),
                       [](const StreamState& s) { return s.queue.empty() && !s.busy; });
  }

  // The counter that a wait is on, or null where it counts as met (unmapped, dead).
  std::atomic<uint64_t>* CounterOf(const CounterWait& wait) {
    CounterPage* page = nullptr;
    if (wait.worker == options_.self) {
      page = options_.counters;
    } else if (static_cast<size_t>(wait.worker.value) < peers_.size()) {
      page = PeerAt(wait.worker).get();
    }
    return page == nullptr ? nullptr : &page->counters[static_cast<size_t>(wait.stream)];
  }

  // A stream whose head can run, its met waits passed; kStreamCount when there is none. mutex_ is held.
  size_t FindRunnable(ParkedList& parked, size_t& parked_count) {
    parked_count = 0;
    for (size_t turn = 0; turn < kStreamCount; ++turn) {
      const size_t s = (next_stream_ + turn) % kStreamCount;
      StreamState& stream = streams_[s];
      while (!stream.busy && !stream.queue.empty()) {
        const CounterWait* wait = std::get_if<CounterWait>(&stream.queue.front());
        if (wait == nullptr) {
          next_stream_ = (s + 1) % kStreamCount;
          return s;
        }
        Parked& need = parked[parked_count];
        need.counter = CounterOf(*wait);
        need.value = wait->value;
        if (need.counter != nullptr && !need.met()) {
          if (wait->worker != options_.self) need.page = PeerAt(wait->worker);
          ++parked_count;
          break;
        }
        stream.queue.Pop();
      }
      if (drainers_ > 0 && stream.queue.empty()) drained_.notify_all();
    }
    return kStreamCount;
  }

  void Loop(int thread) {
    std::unique_lock lock(mutex_);
    ParkedList parked;
    size_t parked_count = 0;
    Linger linger(options_.first_slot < 0 ? kNoHome : HomeCore(options_.first_slot + thread));
    while (!stopping_) {
      const uint32_t doorbell = options_.counters->doorbell.load(std::memory_order_seq_cst);
      const size_t s = FindRunnable(parked, parked_count);
      if (s == kStreamCount) {
        lock.unlock();
        AwaitChange(doorbell, parked, parked_count, linger);
        for (size_t p = 0; p < parked_count; ++p) parked[p].page = nullptr;
        lock.lock();
        continue;
      }
      for (size_t p = 0; p < parked_count; ++p) parked[p].page = nullptr;
      RunItem(static_cast<StreamId>(s), lock);
    }
  }

  // Until the doorbell has changed or a parked stream's counter is there: spins, lingers, then sleeps.
  void AwaitChange(uint32_t doorbell, const ParkedList& parked, size_t count, Linger& linger) {
    CounterPage& page = *options_.counters;
    auto changed = [&] {
      if (page.doorbell.load(std::memory_order_seq_cst) != doorbell) return true;
      for (size_t p = 0; p < count; ++p) {
        if (parked[p].met()) return true;
      }
      return false;
    };
    for (int pause = 0; pause < options_.spin_pauses; ++pause) {
      if (changed()) return;
      SpinPause();
    }
    for (linger.Begin(options_.linger_ns); linger.Yield();) {
      if (changed()) return linger.Arrived();
    }
    page.sleeping.fetch_add(1, std::memory_order_seq_cst);
    if (!changed()) FutexWait(page.doorbell, doorbell);
    page.sleeping.fetch_sub(1, std::memory_order_seq_cst);
  }

  void RunItem(StreamId id, std::unique_lock<std::mutex>& lock) {
    StreamState& stream = At(id);
    DeviceItem item = stream.queue.Pop();
    stream.busy = true;
    if (AsyncItem* async = std::get_if<AsyncItem>(&item)) {
      // The stream stays busy until Done.
      stream.keep_alive = shared_from_this();
      has_worked_ = true;
      stream.clock.Passed(MonotonicNs());
      lock.unlock();
      async->start([this, id](absl::Status status) { FinishAsync(id, std::move(status)); });
      item = std::monostate{};
      lock.lock();
      return;
    }
    absl::Status reported;
    RunTimes times;
    if (std::holds_alternative<ReportItem>(item)) {
      reported = std::exchange(stream.error, absl::OkStatus());
      times = stream.clock.Take();
    }
    const DeviceWork* work = std::get_if<DeviceWork>(&item);
    if (work != nullptr) {
      has_worked_ = true;
      ++running_;
      TakeJoined(*work, stream);
    }
    lock.unlock();
    absl::Status status;
    int64_t began_ns = 0, ended_ns = 0;
    if (work != nullptr) {
      began_ns = MonotonicNs();
      status = stream.joined.empty() ? RunDeviceWork(*work) : RunTogether(*work, stream.joined);
      ended_ns = MonotonicNs();
    }
    if (const SignalItem* signal = std::get_if<SignalItem>(&item)) Publish(id, signal->value);
    if (ReportItem* report = std::get_if<ReportItem>(&item)) report->report(std::move(reported), times);
    const bool was_work = work != nullptr;
    item = std::monostate{};
    stream.joined.clear();
    lock.lock();
    if (was_work) {
      --running_;
      stream.clock.Worked(began_ns, ended_ns);
    }
    EndItem(stream, std::move(status));
  }

  // A kernel that reads nothing of peers'; null where it is none.
  static const KernelCall* OwnKernel(const DeviceWork& work) {
    const KernelWork* kernel = std::get_if<KernelWork>(&work);
    return kernel == nullptr || !kernel->received.empty() ? nullptr : &kernel->call;
  }

  // The kernels that follow one and that may run with it leave the queue. mutex_ is held.
  static void TakeJoined(const DeviceWork& work, StreamState& stream) {
    const KernelCall* call = OwnKernel(work);
    while (call != nullptr && !stream.queue.empty() && stream.joined.size() + 1 < kMaxJoinedKernels) {
      const DeviceWork* next = std::get_if<DeviceWork>(&stream.queue.front());
      const KernelCall* next_call = next == nullptr ? nullptr : OwnKernel(*next);
      if (next_call == nullptr || !MayJoin(*call, *next_call)) return;
      stream.joined.push_back(stream.queue.Pop());
    }
  }

  static absl::Status RunTogether(const DeviceWork& work, const std::vector<DeviceItem>& joined) {
    std::array<const KernelCall*, kMaxJoinedKernels> calls = {OwnKernel(work)};
    for (size_t i = 0; i < joined.size(); ++i) calls[i + 1] = OwnKernel(std::get<DeviceWork>(joined[i]));
    return RunJoined(absl::MakeConstSpan(calls).subspan(0, joined.size() + 1)).status();
  }

  // mutex_ is held.
  void EndItem(StreamState& stream, absl::Status status) {
    if (!status.ok() && stream.error.ok()) stream.error = std::move(status);
    stream.busy = false;
    if (drainers_ > 0) drained_.notify_all();
  }

  // Rings under the lock: the page lasts until Stop, which may be over as soon as the lock is free.
  void FinishAsync(StreamId id, absl::Status status) {
    const int64_t now_ns = MonotonicNs();
    std::shared_ptr<State> self;  // may be the last: it goes after the lock
    std::lock_guard lock(mutex_);
    At(id).clock.Passed(now_ns);
    self = std::move(At(id).keep_alive);
    EndItem(At(id), std::move(status));
    has_worked_ = true;
    if (!stopping_) Ring(*options_.counters);
  }

  void Publish(StreamId id, uint64_t value) {
    std::atomic<uint64_t>& counter = options_.counters->counters[static_cast<size_t>(id)];
    if (counter.load(std::memory_order_relaxed) >= value) return;
    counter.store(value, std::memory_order_seq_cst);
    std::lock_guard lock(mutex_);
    for (const std::shared_ptr<CounterPage>& peer : peers_) {
      if (peer != nullptr) RingIfSleeping(*peer);
    }
    RingIfSleeping(*options_.counters);
  }

  const CpuDeviceOptions options_;
  std::mutex mutex_;
  std::condition_variable drained_;
  std::array<StreamState, kStreamCount> streams_;
  std::vector<std::shared_ptr<CounterPage>> peers_;  // by worker index; null: unmapped or dead
  size_t next_stream_ = 0;
  int drainers_ = 0;
  bool has_worked_ = false;  // since WasAtWork was asked
  int running_ = 0;          // works of EnqueueRun
  bool stopping_ = false;
  bool is_held_ = false;
  int64_t held_items_ = 0;  // for which nobody was rung
  std::vector<std::thread> threads_;
};

CpuDevice::CpuDevice(const CpuDeviceOptions& options) : state_(std::make_shared<State>(options)) { state_->Start(); }
CpuDevice::~CpuDevice() { state_->Stop(); }

void CpuDevice::Hold() { state_->Hold(); }
void CpuDevice::Flush() { state_->Flush(); }
void CpuDevice::EnqueueWait(StreamId stream, const CounterWait& wait) { state_->Push(stream, wait); }
void CpuDevice::EnqueueRun(StreamId stream, DeviceWork work) { state_->Push(stream, std::move(work)); }
void CpuDevice::EnqueueAsync(StreamId stream, Start start) { state_->Push(stream, AsyncItem{std::move(start)}); }
void CpuDevice::EnqueueSignal(StreamId stream, uint64_t value) { state_->Push(stream, SignalItem{value}); }
void CpuDevice::EnqueueReport(StreamId stream, Report report) { state_->Push(stream, ReportItem{std::move(report)}); }
void CpuDevice::MarkDead(WorkerIndex worker) { state_->SetPeer(worker, nullptr); }
void CpuDevice::MapCounters(WorkerIndex worker, std::shared_ptr<CounterPage> page) {
  state_->SetPeer(worker, std::move(page));
}
bool CpuDevice::WasAtWork() { return state_->WasAtWork(); }
void CpuDevice::Drain() { state_->Drain(); }

}  // namespace tessera
