#include "client/rank_memory.h"

#include <algorithm>
#include <utility>

#include "client/session_groups.h"
#include "client/session_impl.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr std::chrono::milliseconds kLongestSleep(200);  // of the thread that watches; changes wake it

}  // namespace

absl::Status MemoryWork::Fetch() {
  if (!output_.has_value()) return work_.Wait();
  const HandlePtr& result = work_.result()->state();
  TESSERA_RETURN_IF_ERROR(result->session->DownloadTo(ToText(kind_), result, {}, *output_));
  return kind_ == CollectiveKind::kRecv ? work_.Wait() : absl::OkStatus();  // for the source
}

void MemoryWork::End() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (state_ != State::kUnderWay) {
      ended_.wait(lock, [this] { return state_ == State::kDone; });
      return;
    }
    state_ = State::kEnding;
  }
  Finish(Fetch());
}

void MemoryWork::GiveUp(const absl::Status& why) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (state_ != State::kUnderWay) return;
    state_ = State::kEnding;
  }
  Finish(why);
}

void MemoryWork::Finish(const absl::Status& status) {
  std::vector<Callback> callbacks;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    state_ = State::kDone;
    status_ = status;
    callbacks = std::move(callbacks_);
  }
  ended_.notify_all();
  for (const Callback& callback : callbacks) callback(status);
}

absl::Status MemoryWork::Wait(std::optional<double> timeout_s) {
  const auto is_done = [this] {
    std::lock_guard<std::mutex> lock(mutex_);
    return state_ == State::kDone;
  };
  if (timeout_s.has_value() && !is_done()) {
    // A failure is that of the call, which End tells; a time-out leaves it under way.
    const absl::Status waited = work_.Wait(timeout_s);
    if (!waited.ok() && !work_.IsDone()) return waited;
  }
  End();
  std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

bool MemoryWork::IsDone() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (state_ != State::kUnderWay) return state_ == State::kDone;
  }
  if (!work_.IsDone()) return false;
  End();
  return true;
}

void MemoryWork::WhenDone(RankMemory& memory, Callback callback) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (state_ != State::kDone) {
      callbacks_.push_back(std::move(callback));
      if (callbacks_.size() == 1) memory.Watch(shared_from_this());
      return;
    }
  }
  callback(status_);
}

RankMemory::~RankMemory() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }
  GroupDoor(*group_->session().impl()).Wake();
  if (thread_.joinable()) thread_.join();
  for (const std::shared_ptr<MemoryWork>& work : watched_) {
    work->GiveUp(absl::CancelledError(StrCat("the group '", group_->key(), "' has ended at this rank")));
  }
}

absl::StatusOr<std::shared_ptr<MemoryWork>> RankMemory::Start(const GroupCallOptions& call,
                                                              const std::optional<HostView>& input,
                                                              const std::optional<HostTarget>& output) {
  auto work = std::make_shared<MemoryWork>();
  work->kind_ = call.kind;
  work->output_ = output;
  std::optional<Tensor> operand;
  if (input.has_value()) {
    const absl::StatusOr<TensorSpec> spec =
        TensorSpec::Make(ToText(call.kind), input->dtype, input->shape, group_->mesh(), {Placement::Replicate()});
    TESSERA_RETURN_IF_ERROR(spec.status());
    std::vector<UploadPiece> pieces;
    pieces.push_back({WholeBox(input->shape), {group_->worker()}, *input, Shape(input->shape.size(), 0)});
    TESSERA_ASSIGN_OR_RETURN(HandlePtr handle, group_->session().impl()->Upload(*spec, std::move(pieces)));
    operand.emplace(std::move(handle));
  }
  std::optional<Shape> result;
  std::optional<DType> dtype;
  if (output.has_value()) {
    result = output->shape;
    dtype = output->dtype;
  }
  TESSERA_ASSIGN_OR_RETURN(work->work_, group_->Run(call, operand.has_value() ? &*operand : nullptr, result, dtype));
  return work;
}

void RankMemory::Watch(std::shared_ptr<MemoryWork> work) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    watched_.push_back(std::move(work));
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  }
  GroupDoor(*group_->session().impl()).Wake();
}

void RankMemory::Run() {
  GroupDoor session(*group_->session().impl());
  for (;;) {
    const uint64_t seen = session.changes();
    std::vector<std::shared_ptr<MemoryWork>> watched;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (is_ending_) return;
      watched = watched_;
    }
    bool has_ended = false;
    for (const std::shared_ptr<MemoryWork>& work : watched) {
      if (!work->IsDone()) continue;
      has_ended = true;
      std::lock_guard<std::mutex> lock(mutex_);
      std::erase(watched_, work);
    }
    if (!has_ended) session.AwaitChange(seen, kLongestSleep);
  }
}

}  // namespace tessera
