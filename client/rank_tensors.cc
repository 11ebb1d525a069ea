#include "client/rank_tensors.h"

#include <new>
#include <utility>
#include <vector>

#include "client/rank_waits.h"
#include "client/session_impl.h"
#include "client/session_transfers.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {

absl::StatusOr<std::shared_ptr<TensorReceive>> TensorReceive::Begin(std::weak_ptr<const ProcessGroup> group,
                                                                    const GroupCallOptions& call, const Shape& shape,
                                                                    DType dtype) {
  auto receive = std::make_shared<TensorReceive>();
  receive->group_ = std::move(group);
  receive->call_ = call;
  receive->shape_ = shape;
  receive->message = {call.peer, call.tag, dtype, NumElements(shape)};
  const int64_t size = NumElements(shape) * SizeBytes(dtype);
  // Not written, so it has no pages until a message brings bytes.
  receive->memory_.reset(new (std::nothrow) std::byte[static_cast<size_t>(size)]);
  if (receive->memory_ == nullptr) {
    return absl::ResourceExhaustedError(StrCat("recv: this process has no ", size, " bytes for ", ToText(dtype), "[",
                                               NumElements(shape), "]; receive a smaller tensor"));
  }
  receive->bytes = receive->memory_.get();
  TESSERA_ASSIGN_OR_RETURN(receive->wait_us, TimeoutUs(ToText(call.kind), call.timeout_s));
  return receive;
}

absl::StatusOr<Tensor> TensorReceive::TensorOf(const RankMail::Request& request) {
  TESSERA_RETURN_IF_ERROR(request.status);
  const std::shared_ptr<const ProcessGroup> group = group_.lock();
  if (group == nullptr) return absl::CancelledError("recv: the group has ended at this rank");
  if (request.claim != 0) {
    GroupCallOptions call = call_;
    call.peer = request.source;
    TESSERA_ASSIGN_OR_RETURN(const GroupWork work, group->Send(call, nullptr, shape_, message.dtype, request.claim, 0));
    return *work.result();
  }
  TESSERA_ASSIGN_OR_RETURN(const TensorSpec spec, TensorSpec::Make(ToText(call_.kind), message.dtype, shape_,
                                                                   group->mesh(), {Placement::Replicate()}));
  std::vector<UploadPiece> pieces;
  const HostView source = MakeHostView(message.dtype, shape_, reinterpret_cast<const char*>(bytes));
  pieces.push_back({WholeBox(shape_), {group->worker()}, source, Shape(shape_.size(), 0)});
  TESSERA_ASSIGN_OR_RETURN(HandlePtr handle, group->session().impl()->transfers().Upload(spec, std::move(pieces)));
  return Tensor(std::move(handle));
}

void TensorReceive::EndInMail(const RankMail::Request& request) {
  absl::StatusOr<Tensor> received = TensorOf(request);
  std::lock_guard<std::mutex> lock(mutex_);
  memory_.reset();
  source_ = request.source;
  received_.emplace(std::move(received));
  ended_.notify_all();
}

absl::StatusOr<Tensor> TensorReceive::Await(std::optional<double> timeout_s) {
  int64_t until_ns = kForeverNs;
  if (timeout_s.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t timeout_us, TimeoutUs("wait", *timeout_s));
    until_ns = SteadyNs() + timeout_us * 1000;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (received_.has_value()) return *received_;
  }
  if (const std::shared_ptr<const ProcessGroup> group = group_.lock()) {
    TESSERA_RETURN_IF_ERROR(group->mailbox()->Drive(*this, until_ns, PollScope));
  }
  std::unique_lock<std::mutex> lock(mutex_);
  ended_.wait(lock, [this] { return received_.has_value(); });  // the thread that drove it says so now
  return *received_;
}

bool TensorReceive::IsDone() {
  if (const std::shared_ptr<const ProcessGroup> group = group_.lock()) group->mailbox()->MoveNow();
  std::lock_guard<std::mutex> lock(mutex_);
  return received_.has_value() && (!received_->ok() || (*received_)->IsReady());
}

int32_t TensorReceive::source() {
  std::lock_guard<std::mutex> lock(mutex_);
  return source_;
}

}  // namespace tessera
