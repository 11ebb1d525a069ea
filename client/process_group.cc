#include "client/process_group.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "client/rank_flight.h"
#include "client/rank_lane.h"
#include "client/rank_mailbox.h"
#include "client/rank_page/meeting.h"
#include "client/rank_tensors.h"
#include "client/rank_waits.h"
#include "client/session_groups.h"
#include "client/session_impl.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr double kMaxTimeoutS = 365.0 * 24 * 3600;

// "pid 4242 on node7".
std::string OwnProcess() {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  return StrCat("pid ", getpid(), " on ", host);
}

}  // namespace

absl::StatusOr<int64_t> TimeoutUs(std::string_view what, double seconds) {
  if (!(seconds >= 0)) return absl::InvalidArgumentError(StrCat(what, ": a time-out of ", seconds, " s"));
  return std::llround(std::min(seconds, kMaxTimeoutS) * 1e6);
}

absl::Status GroupWork::Wait(std::optional<double> timeout_s) const {
  if (receive_ != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(const Tensor received, receive_->Await(timeout_s));
    return received.Wait(timeout_s);
  }
  if (request_ != nullptr) TESSERA_RETURN_IF_ERROR(GroupDoor(*session_).Await(request_, timeout_s));
  return result_.has_value() ? result_->Wait(timeout_s) : absl::OkStatus();
}

bool GroupWork::IsDone() const {
  if (receive_ != nullptr) return receive_->IsDone();
  return (request_ == nullptr || GroupDoor(*session_).IsThere(request_)) &&
         (!result_.has_value() || result_->IsReady());
}

int32_t GroupWork::source() const {
  if (receive_ != nullptr) return receive_->source();
  return request_ == nullptr ? 0 : GroupDoor(*session_).SourceOf(request_);
}

absl::StatusOr<Tensor> GroupWork::LateResult() const { return receive_->Await(std::nullopt); }

absl::StatusOr<std::shared_ptr<ProcessGroup>> ProcessGroup::Join(const Session& session, const GroupOptions& options) {
  std::shared_ptr<ProcessGroup> group(new ProcessGroup(session, options));
  constexpr int64_t kMost = UINT32_MAX;
  if (options.size < 0 || options.size > kMost || options.rank < 0 || options.rank > kMost) {
    return absl::InvalidArgumentError(
        StrCat("group '", options.key, "': rank ", options.rank, " of ", options.size, " ranks"));
  }
  TESSERA_ASSIGN_OR_RETURN(group->mesh_, Mesh::Make({1}, {}, {options.worker}));
  GroupRecord record;
  record.key = options.key;
  record.size = static_cast<uint32_t>(options.size);
  record.rank = static_cast<uint32_t>(options.rank);
  record.worker = options.worker.value;
  record.process = OwnProcess();
  TESSERA_ASSIGN_OR_RETURN(record.timeout_us, TimeoutUs(StrCat("group '", options.key, "'"), options.timeout_s));
  RankMeeting meeting(options.rank, options.size, options.key);
  record.meeting = meeting.text();
  TESSERA_ASSIGN_OR_RETURN(auto joined, GroupDoor(*session.impl()).Join(std::move(record)));
  group->group_ = joined.first;
  group->members_ = std::move(joined.second);
  std::vector<std::string> texts;
  for (const GroupMemberReport& member : group->members_) texts.push_back(member.meeting);
  RankMeeting::Met met = meeting.Meet(texts);
  if (met.mail != nullptr) {
    group->mailbox_ = std::make_unique<RankMailbox>(session.impl(), group->group_, options.key, std::move(met.mail),
                                                    met.page->HasStrangers());
  }
  group->lane_ =
      std::make_unique<RankLane>(RankLane::Group{session.impl(), group->group_, options.key}, std::move(met.page));
  return group;
}

ProcessGroup::ProcessGroup(const Session& session, GroupOptions options)
    : session_(session), options_(std::move(options)) {}
ProcessGroup::~ProcessGroup() { Leave(); }

void ProcessGroup::Leave() {
  if (group_ == 0 || has_left_.exchange(true)) return;
  const absl::Status why = absl::CancelledError(StrCat("the group '", options_.key, "' has ended at this rank"));
  lane_->Cancel(why);
  if (mailbox_ != nullptr) mailbox_->Cancel(why);
  GroupDoor(*session_.impl()).Leave(group_);
}

// The coordinator knows those calls alone that it was asked.
absl::StatusOr<FlightReport> ProcessGroup::Flight(uint32_t last_calls) const {
  TESSERA_ASSIGN_OR_RETURN(FlightReport report, GroupDoor(*session_.impl()).Flight(group_, last_calls));
  const RankPage* const page = lane_->page();
  if (page == nullptr) return report;
  AddPageCalls(*page, report);
  if (mailbox_ != nullptr) AddMessages(mailbox_->record(), report);
  KeepLast(std::min<size_t>(last_calls, kMaxPageFlightCalls), report);
  return report;
}

absl::Status ProcessGroup::TakeComplaint() const {
  return mailbox_ == nullptr ? absl::OkStatus() : mailbox_->TakeComplaint();
}

absl::Status ProcessGroup::CheckMember(std::string_view name) const {
  if (!has_left_) return absl::OkStatus();
  return absl::FailedPreconditionError(StrCat(name, ": group '", options_.key, "' has been left"));
}

absl::StatusOr<GroupWork> ProcessGroup::Run(const GroupCallOptions& call, const Tensor* operand,
                                            const std::optional<Shape>& result,
                                            std::optional<DType> result_dtype) const {
  TESSERA_RETURN_IF_ERROR(CheckMember(ToText(call.kind)));
  if (IsPointToPoint(call.kind)) {
    // Tags below 0 are of messages whose both sides are known to go this way.
    if (mailbox_ == nullptr || call.tag < 0) return Send(call, operand, result, result_dtype, 0, 0);
    if (call.kind == CollectiveKind::kSend && operand != nullptr) return SendByMail(call, operand);
    if (call.kind == CollectiveKind::kRecv && result.has_value()) {
      return ReceiveByMail(call, *result, result_dtype.value_or(DType::kF32));
    }
    return absl::InvalidArgumentError(StrCat(ToText(call.kind), ": it has no tensor"));
  }
  std::optional<GroupWork> work;
  TESSERA_RETURN_IF_ERROR(lane_->Ask([&](uint64_t number) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(work, Send(call, operand, result, result_dtype, number, 0));
    return absl::OkStatus();
  }));
  return *std::move(work);
}

// The message in the ring says where the bytes are: a rank that receives it asks the coordinator for this claim.
absl::StatusOr<GroupWork> ProcessGroup::SendByMail(const GroupCallOptions& call, const Tensor* operand) const {
  const uint64_t claim = next_claim_++;
  TESSERA_ASSIGN_OR_RETURN(GroupWork work, Send(call, operand, std::nullopt, std::nullopt, claim, 0));
  auto notice = std::make_shared<ClaimNotice>();
  const TensorSpec& spec = operand->spec();
  notice->is_send = true;
  notice->message = {call.peer, call.tag, spec.dtype, NumElements(spec.shape), -1, claim};
  TESSERA_ASSIGN_OR_RETURN(notice->wait_us, TimeoutUs(ToText(call.kind), call.timeout_s));
  TESSERA_RETURN_IF_ERROR(mailbox_->Push(std::move(notice)));
  mailbox_->LeaveToThread();
  return work;
}

absl::StatusOr<GroupWork> ProcessGroup::ReceiveByMail(const GroupCallOptions& call, const Shape& result,
                                                      DType dtype) const {
  GroupWork work;
  work.session_ = session_.impl();
  TESSERA_ASSIGN_OR_RETURN(work.receive_, TensorReceive::Begin(weak_from_this(), call, result, dtype));
  TESSERA_RETURN_IF_ERROR(mailbox_->Push(work.receive_));
  mailbox_->LeaveToThread();
  return work;
}

absl::StatusOr<GroupWork> ProcessGroup::Send(const GroupCallOptions& call, const Tensor* operand,
                                             const std::optional<Shape>& result, std::optional<DType> result_dtype,
                                             uint64_t number, int64_t waited_us) const {
  const std::string_view name = ToText(call.kind);
  GroupRecord record;
  record.group = group_;
  record.kind = call.kind;
  record.op = call.op;
  record.peer = call.peer;
  record.tag = call.tag;
  record.number = number;
  record.waited_us = waited_us;
  record.on_devices = call.on_devices;
  record.dtype = call.dtype;
  record.elements = call.elements;
  TESSERA_ASSIGN_OR_RETURN(record.timeout_us, TimeoutUs(name, call.timeout_s));
  DType dtype = result_dtype.value_or(DType::kF32);
  if (operand != nullptr) {
    if (operand->state()->session != session_.impl()) {
      return absl::InvalidArgumentError(StrCat(name, ": the tensor is of another session than the group"));
    }
    TESSERA_RETURN_IF_ERROR(operand->AwaitSpec());
    dtype = operand->state()->spec->dtype;
  }
  GroupWork work;
  work.session_ = session_.impl();
  std::optional<TensorSpec> spec;
  if (result.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(spec, TensorSpec::Make(name, dtype, *result, mesh_, {Placement::Replicate()}));
  }
  // A result tells by itself, but for who sent it.
  const bool is_answered = !result.has_value() || call.kind == CollectiveKind::kRecv;
  TESSERA_ASSIGN_OR_RETURN(auto started, GroupDoor(*session_.impl())
                                             .Start(std::move(record), operand == nullptr ? nullptr : operand->state(),
                                                    spec.has_value() ? &*spec : nullptr, is_answered));
  work.request_ = std::move(started.answer);
  if (started.result != nullptr) work.result_.emplace(std::move(started.result));
  return work;
}

}  // namespace tessera
