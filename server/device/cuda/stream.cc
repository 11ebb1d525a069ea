#include "server/device/cuda/stream.h"

#include <algorithm>
#include <new>
#include <utility>

#include "schemas/types/status_macros.h"

namespace tessera::cuda {

absl::StatusOr<std::shared_ptr<StreamWords>> MakeStreamWords(const Gpu& gpu) {
  void* memory = nullptr;
  TESSERA_RETURN_IF_ERROR(
      gpu.driver->Check("cuMemHostAlloc", gpu.driver->MemHostAlloc(&memory, sizeof(StreamWords), 0)));
  return std::shared_ptr<StreamWords>(new (memory) StreamWords{}, [gpu](StreamWords* words) {
    gpu.Enter().IgnoreError();
    gpu.driver->MemFreeHost(words);
  });
}

namespace {

// A light stream's kernels get the next free parts of the GPU, before those that another stream's kernel has queued.
absl::Status MakeStreamOf(const Gpu& gpu, Lane lane, CUstream* stream) {
  const Driver& driver = *gpu.driver;
  if (lane == Lane::kBatch) return driver.Check("cuStreamCreate", driver.StreamCreate(stream, CU_STREAM_NON_BLOCKING));
  int lowest = 0, highest = 0;
  TESSERA_RETURN_IF_ERROR(
      driver.Check("cuCtxGetStreamPriorityRange", driver.CtxGetStreamPriorityRange(&lowest, &highest)));
  return driver.Check("cuStreamCreateWithPriority",
                      driver.StreamCreateWithPriority(stream, CU_STREAM_NON_BLOCKING, highest));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Stream>> Stream::Make(const Gpu& gpu, Lane lane) {
  std::unique_ptr<Stream> stream(new Stream(gpu, lane));
  TESSERA_RETURN_IF_ERROR(MakeStreamOf(gpu, lane, &stream->stream_));
  gpu.use->AddStream();
  TESSERA_ASSIGN_OR_RETURN(stream->words_, MakeStreamWords(gpu));
  for (CUevent& event : stream->events_) {
    TESSERA_RETURN_IF_ERROR(
        gpu.driver->Check("cuEventCreate", gpu.driver->EventCreate(&event, CU_EVENT_DISABLE_TIMING)));
  }
  TESSERA_RETURN_IF_ERROR(
      gpu.driver->Check("cuEventCreate", gpu.driver->EventCreate(&stream->last_event_, CU_EVENT_DISABLE_TIMING)));
  return stream;
}

Stream::~Stream() {
  for (CUevent event : events_) {
    if (event != nullptr) gpu_.driver->EventDestroy(event);
  }
  if (last_event_ != nullptr) gpu_.driver->EventDestroy(last_event_);
  if (stream_ == nullptr) return;
  gpu_.driver->StreamDestroy(stream_);
  gpu_.use->RemoveStream();
}

absl::Status Stream::Mark(absl::AnyInvocable<void()> run) {
  const uint64_t number = ++last_mark_;
  TESSERA_RETURN_IF_ERROR(GatherWrite(AddressOf(&words_->progress), number));
  ++submitted_;
  submitted_at_mark_ = submitted_;
  marks_.push_back({number, submitted_, std::move(run), {}});
  return absl::OkStatus();
}

absl::Status Stream::Wait(const Awaited& awaited, CUdeviceptr address) {
  TESSERA_RETURN_IF_ERROR(Mark(nullptr));
  marks_.back().awaited = awaited;
  ++submitted_;
  waits_.push_back({.awaited = awaited, .submitted = submitted_});
  CUstreamBatchMemOpParams wait = {};
  wait.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
  wait.waitValue.address = address;
  wait.waitValue.value64 = awaited.value;
  wait.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  return Gather(wait);
}

absl::Status Stream::GatherWrite(CUdeviceptr address, uint64_t value) {
  CUstreamBatchMemOpParams write = {};
  write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  write.writeValue.address = address;
  write.writeValue.value64 = value;
  return Gather(write);
}

absl::Status Stream::Gather(const CUstreamBatchMemOpParams& operation) {
  if (gathered_.size() == kMostGathered) TESSERA_RETURN_IF_ERROR(Flush());
  gathered_.push_back(operation);
  return absl::OkStatus();
}

absl::Status Stream::Flush() {
  if (gathered_.empty()) return absl::OkStatus();
  const CUresult result =
      gpu_.driver->StreamBatchMemOp(stream_, static_cast<unsigned>(gathered_.size()), gathered_.data(), 0);
  gathered_.clear();
  return gpu_.driver->Check("cuStreamBatchMemOp", result);
}

void Stream::Hold(const Awaited& awaited, absl::AnyInvocable<void()> then) { held_ = {awaited, std::move(then)}; }

absl::Status Stream::Record(CUevent event) {
  TESSERA_RETURN_IF_ERROR(Flush());
  TESSERA_RETURN_IF_ERROR(gpu_.driver->Check("cuEventRecord", gpu_.driver->EventRecord(event, stream_)));
  return Submitted(1);
}

absl::Status Stream::Signal(const Awaited& counter, CUdeviceptr address) {
  TESSERA_RETURN_IF_ERROR(GatherWrite(address, counter.value));
  ++submitted_;
  signalled_ = counter.value;
  while (!signals_.empty() && Awaited{counter.counter, signals_.front().value}.met()) signals_.pop_front();
  if (!IsParked()) return Submitted(0);
  CUevent const event = events_[next_event_++ % kEvents];
  signals_.push_back({counter.value, event});
  return Record(event);
}

bool Stream::GivesEvent(uint64_t value) {
  return signalled_ >= value && (!IsParked() || (!signals_.empty() && signals_.back().value >= value));
}

absl::Status Stream::WaitFor(Stream& other, const Awaited& signal) {
  CUevent event = other.last_event_;
  const bool is_parked = other.IsParked();
  if (!is_parked) {
    TESSERA_RETURN_IF_ERROR(other.Record(event));
  } else {
    const auto recorded = std::find_if(other.signals_.begin(), other.signals_.end(),
                                       [&](const RecordedSignal& one) { return one.value >= signal.value; });
    if (recorded == other.signals_.end()) return absl::InternalError("cuda: a wait for a signal that has no event");
    event = recorded->event;
  }
  TESSERA_RETURN_IF_ERROR(Mark(nullptr));
  marks_.back().awaited = signal;
  ++submitted_;
  if (is_parked) waits_.push_back({.awaited = signal, .submitted = submitted_, .is_for_own = true});
  TESSERA_RETURN_IF_ERROR(Flush());
  return gpu_.driver->Check("cuStreamWaitEvent", gpu_.driver->StreamWaitEvent(stream_, event, 0));
}

bool Stream::IsParked() {
  std::erase_if(waits_, [](const SubmittedWait& wait) { return wait.awaited.met(); });
  return !waits_.empty();
}

bool Stream::StandsStill() {
  return IsParked() &&
         std::any_of(waits_.begin(), waits_.end(), [](const SubmittedWait& wait) { return !wait.is_for_own; });
}

uint64_t Stream::Room() {
  if (!IsParked()) return ~uint64_t{0};
  return kParkedOperations - std::min(kParkedOperations, submitted_ - waits_.front().submitted);
}

absl::Status Stream::Submitted(uint64_t operations) {
  submitted_ += operations;
  return submitted_ - submitted_at_mark_ < kOperationsPerMark ? absl::OkStatus() : Mark(nullptr);
}

bool Stream::Poll() {
  const uint64_t progress = words_->progress.load(std::memory_order_acquire);
  bool any = false;
  while (!marks_.empty() && marks_.front().number <= progress) {
    MarkEntry mark = std::move(marks_.front());
    marks_.pop_front();
    passed_ = mark.submitted;
    parked_at_ = mark.awaited;
    if (mark.run) mark.run();
    any = true;
  }
  if (held_.has_value() && held_->awaited.met()) {
    Held held = std::move(*held_);
    held_.reset();
    held.then();
    any = true;
  }
  return any;
}

void Stream::LetGo() {
  const auto let_go = [](const Awaited& awaited) {
    if (!awaited.met()) awaited.counter->store(kAlwaysMet, std::memory_order_release);
  };
  let_go(parked_at_);
  for (const MarkEntry& mark : marks_) let_go(mark.awaited);
}

void Stream::Abandon() {
  gpu_.driver->StreamSynchronize(stream_);
  marks_.clear();
}

bool Stream::IsAtWork() const {
  if (submitted_ == passed_) return false;
  return parked_at_.met();
}

}  // namespace tessera::cuda
