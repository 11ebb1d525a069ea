#include "server/device/cpu/stream_pool.h"

#include <algorithm>
#include <utility>

#include "kernels/joined_kernels.h"
#include "server/device/be_nicer.h"
#include "server/device/cpu/doorbell.h"
#include "server/device/work.h"

namespace tessera {
namespace {

// A kernel that reads nothing of peers'; null where it is none.
const KernelCall* OwnKernel(const DeviceWork& work) {
  const KernelWork* kernel = std::get_if<KernelWork>(&work);
  return kernel == nullptr || !kernel->received.empty() ? nullptr : &kernel->call;
}

absl::Status RunTogether(const DeviceWork& work, const std::vector<DeviceItem>& joined) {
  std::array<const KernelCall*, kMaxJoinedKernels> calls = {OwnKernel(work)};
  for (size_t i = 0; i < joined.size(); ++i) calls[i + 1] = OwnKernel(std::get<DeviceWork>(joined[i]));
  return RunJoined(absl::MakeConstSpan(calls).subspan(0, joined.size() + 1)).status();
}

}  // namespace

StreamPool::StreamPool(const StreamPoolOptions& options) : options_(options) {
  for (size_t s = 0; s < kStreamCount; ++s) {
    if (ThreadsOf(static_cast<StreamId>(s)) == options.lane) own_.push_back(s);
  }
}

void StreamPool::Start() {
  for (int t = 0; t < std::max(1, options_.threads); ++t) threads_.emplace_back([this, t] { Loop(t); });
}

void StreamPool::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  Ring(bell());
  for (std::thread& thread : threads_) thread.join();
  // Items may hold the last reference to what reports into this state: they go without the lock.
  std::array<ItemQueue, kStreamCount> dropped;
  {
    std::lock_guard lock(mutex_);
    for (size_t s = 0; s < kStreamCount; ++s) std::swap(dropped[s], streams_[s].queue);
  }
}

void StreamPool::Push(StreamId stream, DeviceItem item) {
  {
    std::lock_guard lock(mutex_);
    if (auto* wait = std::get_if<PageWait>(&item)) wait->page = PeerAt(wait->worker).number;
    At(stream).queue.Push(std::move(item));
    if (is_held_ && ++held_items_ < kMaxHeldItems) return;
    held_items_ = 0;
  }
  Ring(bell());
}

void StreamPool::Hold() {
  std::lock_guard lock(mutex_);
  is_held_ = true;
}

void StreamPool::Flush() {
  {
    std::lock_guard lock(mutex_);
    is_held_ = false;
    if (std::exchange(held_items_, 0) == 0) return;
  }
  Ring(bell());
}

// A page may be the last share of an arena, which takes a while to unmap: it goes without the lock.
void StreamPool::SetPeer(WorkerIndex worker, std::shared_ptr<CounterPage> page) {
  {
    std::lock_guard lock(mutex_);
    Peer& peer = PeerAt(worker);
    std::swap(peer.page, page);
    ++peer.number;
  }
  Ring(bell());
}

bool StreamPool::WasAtWork() {
  std::lock_guard lock(mutex_);
  return std::exchange(has_worked_, false) || IsRunning();
}

void StreamPool::Drain() {
  std::unique_lock lock(mutex_);
  ++drainers_;
  drained_.wait(lock, [&] { return IsIdle(); });
  --drainers_;
}

StreamPool::Peer& StreamPool::PeerAt(WorkerIndex worker) {
  const size_t index = static_cast<size_t>(worker.value);
  if (peers_.size() <= index) peers_.resize(index + 1);
  return peers_[index];
}

bool StreamPool::IsIdle() const {
  return std::all_of(streams_.begin(), streams_.end(), [](const StreamState& s) { return s.queue.empty() && !s.busy; });
}

// The counter that a wait is on, or null where it counts as met (unmapped, dead, replaced).
std::atomic<uint64_t>* StreamPool::CounterOf(const PageWait& wait) {
  const auto stream = static_cast<size_t>(wait.stream);
  if (wait.worker == options_.self) return &options_.counters->counters[stream];
  const Peer& peer = PeerAt(wait.worker);
  return peer.page == nullptr || peer.number != wait.page ? nullptr : &peer.page->counters[stream];
}

// A stream whose head can run, its met waits passed; kStreamCount when there is none. mutex_ is held.
size_t StreamPool::FindRunnable(ParkedList& parked, size_t& parked_count) {
  parked_count = 0;
  for (size_t turn = 0; turn < own_.size(); ++turn) {
    const size_t place = (next_stream_ + turn) % own_.size();
    StreamState& stream = streams_[own_[place]];
    while (!stream.busy && !stream.queue.empty()) {
      const PageWait* wait = std::get_if<PageWait>(&stream.queue.front());
      if (wait == nullptr) {
        next_stream_ = (place + 1) % own_.size();
        return own_[place];
      }
      Parked& need = parked[parked_count];
      need.counter = CounterOf(*wait);
      need.value = wait->value;
      if (need.counter != nullptr && !need.met()) {
        if (wait->worker != options_.self) need.page = PeerAt(wait->worker).page;
        ++parked_count;
        break;
      }
      stream.queue.Pop();
    }
    if (drainers_ > 0 && stream.queue.empty()) drained_.notify_all();
  }
  return kStreamCount;
}

void StreamPool::Loop(int thread) {
  BeNicer(options_.nice);
  ThreadCpuClock cpu;
  cpu.Wake();
  std::unique_lock lock(mutex_);
  ParkedList parked;
  size_t parked_count = 0;
  Linger linger(options_.first_slot < 0 ? kNoHome : HomeCore(options_.first_slot + thread));
  while (!stopping_) {
    const uint32_t doorbell = bell().doorbell.load(std::memory_order_seq_cst);
    const size_t s = FindRunnable(parked, parked_count);
    if (s == kStreamCount) {
      lock.unlock();
      AwaitChange(doorbell, parked, parked_count, linger, cpu);
      for (size_t p = 0; p < parked_count; ++p) parked[p].page = nullptr;
      lock.lock();
      continue;
    }
    for (size_t p = 0; p < parked_count; ++p) parked[p].page = nullptr;
    RunItem(static_cast<StreamId>(s), lock, cpu);
  }
}

// Until the doorbell has changed or a parked stream's counter is there: spins, lingers, then sleeps.
void StreamPool::AwaitChange(uint32_t doorbell, const ParkedList& parked, size_t count, Linger& linger,
                             ThreadCpuClock& cpu) {
  LaneBell& own = bell();
  auto changed = [&] {
    if (own.doorbell.load(std::memory_order_seq_cst) != doorbell) return true;
    for (size_t p = 0; p < count; ++p) {
      if (parked[p].met()) return true;
    }
    return false;
  };
  for (int pause = 0; pause < options_.spin_pauses && MayWaitAwake(); ++pause) {
    if (changed()) return;
    SpinPause();
  }
  for (linger.Begin(options_.linger_ns); MayWaitAwake() && linger.Yield();) {
    if (changed()) return linger.Arrived();
  }
  // With more than one thread, others may have parked a stream since this one looked.
  const uint32_t watches = count > 0 || options_.threads > 1 ? 1 : 0;
  own.watching.fetch_add(watches, std::memory_order_seq_cst);
  own.sleeping.fetch_add(1, std::memory_order_seq_cst);
  if (!changed()) FutexWait(own.doorbell, doorbell);
  own.sleeping.fetch_sub(1, std::memory_order_seq_cst);
  own.watching.fetch_sub(watches, std::memory_order_seq_cst);
  cpu.Wake();
}

void StreamPool::RunItem(StreamId id, std::unique_lock<std::mutex>& lock, ThreadCpuClock& cpu) {
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
  int64_t began_ns = 0, ended_ns = 0, busy_ns = 0;
  if (work != nullptr) {
    began_ns = MonotonicNs();
    status = stream.joined.empty() ? RunDeviceWork(*work) : RunTogether(*work, stream.joined);
    ended_ns = MonotonicNs();
    busy_ns = cpu.BusyNs(began_ns, ended_ns);
  }
  if (const SignalItem* signal = std::get_if<SignalItem>(&item)) Publish(id, signal->value);
  if (ReportItem* report = std::get_if<ReportItem>(&item)) report->report(std::move(reported), times);
  const bool was_work = work != nullptr;
  item = std::monostate{};
  stream.joined.clear();
  lock.lock();
  if (was_work) {
    --running_;
    stream.clock.Worked(began_ns, ended_ns, busy_ns);
  }
  EndItem(stream, std::move(status));
}

// The kernels that follow one and that may run with it leave the queue. mutex_ is held.
void StreamPool::TakeJoined(const DeviceWork& work, StreamState& stream) {
  const KernelCall* call = OwnKernel(work);
  while (call != nullptr && !stream.queue.empty() && stream.joined.size() + 1 < kMaxJoinedKernels) {
    const DeviceWork* next = std::get_if<DeviceWork>(&stream.queue.front());
    const KernelCall* next_call = next == nullptr ? nullptr : OwnKernel(*next);
    if (next_call == nullptr || !MayJoin(*call, *next_call)) return;
    stream.joined.push_back(stream.queue.Pop());
  }
}

// mutex_ is held.
void StreamPool::EndItem(StreamState& stream, absl::Status status) {
  if (!status.ok() && stream.error.ok()) stream.error = std::move(status);
  stream.busy = false;
  if (drainers_ > 0) drained_.notify_all();
}

// Rings under the lock: the page lasts until Stop, which may be over as soon as the lock is free.
void StreamPool::FinishAsync(StreamId id, absl::Status status) {
  const int64_t now_ns = MonotonicNs();
  std::shared_ptr<StreamPool> self;  // may be the last: it goes after the lock
  std::lock_guard lock(mutex_);
  At(id).clock.Passed(now_ns);
  self = std::move(At(id).keep_alive);
  EndItem(At(id), std::move(status));
  has_worked_ = true;
  if (!stopping_) Ring(bell());
}

void StreamPool::Publish(StreamId id, uint64_t value) {
  std::atomic<uint64_t>& counter = options_.counters->counters[static_cast<size_t>(id)];
  if (counter.load(std::memory_order_relaxed) >= value) return;
  counter.store(value, std::memory_order_seq_cst);
  std::lock_guard lock(mutex_);
  for (const Peer& peer : peers_) {
    if (peer.page != nullptr) RingWatchers(*peer.page);
  }
  RingWatchers(*options_.counters);
}

}  // namespace tessera
