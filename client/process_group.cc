#include "client/process_group.h"

#include <unistd.h>

#include <cmath>
#include <utility>

#include "client/session_groups.h"
#include "client/session_impl.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr double kMaxTimeoutS = 365.0 * 24 * 3600;

// NaN and what is below 0 is refused; more than a year is a year.
absl::StatusOr<int64_t> MicrosecondsOf(std::string_view what, double seconds) {
  if (!(seconds >= 0)) return absl::InvalidArgumentError(StrCat(what, ": a time-out of ", seconds, " s"));
  return static_cast<int64_t>(std::min(seconds, kMaxTimeoutS) * 1e6);
}

// "pid 4242 on node7".
std::string OwnProcess() {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  return StrCat("pid ", getpid(), " on ", host);
}

}  // namespace

absl::Status GroupWork::Wait(std::optional<double> timeout_s) const {
  if (request_ != nullptr) TESSERA_RETURN_IF_ERROR(GroupDoor(*session_).Await(request_, timeout_s));
  return result_.has_value() ? result_->Wait(timeout_s) : absl::OkStatus();
}

bool GroupWork::IsDone() const {
  return (request_ == nullptr || GroupDoor(*session_).IsThere(request_)) &&
         (!result_.has_value() || result_->IsReady());
}

int32_t GroupWork::source() const { return request_ == nullptr ? 0 : GroupDoor(*session_).SourceOf(request_); }

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
  TESSERA_ASSIGN_OR_RETURN(record.timeout_us, MicrosecondsOf(StrCat("group '", options.key, "'"), options.timeout_s));
  TESSERA_ASSIGN_OR_RETURN(auto joined, GroupDoor(*session.impl()).Join(std::move(record)));
  group->group_ = joined.first;
  group->members_ = std::move(joined.second);
  return group;
}

ProcessGroup::~ProcessGroup() { Leave(); }

void ProcessGroup::Leave() {
  if (group_ == 0 || std::exchange(has_left_, true)) return;
  GroupDoor(*session_.impl()).Leave(group_);
}

absl::StatusOr<FlightReport> ProcessGroup::Flight(uint32_t last_calls) const {
  return GroupDoor(*session_.impl()).Flight(group_, last_calls);
}

absl::StatusOr<GroupWork> ProcessGroup::Run(const GroupCallOptions& call, const Tensor* operand,
                                            const std::optional<Shape>& result,
                                            std::optional<DType> result_dtype) const {
  const std::string_view name = ToText(call.kind);
  if (has_left_) return absl::FailedPreconditionError(StrCat(name, ": group '", options_.key, "' has been left"));
  GroupRecord record;
  record.group = group_;
  record.kind = call.kind;
  record.op = call.op;
  record.peer = call.peer;
  record.tag = call.tag;
  TESSERA_ASSIGN_OR_RETURN(record.timeout_us, MicrosecondsOf(name, call.timeout_s));
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
