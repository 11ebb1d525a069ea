#include "server/device/cuda/device_loop.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "schemas/host/monotonic_clock.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera::cuda {
namespace {

// How long the loop lingers while something is under way and nothing passes. docs/limits.md: gpu_linger
constexpr int64_t kUnderWayLingerNs = 20'000'000;
// How long it sleeps then between two looks at the progress of what is under way. docs/limits.md: gpu_poll
constexpr std::chrono::microseconds kPoll(20);
// How often the driver is asked whether the device still works, while nothing passes.
constexpr int64_t kAskNs = 10'000'000;
// As many operations as an item takes, beside those of work: an EnqueueAsync has two marks, a wait and one mark more.
constexpr uint64_t kMostOperations = 4;
static_assert(kAllStreams <= size_t{kConnections}, "each stream has a queue of the GPU");
constexpr std::string_view kUnregistered = "memory of clients isn't registered, and the host copies what moves there: ";

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice::Loop>> CudaDevice::Loop::Prepare(const Gpu& gpu) {
  TESSERA_RETURN_IF_ERROR(gpu.Enter());
  std::unique_ptr<Loop> loop(new Loop(gpu));
  TESSERA_ASSIGN_OR_RETURN(loop->launcher_, Launcher::Make(gpu));
  for (size_t s = 0; s < loop->streams_.size(); ++s) {
    const Lane lane = s >= kStreamCount ? Lane::kBatch : ThreadsOf(static_cast<StreamId>(s));
    TESSERA_ASSIGN_OR_RETURN(loop->streams_[s], Stream::Make(gpu, lane));
  }
  TESSERA_RETURN_IF_ERROR(
      loop->launcher_->ReserveForProducts(loop->streams_[static_cast<size_t>(StreamId::kCompute)]->workspace));
  return loop;
}

absl::Status CudaDevice::Loop::Begin(const CudaDeviceOptions& options) {
  TESSERA_RETURN_IF_ERROR(gpu_.Enter());
  options_ = options;
  TESSERA_RETURN_IF_ERROR(gpu_.driver->Check(
      "cuMemHostRegister of the own counters",
      gpu_.driver->MemHostRegister(options.counters, kCounterPageBytes, CU_MEMHOSTREGISTER_PORTABLE)));
  registered_ = std::make_unique<RegisteredMemory>(
      gpu_,
      RegisteredMemory::Options{
          .in_turn = [this](absl::FunctionRef<void()> call) { InTurn(call); },
          .refused = [this](const absl::Status& why) { WarnOnce(why, kUnregistered, &has_warned_of_registered_); },
          .idle_ns = options_.registered_idle_ns});
  launcher_->SetInTurn([this](absl::FunctionRef<void()> call) { InTurn(call); });
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

CudaDevice::Loop::~Loop() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  given_.notify_all();
  thread_.join();
  for (HostThread& thread : host_) thread.Stop();
  launcher_->StopThread();
  gpu_.Enter().IgnoreError();
  for (const std::unique_ptr<Stream>& stream : streams_) stream->LetGo();
  for (const std::unique_ptr<Stream>& stream : streams_) stream->Abandon();
  registered_ = nullptr;
  leaving_.clear();
  for (auto& [worker, peer] : peers_) {
    if (peer.is_registered && peer.status.ok()) gpu_.driver->MemHostUnregister(peer.page.get());
  }
  gpu_.driver->MemHostUnregister(options_.counters);
  for (const Ring* ring : {&up_, &down_}) {
    for (std::byte* slot : ring->slots) gpu_.driver->MemFreeHost(slot);
  }
}

// ---- what other threads hand over

void CudaDevice::Loop::Push(size_t stream, StreamItem item) {
  std::lock_guard lock(mutex_);
  if (auto* wait = std::get_if<PageWait>(&item)) wait->page = pages_[wait->worker];
  new_items_.push_back({stream, std::move(item)});
  ++handed_over_;
  is_idle_ = false;
  if (is_asleep_ && !is_held_) given_.notify_one();
}

void CudaDevice::Loop::SetPeer(WorkerIndex worker, std::shared_ptr<CounterPage> page) {
  std::lock_guard lock(mutex_);
  new_peers_.push_back({worker, std::move(page), ++pages_[worker]});
  ++handed_over_;
  is_idle_ = false;
  given_.notify_one();
}

void CudaDevice::Loop::Hold() {
  std::lock_guard lock(mutex_);
  is_held_ = true;
}

void CudaDevice::Loop::Flush() {
  std::lock_guard lock(mutex_);
  is_held_ = false;
  if (is_asleep_ && !new_items_.empty()) given_.notify_one();
}

void CudaDevice::Loop::Drain() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return is_idle_ || is_over_; });
}

bool CudaDevice::Loop::Take() {
  if (handed_over_ == taken_) return false;
  std::vector<Given> items;
  std::vector<NewPeer> peers;
  {
    std::lock_guard lock(mutex_);
    if (is_held_ && has_nothing_ && new_peers_.empty()) return false;
    std::swap(items, new_items_);
    std::swap(peers, new_peers_);
    taken_ = handed_over_;
    has_nothing_ = false;
  }
  for (NewPeer& peer : peers) ReplacePeer(std::move(peer));
  for (Given& given : items) {
    is_alone_ = is_alone_ && !IsForOthers(given.item);
    streams_[given.stream]->queue.push_back({++next_number_, std::move(given.item)});
  }
  return !items.empty() || !peers.empty();
}

// ---- the loop

void CudaDevice::Loop::Run() {
  gpu_.Enter().IgnoreError();
  prctl(PR_SET_TIMERSLACK, 1UL);  // sleeps of kPoll are that long
  while (!is_stopping_) {
    const bool was_given = Take();
    const bool has_registered = DoWhenClear();
    const bool has_submitted = SubmitSome() || has_registered;
    // More of the work that was handed over meanwhile may fit the same calls.
    if (handed_over_ == taken_) FlushAll();
    const bool has_passed = Poll();
    if (is_lost_) break;
    if (was_given || has_submitted || has_passed) {
      if (std::exchange(is_lingering_, false)) linger_.Arrived();
      next_loss_look_ns_ = 0;
    } else {
      AwaitMore();
    }
  }
  End();
}

void CudaDevice::Loop::AwaitMore() {
  const int64_t now_ns = MonotonicNs();
  if (next_loss_look_ns_ == 0) next_loss_look_ns_ = now_ns + kAskNs;
  if (now_ns >= next_loss_look_ns_) {
    next_loss_look_ns_ = now_ns + kAskNs;
    LookForLoss();
    if (is_lost_) return;
  }
  bool is_idle = true;
  for (const std::unique_ptr<Stream>& stream : streams_) is_idle = is_idle && stream->is_idle();
  has_nothing_ = is_idle;
  if (!std::exchange(is_lingering_, true)) {
    if (is_idle) {
      std::lock_guard lock(mutex_);
      is_idle_ = new_items_.empty() && new_peers_.empty();
      if (is_idle_) idle_.notify_all();
    }
    linger_.Begin(is_idle ? kLingerNs : kUnderWayLingerNs);
  }
  if (!linger_.Yield()) Sleep(is_idle);
}

bool CudaDevice::Loop::NoneStandsStill() {
  return std::none_of(streams_.begin(), streams_.end(),
                      [](const std::unique_ptr<Stream>& stream) { return stream->StandsStill(); });
}

std::optional<size_t> CudaDevice::Loop::NextStream() {
  for (const size_t s : {kUploadStream, kDownloadStream}) {
    if (MaySubmit(s)) return s;
  }
  std::optional<size_t> first;
  for (size_t s = 0; s < kStreamCount; ++s) {
    const auto& queue = streams_[s]->queue;
    if (!queue.empty() && (!first.has_value() || queue.front().number < streams_[*first]->queue.front().number)) {
      first = s;
    }
  }
  if (!first.has_value()) return first;
  const auto goes_by_itself = [this](size_t s) {
    return MaySubmit(s) && !MayStandStill(streams_[s]->queue.front().item);
  };
  for (size_t s = 0; s < kStreamCount; ++s) {
    if (LaneOf(static_cast<StreamId>(s)) == Lane::kLight && goes_by_itself(s)) return s;
  }
  if (MaySubmit(*first)) return first;
  for (size_t s = 0; s < kStreamCount; ++s) {
    if (goes_by_itself(s)) return s;
  }
  return std::nullopt;
}

bool CudaDevice::Loop::MaySubmit(size_t number) {
  Stream& stream = *streams_[number];
  if (stream.queue.empty() || stream.is_full() || stream.is_held()) return false;
  const StreamItem& item = stream.queue.front().item;
  if (turn_ == OtherTurn::kGiven && (MayStandStill(item) || MayHaveGate(item))) return false;
  if (const auto* wait = std::get_if<PageWait>(&item)) return MaySubmitWait(number, *wait);
  if (stream.wants_clear && !IsClear()) return false;
  if (stream.wants_made != nullptr && !stream.wants_made->load()) return false;
  if (const auto* rest = std::get_if<RestItem>(&item); rest != nullptr && !rest->beside->is_made) return false;
  return stream.Room() >= std::max(stream.wants_room, kMostOperations);
}

bool CudaDevice::Loop::MaySubmitWait(size_t number, const PageWait& wait) {
  const absl::StatusOr<std::optional<Stream::Awaited>> awaited = AwaitedOf(wait);
  if (!awaited.ok() || !awaited->has_value() || (*awaited)->met()) return true;
  if (streams_[number]->Room() < kMostOperations) return false;
  if (wait.worker == options_.self) return streams_[static_cast<size_t>(wait.stream)]->GivesEvent(wait.value);
  return peers_.at(wait.worker).is_registered && !HoldsWaits();
}

bool CudaDevice::Loop::MayStandStill(const StreamItem& item) {
  if (HoldsWaits()) return false;
  if (const auto* async = std::get_if<AsyncItem>(&item)) return async->ends_by == EndsBy::kOthers;
  const auto* wait = std::get_if<PageWait>(&item);
  if (wait == nullptr) return false;
  const absl::StatusOr<std::optional<Stream::Awaited>> awaited = AwaitedOf(*wait);
  if (!awaited.ok() || !awaited->has_value() || (*awaited)->met()) return false;
  return wait->worker != options_.self || streams_[static_cast<size_t>(wait->stream)]->IsParked();
}

bool CudaDevice::Loop::MayHaveGate(const StreamItem& item) const {
  const auto* async = std::get_if<AsyncItem>(&item);
  return async != nullptr && !(is_alone_ && async->ends_by == EndsBy::kHost);
}

bool CudaDevice::Loop::IsForOthers(const StreamItem& item) const {
  if (const auto* async = std::get_if<AsyncItem>(&item)) return async->ends_by == EndsBy::kOthers;
  const auto* wait = std::get_if<PageWait>(&item);
  return wait != nullptr && wait->worker != options_.self;
}

bool CudaDevice::Loop::SubmitSome() {
  bool any = false;
  Stream* before = nullptr;
  // A light item that comes meanwhile is the next one.
  for (std::optional<size_t> next = NextStream(); next.has_value(); Take(), next = NextStream()) {
    Stream& stream = *streams_[*next];
    if (before != nullptr && before != &stream) Fail(*before, before->Flush());
    before = &stream;
    any = true;
    QueuedItem queued = std::move(stream.queue.front());
    stream.queue.pop_front();
    stream.wants_clear = false;
    stream.wants_room = 0;
    stream.wants_made = nullptr;
    absl::Status status;
    {
      const std::shared_lock<std::shared_mutex> quiet = gpu_.use->TryQuiet();
      is_clear_ = quiet.owns_lock() && NoneStandsStill();
      status = Submit(*next, queued);
      is_clear_ = false;
    }
    if (stream.wants_something()) {
      stream.queue.push_front(std::move(queued));
      continue;
    }
    if (status.ok()) continue;
    Fail(stream, std::move(status));
    LookForLoss();
    if (is_lost_) return true;
  }
  return any;
}

void CudaDevice::Loop::LetGoLater(std::shared_ptr<void> what) {
  Leaving& leaving = leaving_.emplace_back();
  leaving.what = std::move(what);
  for (size_t s = 0; s < streams_.size(); ++s) leaving.submitted[s] = streams_[s]->submitted();
}

bool CudaDevice::Loop::DoWhenClear() {
  const bool registers =
      std::any_of(peers_.begin(), peers_.end(), [](const auto& peer) { return !peer.second.is_registered; });
  const bool others_want = turn_ == OtherTurn::kWanted;
  if (!registers && leaving_.empty() && !staging_->has_large() && !others_want) return false;
  for (const Leaving& leaving : leaving_) {
    for (size_t s = 0; s < streams_.size(); ++s) {
      Stream& stream = *streams_[s];
      if (stream.Room() >= kMostOperations) Fail(stream, stream.MarkBehind(leaving.submitted[s]));
    }
  }
  std::shared_lock<std::shared_mutex> quiet = gpu_.use->TryQuiet();
  if (!quiet.owns_lock() || !NoneStandsStill()) return false;
  staging_->FreeLarge();
  std::erase_if(leaving_, [this](const Leaving& leaving) {
    for (size_t s = 0; s < streams_.size(); ++s) {
      if (streams_[s]->passed() < leaving.submitted[s]) return false;
    }
    return true;
  });
  for (auto& [worker, peer] : peers_) {
    if (peer.is_registered) continue;
    peer.is_registered = true;
    peer.status = gpu_.driver->Check(
        StrCat("cuMemHostRegister of the counters of worker ", worker.value),
        gpu_.driver->MemHostRegister(peer.page.get(), kCounterPageBytes, CU_MEMHOSTREGISTER_PORTABLE));
  }
  quiet.unlock();
  if (others_want) GiveTurn();
  return registers;
}

bool CudaDevice::Loop::Poll() {
  bool any = false, is_at_work = false;
  for (const std::unique_ptr<Stream>& stream : streams_) {
    any = stream->Poll() || any;
    is_at_work = is_at_work || stream->IsAtWork();
  }
  is_at_work_ = is_at_work;
  return any;
}

void CudaDevice::Loop::FlushAll() {
  for (const std::unique_ptr<Stream>& stream : streams_) {
    absl::Status status = stream->Flush();
    if (status.ok()) continue;
    Fail(*stream, std::move(status));
    LookForLoss();
  }
}

void CudaDevice::Loop::Sleep(bool is_idle) {
  std::unique_lock lock(mutex_);
  const auto has_more = [&] { return is_stopping_ || !new_peers_.empty() || (!is_held_ && !new_items_.empty()); };
  is_asleep_ = true;
  if (is_idle) {
    given_.wait(lock, [&] { return has_more() || turn_ == OtherTurn::kWanted; });
  } else {
    given_.wait_for(lock, kPoll, has_more);
  }
  is_asleep_ = false;
}

// A stream of a context that is of no use any more answers with its error.
void CudaDevice::Loop::LookForLoss() {
  if (is_lost_) return;
  const CUresult result = gpu_.driver->StreamQuery(streams_[0]->get());
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) return;
  is_lost_ = true;
  if (options_.lost) options_.lost(gpu_.driver->Check("the GPU is lost", result));
}

void CudaDevice::Loop::End() {
  std::lock_guard lock(mutex_);
  is_over_ = true;
  piece_done_.notify_all();
  turn_given_.notify_all();
  idle_.notify_all();
}

void CudaDevice::Loop::Fail(Stream& stream, absl::Status status) {
  if (stream.submit_error.ok()) stream.submit_error = std::move(status);
}

// ---- items

absl::Status CudaDevice::Loop::Submit(size_t number, QueuedItem& item) {
  struct Submitter {
    Loop& loop;
    size_t number;
    uint64_t place;
    Stream& stream;
    absl::Status operator()(const PageWait& wait) const { return loop.SubmitWait(number, wait); }
    absl::Status operator()(const DeviceWork& work) const { return loop.SubmitWork(stream, work, place); }
    absl::Status operator()(const ReadItem& read) const { return loop.SubmitRead(stream, read.work); }
    absl::Status operator()(AsyncItem& async) const { return loop.SubmitAsync(stream, std::move(async)); }
    absl::Status operator()(const SignalItem& signal) const {
      std::atomic<uint64_t>* counter = &loop.options_.counters->counters[number];
      return stream.Signal({counter, signal.value}, AddressOf(counter));
    }
    absl::Status operator()(ReportItem& report) const { return loop.SubmitReport(stream, std::move(report.report)); }
    absl::Status operator()(TransferItem& transfer) const { return loop.SubmitTransfer(stream, transfer); }
    absl::Status operator()(RestItem& rest) const { return loop.SubmitRest(stream, rest, place); }
  };
  return std::visit(Submitter{*this, number, item.number, *streams_[number]}, item.item);
}

absl::StatusOr<std::optional<Stream::Awaited>> CudaDevice::Loop::AwaitedOf(const PageWait& wait) const {
  CounterPage* page = options_.counters;
  if (wait.worker != options_.self) {
    const auto peer = peers_.find(wait.worker);
    if (peer == peers_.end() || peer->second.number != wait.page) return std::nullopt;
    TESSERA_RETURN_IF_ERROR(peer->second.status);
    page = peer->second.page.get();
  }
  return Stream::Awaited{&page->counters[static_cast<size_t>(wait.stream)], wait.value};
}

absl::Status CudaDevice::Loop::SubmitWait(size_t number, const PageWait& wait) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<Stream::Awaited> awaited, AwaitedOf(wait));
  if (!awaited.has_value() || awaited->met()) return absl::OkStatus();
  Stream& stream = *streams_[number];
  if (wait.worker != options_.self) return stream.Wait(*awaited, AddressOf(awaited->counter));
  Stream& other = *streams_[static_cast<size_t>(wait.stream)];
  return &other == &stream ? absl::OkStatus() : stream.WaitFor(other, *awaited);
}

absl::Status CudaDevice::Loop::SubmitRead(Stream& stream, const CopyWork& work) {
  const int64_t bytes = NumElements(work.extents) * work.element_bytes;
  if (bytes > kReadBytes) {
    return absl::InternalError(StrCat("cuda: a read of ", bytes, " bytes; ", kReadBytes, " fit a slot"));
  }
  if (!is_clear_ && !reads_.has_free()) {
    stream.wants_clear = true;
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(std::byte * slot, reads_.Take());
  CopyWork to_slot = work;
  to_slot.destination = slot;
  to_slot.destination_strides = RowMajorStrides(work.extents);
  absl::Status status = SubmitWork(stream, to_slot, 0);
  if (stream.wants_something()) {
    reads_.Give(slot);
    return status;
  }
  TESSERA_RETURN_IF_ERROR(stream.Mark([this, slot, work] {
    CopyStrided(work.extents, work.element_bytes, slot, RowMajorStrides(work.extents), work.destination,
                work.destination_strides);
    reads_.Give(slot);
  }));
  return status;
}

// The stream says that it is there; the host starts; Done opens the gate.
absl::Status CudaDevice::Loop::SubmitAsync(Stream& stream, AsyncItem item) {
  const uint64_t number = ++stream.gates;
  if (stream.work_submitted_ns == 0) stream.work_submitted_ns = MonotonicNs();
  struct Outcome {
    std::mutex mutex;
    absl::Status status;
  };
  auto outcome = std::make_shared<Outcome>();
  auto done = [words = stream.shared_words(), outcome, number](absl::Status status) {
    {
      std::lock_guard lock(outcome->mutex);
      outcome->status = std::move(status);
    }
    words->gate.store(number, std::memory_order_release);
  };
  TESSERA_RETURN_IF_ERROR(stream.Mark([this, start = std::move(item.start), done = std::move(done)]() mutable {
    was_at_work_ = true;
    start(std::move(done));
  }));
  auto go_on = [this, &stream, outcome] {
    std::lock_guard lock(outcome->mutex);
    was_at_work_ = true;
    if (stream.run_error.ok()) stream.run_error = std::move(outcome->status);
  };
  std::atomic<uint64_t>* gate = &stream.words().gate;
  if (HoldsWaits() || (is_alone_ && item.ends_by == EndsBy::kHost)) {
    stream.Hold({gate, number}, std::move(go_on));
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(stream.Wait({gate, number}, AddressOf(gate)));
  return stream.Mark(std::move(go_on));
}

absl::Status CudaDevice::Loop::SubmitReport(Stream& stream, Device::Report report) {
  auto faults = std::make_shared<std::deque<Launcher::Fault>>(std::exchange(stream.faults, {}));
  auto submitted = std::exchange(stream.submit_error, absl::OkStatus());
  const int64_t work_submitted_ns = std::exchange(stream.work_submitted_ns, 0);
  return stream.Mark([this, &stream, faults, submitted, work_submitted_ns, report = std::move(report)]() mutable {
    RunTimes times;
    const int64_t now_ns = MonotonicNs();
    if (work_submitted_ns != 0) {
      times.started_ns = std::max(work_submitted_ns, stream.reported_ns);
      times.ended_ns = now_ns;
      times.work_ns = now_ns - times.started_ns;
      times.busy_ns = times.work_ns;
    }
    stream.reported_ns = now_ns;
    absl::Status status = std::exchange(stream.run_error, absl::OkStatus());
    if (!submitted.ok()) status = std::move(submitted);
    for (Launcher::Fault& fault : *faults) {
      absl::Status found = launcher_->Finish(fault);
      if (status.ok()) status = std::move(found);
    }
    report(std::move(status), times);
  });
}

// Waits on the old page are let go; the page itself goes later.
void CudaDevice::Loop::ReplacePeer(NewPeer peer) {
  std::shared_ptr<CounterPage> old;
  if (const auto known = peers_.find(peer.worker); known != peers_.end()) {
    if (known->second.is_registered && known->second.status.ok()) old = std::move(known->second.page);
    peers_.erase(known);
  }
  if (peer.page != nullptr) peers_[peer.worker] = {.page = std::move(peer.page), .number = peer.number};
  if (old == nullptr) return;
  for (std::atomic<uint64_t>& counter : old->counters) counter.store(kAlwaysMet, std::memory_order_release);
  CounterPage* const page = old.get();
  LetGoLater(std::shared_ptr<void>(page, [held = std::move(old), gpu = gpu_](CounterPage* registered) mutable {
    gpu.driver->MemHostUnregister(registered);
    held = nullptr;
  }));
}

}  // namespace tessera::cuda
