#include "client/rank_memory.h"

#include <algorithm>
#include <utility>

#include "client/rank_waits.h"
#include "client/session_groups.h"
#include "client/session_impl.h"
#include "client/session_transfers.h"
#include "client/wait.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr std::chrono::milliseconds kLongestSleep(200);  // of the thread that watches; changes wake it

// Whether the page's steps may read one and write the other: they have nothing in common, or one is a part of the
// other, at the place of a part of `part_bytes`. A step writes what lies where it has read, then.
bool MayRunInSteps(const char* input, int64_t input_bytes, const char* output, int64_t output_bytes,
                   int64_t part_bytes) {
  if (input_bytes == 0 || output_bytes == 0) return true;
  if (input + input_bytes <= output || output + output_bytes <= input) return true;
  if (input_bytes == output_bytes) return input == output;
  const int64_t apart = input < output ? output - input : input - output;
  const bool is_within = input_bytes < output_bytes ? output <= input && input + input_bytes <= output + output_bytes
                                                    : input <= output && output + output_bytes <= input + input_bytes;
  return is_within && apart % part_bytes == 0;
}

}  // namespace

absl::Status MemoryWork::SendAsked(uint64_t number, int64_t waited_us) {
  const std::shared_ptr<ProcessGroup> group = group_.lock();
  if (group == nullptr) return absl::CancelledError("the group has ended at this rank");
  const std::string_view name = ToText(call_.kind);
  std::optional<Tensor> operand;
  if (input_.has_value()) {
    const absl::StatusOr<TensorSpec> spec =
        TensorSpec::Make(name, input_->dtype, input_->shape, group->mesh(), {Placement::Replicate()});
    TESSERA_RETURN_IF_ERROR(spec.status());
    std::vector<UploadPiece> pieces;
    pieces.push_back({WholeBox(input_->shape), {group->worker()}, *input_, Shape(input_->shape.size(), 0)});
    TESSERA_ASSIGN_OR_RETURN(HandlePtr handle, group->session().impl()->transfers().Upload(*spec, std::move(pieces)));
    operand.emplace(std::move(handle));
    input_.reset();
  }
  std::optional<Shape> result;
  std::optional<DType> dtype;
  if (output_.has_value()) {
    result = output_->shape;
    dtype = output_->dtype;
  }
  TESSERA_ASSIGN_OR_RETURN(
      GroupWork sent, group->Send(call_, operand.has_value() ? &*operand : nullptr, result, dtype, number, waited_us));
  bool is_watched = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    work_ = std::move(sent);
    state_ = State::kUnderWay;
    is_watched = !callbacks_.empty();
  }
  ended_.notify_all();
  if (is_watched) memory_->Watch(shared_from_this());
  return absl::OkStatus();
}

void MemoryWork::EndInMail(const RankMail::Request& request) {
  mail_source_ = request.source;
  absl::Status status = request.status;
  if (status.ok() && request.claim != 0) {
    call_.peer = request.source;
    status = SendAsked(request.claim, 0);
    if (status.ok()) return;
  }
  Finish(status);
}

absl::Status MemoryWork::AwaitRanks(std::optional<double> timeout_s) {
  const auto is_among_ranks = [this] { return state_ == State::kAmongRanks; };
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!is_among_ranks()) return absl::OkStatus();
  }
  if (const std::shared_ptr<ProcessGroup> group = group_.lock()) {
    int64_t until_ns = kForeverNs;
    if (timeout_s.has_value()) {
      TESSERA_ASSIGN_OR_RETURN(const int64_t timeout_us, TimeoutUs("wait", *timeout_s));
      until_ns = SteadyNs() + timeout_us * 1000;
    }
    const absl::Status driven = is_mail_ ? group->mailbox()->Drive(*this, until_ns, PollScope)
                                         : group->lane().Drive(*this, until_ns, PollScope);
    if (absl::IsDeadlineExceeded(driven) && !is_mail_) group->lane().LeaveToThread();  // the mailbox does it itself
    TESSERA_RETURN_IF_ERROR(driven);
  }
  std::unique_lock<std::mutex> lock(mutex_);
  ended_.wait(lock, [&] { return !is_among_ranks(); });  // the thread that drove it says so now
  return absl::OkStatus();
}

absl::Status MemoryWork::Fetch() {
  if (!output_.has_value()) return work_.Wait();
  const HandlePtr& result = work_.result()->state();
  TESSERA_RETURN_IF_ERROR(result->session->transfers().DownloadTo(ToText(call_.kind), result, {}, *output_));
  return call_.kind == CollectiveKind::kRecv ? work_.Wait() : absl::OkStatus();  // for the source
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
  TESSERA_RETURN_IF_ERROR(AwaitRanks(timeout_s));
  if (timeout_s.has_value() && !is_done()) {
    // A failure is that of the call, which End tells; a time-out leaves it under way.
    const absl::Status waited = work_.Wait(timeout_s);
    if (!waited.ok() && !work_.IsDone()) return waited;
  }
  End();
  std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

absl::Status MemoryWork::TakeComplaint() const {
  const std::shared_ptr<ProcessGroup> group = group_.lock();
  return group == nullptr ? absl::OkStatus() : group->TakeComplaint();
}

bool MemoryWork::IsDone() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (state_ == State::kAmongRanks && is_mail_) {
      lock.unlock();
      if (const std::shared_ptr<ProcessGroup> group = group_.lock()) group->mailbox()->MoveNow();
      lock.lock();
    }
    if (state_ != State::kUnderWay) return state_ == State::kDone;  // the lane's thread goes on without this one
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
      if (callbacks_.size() == 1 && state_ != State::kAmongRanks) memory.Watch(shared_from_this());
      return;
    }
  }
  callback(status_);
}

RankMemory::~RankMemory() {
  group_->lane().Cancel(absl::CancelledError(StrCat("the group '", group_->key(), "' has ended at this rank")));
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
  TESSERA_RETURN_IF_ERROR(group_->CheckMember(ToText(call.kind)));
  TESSERA_RETURN_IF_ERROR(GroupDoor(*group_->session().impl()).Check());
  auto work = std::make_shared<MemoryWork>();
  work->call_ = call;
  work->input_ = input;
  work->output_ = output;
  work->group_ = group_;
  work->memory_ = this;
  if (IsPointToPoint(call.kind)) {
    RankMailbox* const mailbox = group_->mailbox();
    TESSERA_RETURN_IF_ERROR(mailbox != nullptr ? StartMail(work, *mailbox) : work->SendAsked(0, 0));
    return work;
  }
  FillLaneCall(call, *work);
  if (call.on_devices) {
    work->input_.reset();
    work->output_.reset();
  }
  TESSERA_ASSIGN_OR_RETURN(work->timeout_us, TimeoutUs(ToText(call.kind), call.timeout_s));
  RankLane& lane = group_->lane();
  TESSERA_RETURN_IF_ERROR(lane.Push(work));
  // Without a page it is asked at once.
  if (call.is_waited_for || lane.page() == nullptr) {
    TESSERA_RETURN_IF_ERROR(lane.Drive(*work, kForeverNs, PollScope));
  } else {
    lane.Begin(*work);
  }
  return work;
}

absl::Status RankMemory::StartMail(const std::shared_ptr<MemoryWork>& work, RankMailbox& mailbox) const {
  const GroupCallOptions& call = work->call_;
  work->is_mail_ = true;
  work->is_send = call.kind == CollectiveKind::kSend;
  if (work->is_send ? !work->input_.has_value() : !work->output_.has_value()) {
    return absl::InvalidArgumentError(StrCat(ToText(call.kind), ": it has no memory"));
  }
  if (work->is_send) {
    const HostView& input = *work->input_;
    work->message = {call.peer, call.tag, input.dtype, NumElements(input.shape), call.other_elements};
    work->bytes = reinterpret_cast<std::byte*>(const_cast<char*>(input.data));
    if (NumElements(input.shape) > 1 && input.strides_bytes[0] != SizeBytes(input.dtype)) {
      work->packed_.resize(static_cast<size_t>(NumElements(input.shape) * SizeBytes(input.dtype)));
      CopyBoxTo(input, WholeBox(input.shape), reinterpret_cast<char*>(work->packed_.data()));
      work->bytes = work->packed_.data();
    }
  } else {
    const HostTarget& output = *work->output_;
    work->message = {call.peer, call.tag, output.dtype, NumElements(output.shape), call.other_elements};
    work->bytes = reinterpret_cast<std::byte*>(output.data);
  }
  TESSERA_ASSIGN_OR_RETURN(work->wait_us, TimeoutUs(ToText(call.kind), call.timeout_s));
  TESSERA_RETURN_IF_ERROR(mailbox.Push(work));
  mailbox.LeaveToThread();  // also where it is waited for: others of the same exchange come behind it
  return absl::OkStatus();
}

void RankMemory::FillLaneCall(const GroupCallOptions& call, MemoryWork& work) const {
  CollectiveTensors tensors;
  const std::optional<HostView>& input = work.input_;
  const std::optional<HostTarget>& output = work.output_;
  const auto bytes_of = [](const auto& memory) { return NumElements(memory.shape) * SizeBytes(memory.dtype); };
  const char* read = nullptr;
  char* written = nullptr;
  int64_t read_bytes = 0, written_bytes = 0;
  if (input.has_value()) {
    tensors.has_operand = true;
    tensors.operand_elements = NumElements(input->shape);
    tensors.operand_dtype = input->dtype;
    read = input->data;
    read_bytes = bytes_of(*input);
    if (input->shape.size() != 1 || input->strides_bytes[0] != SizeBytes(input->dtype)) return;
  }
  if (output.has_value()) {
    tensors.has_result = true;
    tensors.result_elements = NumElements(output->shape);
    tensors.result_dtype = output->dtype;
    written = output->data;
    written_bytes = bytes_of(*output);
  }
  CollectiveSignature& signature = work.signature;
  signature.kind = call.kind;
  if (Reduces(call.kind)) signature.op = call.op;
  if (HasRoot(call.kind)) signature.root = call.peer;
  const bool has_root = signature.root >= 0 && signature.root < group_->size();
  if (!has_root || !FillSignature(tensors, group_->rank(), group_->size(), signature).ok()) return;
  if (call.on_devices) {
    signature.on_devices = true;
    work.call_.dtype = signature.dtype;
    work.call_.elements = signature.elements;
    work.fits_page = true;
    return;
  }
  work.operands = {reinterpret_cast<const std::byte*>(read), reinterpret_cast<std::byte*>(written)};
  work.fits_page = PageProgram::Takes(signature) &&
                   MayRunInSteps(read, read_bytes, written, written_bytes,
                                 std::max<int64_t>(1, signature.elements * SizeBytes(signature.dtype)));
  if (const RankPage* page = group_->lane().page()) {
    work.places = ArenaProgram::PlacesOf(signature, work.operands, *page);
  }
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
