#include "client/session_groups.h"

#include <utility>

#include "client/recording.h"
#include "client/session_calls.h"
#include "client/session_request.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {

absl::StatusOr<std::pair<uint64_t, std::vector<GroupMemberReport>>> GroupDoor::Join(GroupRecord join) {
  TESSERA_RETURN_IF_ERROR(session_.Check());
  const std::string what = StrCat("group '", join.key, "'");
  auto [number, request] = session_.NewRequest();
  Record record;
  record.kind = Record::Kind::kJoinGroup;
  record.request = number;
  record.group = std::make_shared<const GroupRecord>(std::move(join));
  TESSERA_RETURN_IF_ERROR(session_.Enqueue(std::move(record)));
  const absl::Status joined = session_.WaitFor(what, request);
  if (!joined.ok()) session_.EndRequest(number, request);
  TESSERA_RETURN_IF_ERROR(joined);
  return std::pair(request->group, std::move(request->members));
}

void GroupDoor::Leave(uint64_t group) {
  if (!session_.Check().ok()) return;
  Record record;
  record.kind = Record::Kind::kLeaveGroup;
  auto left = std::make_shared<GroupRecord>();
  left->group = group;
  record.group = std::move(left);
  session_.connection_->Enqueue(std::move(record));
  session_.connection_->Flush();
}

absl::StatusOr<GroupDoor::Started> GroupDoor::Start(GroupRecord call, const HandlePtr& operand,
                                                    const TensorSpec* result, bool is_answered) {
  TESSERA_RETURN_IF_ERROR(session_.Check());
  TESSERA_RETURN_IF_ERROR(Recording::Refuse(ToText(call.kind)));
  if (operand != nullptr && operand->planned != nullptr) return NeverRuns(*operand);
  TESSERA_RETURN_IF_ERROR(session_.AwaitRoom());
  Started started;
  Record record;
  record.kind = Record::Kind::kCollective;
  if (operand != nullptr) call.operand = operand->id;
  if (is_answered) {
    auto [number, request] = session_.NewRequest();
    record.request = number;
    started.answer = request;
  }
  if (result != nullptr) {
    started.result = session_.NewHandle(session_.calls().specs().Intern(*result), session_.next_handle_++);
    session_.sites_.Note(started.result->id, SiteOfCall());
    record.handle = started.result->id;
    record.spec = started.result->spec;
  }
  record.group = std::make_shared<const GroupRecord>(std::move(call));
  session_.Push(std::move(record));
  session_.connection_->Flush();
  return started;
}

absl::Status GroupDoor::Await(const std::shared_ptr<void>& answer, std::optional<double> timeout_s) {
  const auto request = std::static_pointer_cast<SessionImpl::Request>(answer);
  TESSERA_RETURN_IF_ERROR(session_.WaitUntil("a collective", timeout_s, [&request] { return request->done; }));
  std::lock_guard<std::mutex> lock(session_.mutex_);
  return request->status;
}

bool GroupDoor::IsThere(const std::shared_ptr<void>& answer) {
  session_.connection_->Flush();
  std::lock_guard<std::mutex> lock(session_.mutex_);
  return std::static_pointer_cast<SessionImpl::Request>(answer)->done || !session_.failure_.ok();
}

int32_t GroupDoor::SourceOf(const std::shared_ptr<void>& answer) {
  std::lock_guard<std::mutex> lock(session_.mutex_);
  return std::static_pointer_cast<SessionImpl::Request>(answer)->source;
}

absl::StatusOr<FlightReport> GroupDoor::Flight(uint64_t group, uint32_t last_calls) {
  TESSERA_RETURN_IF_ERROR(session_.Check());
  auto [number, request] = session_.NewRequest();
  session_.connection_->GroupStatus(
      group, last_calls, SessionImpl::Request::AnswerIn(session_, number, request, &SessionImpl::Request::flight));
  TESSERA_RETURN_IF_ERROR(session_.WaitFor("flight_record", request));
  return std::move(request->flight);
}

void GroupDoor::AskFlight(uint64_t group, uint32_t last_calls, std::function<void(absl::StatusOr<FlightReport>)> done) {
  session_.connection_->GroupStatus(group, last_calls, std::move(done));
}

void GroupDoor::AwaitChange(uint64_t seen, std::chrono::milliseconds at_most) {
  std::unique_lock<std::mutex> lock(session_.mutex_);
  session_.changed_.wait_for(lock, at_most, [&] { return session_.changes_ != seen || !session_.failure_.ok(); });
}

}  // namespace tessera
