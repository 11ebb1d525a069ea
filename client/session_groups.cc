// Process groups: joining, and calls whose answers are requests or results.

#include <utility>

#include "client/recording.h"
#include "client/session_impl.h"
#include "client/session_request.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {

absl::StatusOr<std::pair<uint64_t, std::vector<GroupMemberReport>>> SessionImpl::JoinGroup(GroupRecord join) {
  TESSERA_RETURN_IF_ERROR(Check());
  const std::string what = StrCat("group '", join.key, "'");
  auto [number, request] = NewRequest();
  Record record;
  record.kind = Record::Kind::kJoinGroup;
  record.request = number;
  record.group = std::make_shared<const GroupRecord>(std::move(join));
  TESSERA_RETURN_IF_ERROR(Enqueue(std::move(record)));
  const absl::Status joined = WaitFor(what, request);
  if (!joined.ok()) EndRequest(number, request);
  TESSERA_RETURN_IF_ERROR(joined);
  return std::pair(request->group, std::move(request->members));
}

void SessionImpl::LeaveGroup(uint64_t group) {
  if (!Check().ok()) return;
  Record record;
  record.kind = Record::Kind::kLeaveGroup;
  auto left = std::make_shared<GroupRecord>();
  left->group = group;
  record.group = std::move(left);
  connection_->Enqueue(std::move(record));
  connection_->Flush();
}

absl::StatusOr<SessionImpl::StartedCollective> SessionImpl::StartCollective(GroupRecord call, const HandlePtr& operand,
                                                                            const TensorSpec* result,
                                                                            bool is_answered) {
  TESSERA_RETURN_IF_ERROR(Check());
  TESSERA_RETURN_IF_ERROR(Recording::Refuse(ToText(call.kind)));
  if (operand != nullptr && operand->planned != nullptr) return NeverRuns(*operand);
  TESSERA_RETURN_IF_ERROR(AwaitRoom());
  StartedCollective started;
  Record record;
  record.kind = Record::Kind::kCollective;
  if (operand != nullptr) call.operand = operand->id;
  if (is_answered) {
    auto [number, request] = NewRequest();
    record.request = number;
    started.request = request;
  }
  if (result != nullptr) {
    started.result = NewHandle(specs_.Intern(*result), next_handle_++);
    sites_.Note(started.result->id, SiteOfCall());
    record.handle = started.result->id;
    record.spec = started.result->spec;
  }
  record.group = std::make_shared<const GroupRecord>(std::move(call));
  Push(std::move(record));
  connection_->Flush();
  return started;
}

absl::Status SessionImpl::AwaitAnswer(const std::shared_ptr<void>& answer, std::optional<double> timeout_s) {
  const auto request = std::static_pointer_cast<Request>(answer);
  TESSERA_RETURN_IF_ERROR(WaitUntil("a collective", timeout_s, [&request] { return request->done; }));
  std::lock_guard<std::mutex> lock(mutex_);
  return request->status;
}

bool SessionImpl::IsAnswered(const std::shared_ptr<void>& answer) {
  connection_->Flush();
  std::lock_guard<std::mutex> lock(mutex_);
  return std::static_pointer_cast<Request>(answer)->done || !failure_.ok();
}

int32_t SessionImpl::SourceOf(const std::shared_ptr<void>& answer) {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::static_pointer_cast<Request>(answer)->source;
}

void SessionImpl::AwaitChange(uint64_t seen, std::chrono::milliseconds at_most) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, at_most, [&] { return changes_ != seen || !failure_.ok(); });
}

}  // namespace tessera
