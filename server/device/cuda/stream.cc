#include "server/device/cuda/stream.h"

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

absl::StatusOr<std::unique_ptr<Stream>> Stream::Make(const Gpu& gpu) {
  std::unique_ptr<Stream> stream(new Stream(gpu));
  TESSERA_RETURN_IF_ERROR(
      gpu.driver->Check("cuStreamCreate", gpu.driver->StreamCreate(&stream->stream_, CU_STREAM_NON_BLOCKING)));
  TESSERA_ASSIGN_OR_RETURN(stream->words_, MakeStreamWords(gpu));
  return stream;
}

Stream::~Stream() {
  if (stream_ != nullptr) gpu_.driver->StreamDestroy(stream_);
}

absl::Status Stream::Mark(absl::AnyInvocable<void()> run) {
  const uint64_t number = ++last_mark_;
  TESSERA_RETURN_IF_ERROR(gpu_.driver->Check(
      "cuStreamWriteValue64", gpu_.driver->StreamWriteValue64(stream_, AddressOf(&words_->progress), number, 0)));
  ++submitted_;
  submitted_at_mark_ = submitted_;
  marks_.push_back({number, submitted_, std::move(run), {}});
  return absl::OkStatus();
}

absl::Status Stream::Wait(const Awaited& awaited, CUdeviceptr address) {
  TESSERA_RETURN_IF_ERROR(Mark(nullptr));
  marks_.back().awaited = awaited;
  ++submitted_;
  return gpu_.driver->Check("cuStreamWaitValue64",
                            gpu_.driver->StreamWaitValue64(stream_, address, awaited.value, CU_STREAM_WAIT_VALUE_GEQ));
}

absl::Status Stream::Write(CUdeviceptr address, uint64_t value) {
  TESSERA_RETURN_IF_ERROR(
      gpu_.driver->Check("cuStreamWriteValue64", gpu_.driver->StreamWriteValue64(stream_, address, value, 0)));
  return Submitted();
}

absl::Status Stream::Submitted() {
  ++submitted_;
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
  return any;
}

void Stream::Abandon() {
  const auto let_go = [](const Awaited& awaited) {
    if (awaited.counter != nullptr && !awaited.met()) awaited.counter->store(kAlwaysMet, std::memory_order_release);
  };
  let_go(parked_at_);
  for (const MarkEntry& mark : marks_) let_go(mark.awaited);
  gpu_.driver->StreamSynchronize(stream_);
  marks_.clear();
}

bool Stream::IsAtWork() const {
  if (submitted_ == passed_) return false;
  return parked_at_.counter == nullptr || parked_at_.met();
}

}  // namespace tessera::cuda
