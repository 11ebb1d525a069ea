#include "client/process_group.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "client/rank_lane.h"
#include "client/rank_mailbox.h"
#include "client/rank_page/meeting.h"
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
  TESSERA_ASSIGN_OR_RETURN(record.timeout_us, TimeoutUs(StrCat("group '", options.key, "'"), options.timeout_s));
  RankMeeting meeting(options.rank, options.size, options.key);
  record.meeting = meeting.text();
  TESSERA_ASSIGN_OR_RETURN(auto joined, GroupDoor(*session.impl()).Join(std::move(record)));
  group->group_ = joined.first;
  group->members_ = std::move(joined.second);
  std::vector<std::string> texts;
  for (const GroupMemberReport& member : group->members_) texts.push_back(member.meeting);
  RankMeeting::Met met = meeting.Meet(texts);
  if (met.mail != nullptr && options.only_memory) {
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

// With the calls of the page: the coordinator knows those alone that it was asked.
absl::StatusOr<FlightReport> ProcessGroup::Flight(uint32_t last_calls) const {
  TESSERA_ASSIGN_OR_RETURN(FlightReport report, GroupDoor(*session_.impl()).Flight(group_, last_calls));
  const RankPage* const page = lane_->page();
  if (page == nullptr) return report;
  std::map<uint64_t, FlightReport::Call> granted;
  const int64_t now_ns = SteadyNs();
  const auto seconds_ago = [now_ns](int64_t ns) { return static_cast<double>(now_ns - ns) * 1e-9; };
  for (int64_t rank = 0; rank < page->ranks(); ++rank) {
    FlightReport::Member& member = report.members[static_cast<size_t>(rank)];
    member.next_call = std::max(member.next_call, page->LastCallOf(rank) + 1);
    for (const RankPage::FlightCall& known : page->FlightOf(rank)) {
      FlightReport::Call& call = granted[known.number];
      call.number = known.number;
      call.what = ToText(known.signature);
      call.arrived_s.resize(static_cast<size_t>(page->ranks()), -1);
      call.arrived_s[static_cast<size_t>(rank)] = seconds_ago(known.came_ns);
      if (known.granted_ns >= 0) call.matched_s = std::max(call.matched_s, seconds_ago(known.granted_ns));
    }
  }
  for (const FlightReport::Call& asked : report.calls) granted.erase(asked.number);
  for (auto& [number, call] : granted) report.calls.push_back(std::move(call));
  const auto age_of = [](const FlightReport::Call& call) {
    return *std::max_element(call.arrived_s.begin(), call.arrived_s.end());
  };
  std::stable_sort(report.calls.begin(), report.calls.end(),
                   [&](const FlightReport::Call& a, const FlightReport::Call& b) { return age_of(a) > age_of(b); });
  const size_t most = std::min<size_t>(last_calls, kMaxPageFlightCalls);
  if (report.calls.size() > most)
    report.calls.erase(report.calls.begin(), report.calls.end() - static_cast<long>(most));
  return report;
}

absl::Status ProcessGroup::CheckMember(std::string_view name) const {
  if (!has_left_) return absl::OkStatus();
  return absl::FailedPreconditionError(StrCat(name, ": group '", options_.key, "' has been left"));
}

absl::StatusOr<GroupWork> ProcessGroup::Run(const GroupCallOptions& call, const Tensor* operand,
                                            const std::optional<Shape>& result,
                                            std::optional<DType> result_dtype) const {
  TESSERA_RETURN_IF_ERROR(CheckMember(ToText(call.kind)));
  if (IsPointToPoint(call.kind) && options_.only_memory) {
    return absl::InvalidArgumentError(StrCat(ToText(call.kind), " of a Tensor: group '", options_.key,
                                             "' was made for arrays in the ranks' own memory alone"));
  }
  if (IsPointToPoint(call.kind)) return Send(call, operand, result, result_dtype, 0, 0);
  std::optional<GroupWork> work;
  TESSERA_RETURN_IF_ERROR(lane_->Ask([&](uint64_t number) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(work, Send(call, operand, result, result_dtype, number, 0));
    return absl::OkStatus();
  }));
  return *std::move(work);
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
