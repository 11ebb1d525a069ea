#include "server/device/cuda/device_loop.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "schemas/codec/monotonic_clock.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera::cuda {
namespace {

// How long the loop sleeps between two looks at the progress of what is under way.
constexpr std::chrono::microseconds kPoll(20);
// So many looks without progress, and the driver is asked whether the device still works.
constexpr int kLooksBeforeAsking = 500;

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice::Loop>> CudaDevice::Loop::Prepare(const Gpu& gpu) {
  TESSERA_RETURN_IF_ERROR(gpu.Enter());
  std::unique_ptr<Loop> loop(new Loop(gpu));
  TESSERA_ASSIGN_OR_RETURN(loop->launcher_, Launcher::Make(gpu));
  for (std::unique_ptr<Stream>& stream : loop->streams_) {
    TESSERA_ASSIGN_OR_RETURN(stream, Stream::Make(gpu));
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
  host_.Stop();
  gpu_.Enter().IgnoreError();
  for (const std::unique_ptr<Stream>& stream : streams_) stream->Abandon();
  until_rest_.clear();
  for (auto& [worker, peer] : peers_) {
    if (peer.page != nullptr && peer.status.ok()) gpu_.driver->MemHostUnregister(peer.page.get());
  }
  gpu_.driver->MemHostUnregister(options_.counters);
  for (std::byte* slot : ring_) gpu_.driver->MemFreeHost(slot);
}

// ---- what other threads hand over

void CudaDevice::Loop::Push(size_t stream, StreamItem item) {
  std::lock_guard lock(mutex_);
  new_items_.push_back({stream, std::move(item)});
  is_idle_ = false;
  if (!is_held_) given_.notify_one();
}

void CudaDevice::Loop::SetPeer(WorkerIndex worker, std::shared_ptr<CounterPage> page) {
  std::lock_guard lock(mutex_);
  new_peers_.push_back({worker, std::move(page)});
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
  if (!new_items_.empty()) given_.notify_one();
}

void CudaDevice::Loop::Drain() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return is_idle_ || is_over_; });
}

bool CudaDevice::Loop::Take() {
  std::vector<Given> items;
  std::vector<NewPeer> peers;
  {
    std::lock_guard lock(mutex_);
    std::swap(items, new_items_);
    std::swap(peers, new_peers_);
  }
  for (NewPeer& peer : peers) ReplacePeer(std::move(peer));
  for (Given& given : items) streams_[given.stream]->queue.push_back({++next_number_, std::move(given.item)});
  return !items.empty() || !peers.empty();
}

// ---- the loop

void CudaDevice::Loop::Run() {
  gpu_.Enter().IgnoreError();
  int looks = 0;
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (is_stopping_) break;
    }
    const bool was_given = Take();
    const bool has_submitted = SubmitSome();
    const bool has_passed = Poll();
    if (is_lost_) break;
    if (was_given || has_submitted || has_passed) {
      looks = 0;
      continue;
    }
    if (++looks % kLooksBeforeAsking == 0) LookForLoss();
    if (is_lost_) break;
    Sleep();
  }
  End();
}

bool CudaDevice::Loop::IsAtRest(size_t streams) const {
  return std::all_of(streams_.begin(), streams_.begin() + static_cast<std::ptrdiff_t>(streams),
                     [](const std::unique_ptr<Stream>& stream) { return stream->IsAtRest(); });
}

void CudaDevice::Loop::BeginRest() {
  for (const std::unique_ptr<Stream>& stream : streams_) Fail(*stream, stream->MarkTheLast());
}

std::optional<size_t> CudaDevice::Loop::NextStream() const {
  const bool awaits_rest = resting_for_.has_value() || !until_rest_.empty();
  // The last transfers end soon, and no others begin then.
  if (awaits_rest && IsAtRest(kTransferStream)) return IsAtRest(streams_.size()) ? resting_for_ : std::nullopt;
  if (const Stream& transfers = *streams_[kTransferStream]; !transfers.queue.empty() && !transfers.is_full()) {
    return kTransferStream;
  }
  if (awaits_rest) return std::nullopt;
  std::optional<size_t> first;
  for (size_t s = 0; s < kTransferStream; ++s) {
    const auto& queue = streams_[s]->queue;
    if (!queue.empty() && (!first.has_value() || queue.front().number < streams_[*first]->queue.front().number)) {
      first = s;
    }
  }
  if (!first.has_value() || !streams_[*first]->is_full()) return first;
  for (size_t s = 0; s < kTransferStream; ++s) {
    const Stream& other = *streams_[s];
    if (!other.queue.empty() && !other.is_full() && !MayStandStill(other.queue.front().item)) return s;
  }
  return std::nullopt;
}

bool CudaDevice::Loop::MayStandStill(const StreamItem& item) const {
  if (std::holds_alternative<AsyncItem>(item)) return true;
  const auto* wait = std::get_if<CounterWait>(&item);
  if (wait == nullptr) return false;
  const absl::StatusOr<std::optional<Stream::Awaited>> awaited = AwaitedOf(*wait);
  return awaited.ok() && awaited->has_value() && !(*awaited)->met();
}

bool CudaDevice::Loop::SubmitSome() {
  bool any = false;
  if (IsAtRest(streams_.size())) until_rest_.clear();
  for (std::optional<size_t> next = NextStream(); next.has_value(); next = NextStream()) {
    any = true;
    Stream& stream = *streams_[*next];
    QueuedItem queued = std::move(stream.queue.front());
    stream.queue.pop_front();
    bool must_load = false;
    absl::Status status = Submit(stream, *next, queued.item, &must_load);
    if (must_load) {
      stream.queue.push_front(std::move(queued));
      resting_for_ = next;
      BeginRest();
      continue;
    }
    if (resting_for_ == next) resting_for_.reset();
    if (status.ok()) continue;
    Fail(stream, std::move(status));
    LookForLoss();
    if (is_lost_) return true;
  }
  return any;
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

void CudaDevice::Loop::Sleep() {
  bool is_idle = true;
  for (const std::unique_ptr<Stream>& stream : streams_) is_idle = is_idle && stream->is_idle();
  std::unique_lock lock(mutex_);
  const auto has_more = [&] { return is_stopping_ || !new_peers_.empty() || (!is_held_ && !new_items_.empty()); };
  if (!is_idle) {
    given_.wait_for(lock, kPoll, has_more);
    return;
  }
  is_idle_ = new_items_.empty() && new_peers_.empty();
  if (is_idle_) idle_.notify_all();
  given_.wait(lock, has_more);
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
  idle_.notify_all();
}

void CudaDevice::Loop::Fail(Stream& stream, absl::Status status) {
  if (stream.submit_error.ok()) stream.submit_error = std::move(status);
}

// ---- items

absl::Status CudaDevice::Loop::Submit(Stream& stream, size_t number, StreamItem& item, bool* must_load) {
  struct Submitter {
    Loop& loop;
    Stream& stream;
    size_t number;
    bool* must_load;
    absl::Status operator()(const CounterWait& wait) const { return loop.SubmitWait(stream, wait); }
    absl::Status operator()(const DeviceWork& work) const { return loop.SubmitWork(stream, work, must_load); }
    absl::Status operator()(const ReadItem& read) const { return loop.SubmitRead(stream, read.work); }
    absl::Status operator()(AsyncItem& async) const { return loop.SubmitAsync(stream, std::move(async.start)); }
    absl::Status operator()(const SignalItem& signal) const {
      return stream.Write(AddressOf(&loop.options_.counters->counters[number]), signal.value);
    }
    absl::Status operator()(ReportItem& report) const { return loop.SubmitReport(stream, std::move(report.report)); }
    absl::Status operator()(TransferItem& transfer) const { return loop.SubmitTransfer(stream, transfer); }
  };
  return std::visit(Submitter{*this, stream, number, must_load}, item);
}

absl::StatusOr<std::optional<Stream::Awaited>> CudaDevice::Loop::AwaitedOf(const CounterWait& wait) const {
  CounterPage* page = options_.counters;
  if (wait.worker != options_.self) {
    const auto peer = peers_.find(wait.worker);
    if (peer == peers_.end()) return std::nullopt;
    TESSERA_RETURN_IF_ERROR(peer->second.status);
    page = peer->second.page.get();
  }
  return Stream::Awaited{&page->counters[static_cast<size_t>(wait.stream)], wait.value};
}

absl::Status CudaDevice::Loop::SubmitWait(Stream& stream, const CounterWait& wait) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<Stream::Awaited> awaited, AwaitedOf(wait));
  if (!awaited.has_value() || awaited->met()) return absl::OkStatus();
  return stream.Wait(*awaited, AddressOf(awaited->counter));
}

absl::Status CudaDevice::Loop::SubmitWork(Stream& stream, const DeviceWork& work, bool* must_load) {
  Launcher::Turn turn{.workspace = stream.workspace, .may_load = must_load == nullptr || resting_for_.has_value()};
  const absl::StatusOr<bool> with_next = SubmitWithNext(stream, work, turn);
  absl::Status status = with_next.status();
  if (with_next.ok() && !*with_next && !turn.must_load) status = launcher_->Enqueue(stream.get(), work, turn);
  if (turn.replaced != nullptr) Fail(stream, stream.Mark([replaced = turn.replaced] {}));
  Fail(stream, stream.Submitted());  // of what must load, a larger workspace's zeros
  if (turn.must_load) {
    *must_load = true;
    return status;
  }
  was_at_work_ = true;
  if (stream.work_submitted_ns == 0) stream.work_submitted_ns = MonotonicNs();
  if (turn.fault.word != nullptr) stream.faults.push_back(std::move(turn.fault));
  WarnOnce(launcher_->product_error(), "products are computed by the image's own kernels: ", &has_warned_of_products_);
  const auto* kernel = std::get_if<KernelWork>(&work);
  return kernel != nullptr && absl::IsUnimplemented(status) ? SubmitHostStep(stream, *kernel) : status;
}

absl::StatusOr<bool> CudaDevice::Loop::SubmitWithNext(Stream& stream, const DeviceWork& work, Launcher::Turn& turn) {
  const auto* kernel = std::get_if<KernelWork>(&work);
  const auto* next = stream.queue.empty() ? nullptr : std::get_if<DeviceWork>(&stream.queue.front().item);
  const auto* next_kernel = next == nullptr ? nullptr : std::get_if<KernelWork>(next);
  if (kernel == nullptr || next_kernel == nullptr) return false;
  const absl::StatusOr<bool> both = launcher_->EnqueueWithBias(stream.get(), *kernel, *next_kernel, turn);
  if (!both.ok() || *both) stream.queue.pop_front();
  return both;
}

void CudaDevice::Loop::WarnOnce(const absl::Status& why, std::string_view what, bool* has_warned) {
  if (why.ok() || *has_warned) return;
  *has_warned = true;
  if (options_.warn) options_.warn(absl::UnavailableError(StrCat("cuda: ", what, StdView(why.message()))));
}

absl::Status CudaDevice::Loop::SubmitHostStep(Stream& stream, const KernelWork& work) {
  WarnOnce(launcher_->program_error(),
           "what can't be compiled for the GPU is computed on the host: ", &has_warned_of_programs_);
  absl::StatusOr<std::byte*> memory =
      stream.host_memory.Reserve(HostStepBytes(work.call), options_.max_host_step_bytes);
  if (!memory.ok()) {
    return absl::Status(memory.status().code(),
                        StrCat(ToText(*work.call.op), ": ", StdView(memory.status().message())));
  }
  const std::shared_ptr<HostStep> step = MakeHostStep(work.call, *memory);
  for (const CopyWork& copy : step->before) TESSERA_RETURN_IF_ERROR(SubmitWork(stream, copy));
  TESSERA_RETURN_IF_ERROR(SubmitAsync(stream, [this, step](Device::Done done) {
    host_.Run([step, done = std::move(done)]() mutable { done(RunKernel(step->call)); });
  }));
  for (const CopyWork& copy : step->after) TESSERA_RETURN_IF_ERROR(SubmitWork(stream, copy));
  for (const ReceivedCount& count : work.received) *count.received_bytes += count.bytes;
  return absl::OkStatus();
}

absl::Status CudaDevice::Loop::SubmitRead(Stream& stream, const CopyWork& work) {
  const int64_t bytes = NumElements(work.extents) * work.element_bytes;
  if (bytes > kReadBytes) {
    return absl::InternalError(StrCat("cuda: a read of ", bytes, " bytes; ", kReadBytes, " fit a slot"));
  }
  TESSERA_ASSIGN_OR_RETURN(std::byte * slot, reads_.Take());
  CopyWork to_slot = work;
  to_slot.destination = slot;
  to_slot.destination_strides = RowMajorStrides(work.extents);
  absl::Status status = SubmitWork(stream, to_slot);
  TESSERA_RETURN_IF_ERROR(stream.Mark([this, slot, work] {
    CopyStrided(work.extents, work.element_bytes, slot, RowMajorStrides(work.extents), work.destination,
                work.destination_strides);
    reads_.Give(slot);
  }));
  return status;
}

// The stream says that it is there; the host starts; Done opens the gate.
absl::Status CudaDevice::Loop::SubmitAsync(Stream& stream, Device::Start start) {
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
  TESSERA_RETURN_IF_ERROR(stream.Mark([this, start = std::move(start), done = std::move(done)]() mutable {
    was_at_work_ = true;
    start(std::move(done));
  }));
  std::atomic<uint64_t>* gate = &stream.words().gate;
  TESSERA_RETURN_IF_ERROR(stream.Wait({gate, number}, AddressOf(gate)));
  return stream.Mark([this, &stream, outcome] {
    std::lock_guard lock(outcome->mutex);
    was_at_work_ = true;
    if (stream.run_error.ok()) stream.run_error = std::move(outcome->status);
  });
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

absl::Status CudaDevice::Loop::SubmitTransfer(Stream& stream, TransferItem& transfer) {
  absl::Status status = SubmitWork(stream, transfer.work);
  auto done = std::make_shared<absl::AnyInvocable<void(absl::Status)>>(std::move(transfer.done));
  absl::Status marked = stream.Mark([done, status] { (*done)(status); });
  if (!marked.ok()) (*done)(marked);
  return absl::OkStatus();
}

// What waits on the old page is let go; the page itself goes at the next rest.
void CudaDevice::Loop::ReplacePeer(NewPeer peer) {
  std::shared_ptr<CounterPage> old;
  if (const auto known = peers_.find(peer.worker); known != peers_.end()) {
    if (known->second.status.ok()) old = std::move(known->second.page);
    peers_.erase(known);
  }
  if (peer.page != nullptr) {
    absl::Status status = gpu_.driver->Check(
        StrCat("cuMemHostRegister of the counters of worker ", peer.worker.value),
        gpu_.driver->MemHostRegister(peer.page.get(), kCounterPageBytes, CU_MEMHOSTREGISTER_PORTABLE));
    peers_[peer.worker] = {std::move(peer.page), std::move(status)};
  }
  if (old == nullptr) return;
  for (std::atomic<uint64_t>& counter : old->counters) counter.store(kAlwaysMet, std::memory_order_release);
  CounterPage* const page = old.get();
  until_rest_.emplace_back(page, [held = std::move(old), gpu = gpu_](CounterPage* registered) mutable {
    gpu.driver->MemHostUnregister(registered);
    held = nullptr;
  });
  BeginRest();
}

}  // namespace tessera::cuda
