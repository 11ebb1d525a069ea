// Process groups of the state machine: sessions join as ranks, leave, and are told of those that are gone or don't
// come.

#include <algorithm>
#include <utility>

#include "schemas/types/call_origin.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/completion_desk.h"
#include "server/coordinator/group_desk.h"

namespace tessera {

// ---- joining

absl::Status StateMachine::GroupDesk::CheckJoin(const SessionEntry& session, const JoinGroupRecord& record) const {
  const auto refuse = [&record](const std::string& why) {
    return absl::InvalidArgumentError(StrCat("group '", record.key, "': ", why));
  };
  if (record.size < 1 || record.size > config_.max_group_size) {
    return refuse(StrCat("it has ", record.size, " ranks; a group has 1 to max_group_size, ", config_.max_group_size));
  }
  if (record.rank < 0 || record.rank >= record.size) {
    return refuse(StrCat("rank ", record.rank, " of ", record.size, " ranks, which are numbered from 0"));
  }
  if (record.timeout_us < 0 || record.timeout_us > kMaxGroupTimeoutUs) {
    return refuse(StrCat("a time-out of ", SecondsText(record.timeout_us)));
  }
  TESSERA_RETURN_IF_ERROR(machine_.CheckWorkers(StrCat("group '", record.key, "'"), {record.worker}));
  const auto alive = std::count_if(machine_.workers_.begin(), machine_.workers_.end(),
                                   [](const auto& worker) { return worker.second.state != WorkerState::kDead; });
  if (record.size > alive) {
    return refuse(StrCat("it has ", record.size, " ranks, each with a worker of its own; the cluster has ", alive));
  }
  if (static_cast<int64_t>(session.groups.size()) >= config_.max_groups_per_session) {
    return absl::ResourceExhaustedError(StrCat("group '", record.key, "': this session is in ", session.groups.size(),
                                               " groups; max_groups_per_session is ", config_.max_groups_per_session));
  }
  const ProcessGroupEntry* const known = process_groups_.FindByKey(session.info.tenant, record.key);
  if (known == nullptr) {
    if (static_cast<int64_t>(process_groups_.size()) >= config_.max_groups) {
      return absl::ResourceExhaustedError(StrCat("group '", record.key, "': there are ", process_groups_.size(),
                                                 " groups; max_groups is ", config_.max_groups));
    }
    return absl::OkStatus();
  }
  const ProcessGroupEntry& group = *known;
  if (static_cast<int64_t>(group.members.size()) != record.size) {
    return refuse(
        StrCat("rank ", record.rank, " says that it has ", record.size, " ranks, and others ", group.members.size()));
  }
  if (const auto rank = group.RankOf(session.info.session); rank.has_value()) {
    return refuse(StrCat("this session is rank ", *rank, " of it"));
  }
  if (group.members[static_cast<size_t>(record.rank)].state != GroupMember::State::kMissing) {
    return refuse(StrCat(group.NameOf(static_cast<int32_t>(record.rank)), " is in it"));
  }
  for (size_t rank = 0; rank < group.members.size(); ++rank) {
    const GroupMember& member = group.members[rank];
    if (member.state == GroupMember::State::kHere && member.worker == record.worker) {
      return refuse(StrCat("worker ", record.worker.value, " is that of ", group.NameOf(static_cast<int32_t>(rank)),
                           "; each rank has a worker of its own"));
    }
  }
  return absl::OkStatus();
}

Progress StateMachine::GroupDesk::Take(SessionEntry& session, JoinGroupRecord& record) {
  if (absl::Status status = CheckJoin(session, record); !status.ok()) {
    machine_.Send(session, SettledEvent{record.request, status});
    return Progress::kDone;
  }
  const ProcessGroupEntry* const known = process_groups_.FindByKey(session.info.tenant, record.key);
  ProcessGroupEntry& group =
      known != nullptr ? *process_groups_.Find(known->id)
                       : process_groups_.Add(session.info.tenant, record.key, static_cast<size_t>(record.size));
  GroupMember& member = group.members[static_cast<size_t>(record.rank)];
  member.state = GroupMember::State::kHere;
  member.session = session.info.session;
  member.worker = record.worker;
  member.process = std::move(record.process);
  member.meeting = std::move(record.meeting);
  member.request = record.request;
  session.groups.insert(group.id);
  const int64_t deadline_us = machine_.now_us_ + record.timeout_us;
  if (known == nullptr || deadline_us < group.forming_deadline_us) {
    group.forming_deadline_us = deadline_us;
    group.forming_timeout_us = record.timeout_us;
  }
  if (group.CountIn(GroupMember::State::kHere) == group.members.size()) AnswerJoins(group);
  return Progress::kDone;
}

void StateMachine::GroupDesk::AnswerJoins(ProcessGroupEntry& group) {
  group.is_formed = true;
  GroupJoinedEvent joined;
  joined.group = group.id;
  for (const GroupMember& member : group.members)
    joined.members.push_back({member.worker, member.process, member.meeting});
  for (GroupMember& member : group.members) {
    joined.request = std::exchange(member.request, 0);
    machine_.SendTo(member.session, joined);
  }
}

void StateMachine::GroupDesk::FailJoins(ProcessGroupEntry& group, const absl::Status& status) {
  for (const GroupMember& member : group.members) {
    if (member.state != GroupMember::State::kHere) continue;
    if (auto session = machine_.sessions_.find(member.session); session != machine_.sessions_.end()) {
      session->second.groups.erase(group.id);
    }
    machine_.SendTo(member.session, SettledEvent{member.request, status});
  }
  process_groups_.Erase(group.id);
}

// ---- leaving

Progress StateMachine::GroupDesk::Take(SessionEntry& session, LeaveGroupRecord& record) {
  ProcessGroupEntry* const group = process_groups_.Find(record.group);
  const std::optional<int32_t> rank = group == nullptr ? std::nullopt : group->RankOf(session.info.session);
  if (rank.has_value()) LeaveGroup(*group, *rank, "it has left the group");
  session.groups.erase(record.group);
  return Progress::kDone;
}

void StateMachine::GroupDesk::LeaveGroups(SessionId id, const std::set<uint64_t>& groups, const std::string& why) {
  for (const uint64_t number : groups) {
    ProcessGroupEntry* const group = process_groups_.Find(number);
    const std::optional<int32_t> rank = group == nullptr ? std::nullopt : group->RankOf(id);
    if (rank.has_value()) LeaveGroup(*group, *rank, why);
  }
}

void StateMachine::GroupDesk::LeaveGroup(ProcessGroupEntry& group, int32_t rank, const std::string& why) {
  GroupMember& member = group.members[static_cast<size_t>(rank)];
  if (!group.is_formed) {
    if (member.request != 0) machine_.SendTo(member.session, SettledEvent{member.request, absl::CancelledError(why)});
    member = GroupMember{};
    if (group.CountIn(GroupMember::State::kMissing) == group.members.size()) process_groups_.Erase(group.id);
    return;
  }
  member.state = GroupMember::State::kGone;
  member.why = why;
  for (GroupCall& call : group.calls) {
    if (call.failed.ok()) FailGroupCall(group, call, group.WhyGone(rank, StrCat("call ", call.number)));
  }
  group.ForgetCalls();
  const bool has_others = group.CountIn(GroupMember::State::kHere) > 1;
  std::erase_if(group.messages, [&](WaitingMessage& message) {
    if (message.has_failed) return false;
    const bool is_his = message.call.rank == rank || message.peer == rank;
    if (!is_his && (message.peer != kAnySource || has_others)) return false;
    EndArrived(message.call, group.WhyGone(rank, message.ToText()));
    message.has_failed = message.is_blocked && message.call.rank != rank;
    return !message.has_failed;
  });
  if (group.CountIn(GroupMember::State::kGone) == group.members.size()) process_groups_.Erase(group.id);
}

// ---- what nobody completes

void StateMachine::GroupDesk::WatchGroups() {
  std::vector<uint64_t> unformed;
  for (auto& [id, group] : process_groups_.all()) {
    if (!group.is_formed) {
      if (machine_.now_us_ >= group.forming_deadline_us) unformed.push_back(id);
      continue;
    }
    for (GroupCall& call : group.calls) {
      if (call.failed.ok() && !call.arrived.empty() && machine_.now_us_ >= call.deadline_us) {
        FailGroupCall(group, call, WhyNotMatched(group, call));
      }
    }
    std::erase_if(group.messages, [&](const WaitingMessage& message) {
      if (machine_.now_us_ < message.deadline_us || message.is_blocked) return false;
      const std::string whom = message.peer == kAnySource ? "any rank" : group.NameOf(message.peer);
      EndArrived(message.call,
                 absl::DeadlineExceededError(StrCat(message.ToText(), " of group '", group.key, "' timed out after ",
                                                    SecondsText(message.timeout_us), ": ", whom, " has not ",
                                                    message.is_send() ? "received" : "sent", " it")));
      return true;
    });
  }
  for (const uint64_t id : unformed) {
    ProcessGroupEntry& group = *process_groups_.Find(id);
    std::vector<int32_t> missing;
    for (size_t rank = 0; rank < group.members.size(); ++rank) {
      if (group.members[rank].state == GroupMember::State::kMissing) missing.push_back(static_cast<int32_t>(rank));
    }
    FailJoins(group, absl::DeadlineExceededError(
                         StrCat("group '", group.key, "' timed out after ", SecondsText(group.forming_timeout_us), ": ",
                                ProcessGroupEntry::TextOf(missing), " of ", group.members.size(), " did not join")));
  }
}

absl::Status StateMachine::GroupDesk::WhyNotMatched(const ProcessGroupEntry& group, const GroupCall& call) const {
  const std::vector<int32_t> missing = group.MissingAt(call);
  std::string who;
  if (missing.size() == 1) {
    const GroupMember& member = group.members[static_cast<size_t>(missing[0])];
    who = StrCat(group.NameOf(missing[0]), " has not come to it");
    const auto session = machine_.sessions_.find(member.session);
    if (session != machine_.sessions_.end() && !session->second.connected) StrAppend(&who, "; its connection is gone");
  } else {
    who = StrCat(ProcessGroupEntry::TextOf(missing), " have not come to it");
  }
  return absl::DeadlineExceededError(StrCat(group.NameOf(call), " timed out after ", SecondsText(call.timeout_us), ": ",
                                            who, "; ", ProcessGroupEntry::WhoCalledWhat(call.arrived)));
}

void StateMachine::GroupDesk::EndArrived(const ArrivedCall& call, const absl::Status& status) {
  if (call.result != nullptr) {
    call.result->unmatched = false;
    Unpark(call.session, call.result->handle);
    CompletionDesk(machine_).PoisonTensor(*call.result, OfCall(status, call.result->handle.value));
  }
  if (call.request != 0) machine_.SendTo(call.session, SettledEvent{call.request, status});
}

void StateMachine::GroupDesk::FailGroupCall(ProcessGroupEntry& group, GroupCall& call, const absl::Status& status) {
  call.failed = status;
  if (FlightCall* noted = group.Noted(call.number); noted != nullptr) noted->failure = StdView(status.message());
  for (ArrivedCall& arrived : call.arrived) {
    EndArrived(arrived, status);
    arrived.operand = nullptr;
    arrived.result = nullptr;
    arrived.request = 0;
  }
}

void StateMachine::GroupDesk::CancelGroupRequests(SessionEntry& session, const std::set<uint64_t>& requests) {
  const SessionId id = session.info.session;
  std::set<uint64_t> cancelled;  // told in their order
  const auto cancel = [&](ArrivedCall& call) {
    if (call.request == 0 || call.session != id || !requests.contains(call.request)) return;
    const std::string_view name = ToText(call.signature.kind);
    machine_.Send(session, SettledEvent{std::exchange(call.request, 0),
                                        absl::CancelledError(StrCat(name, ": its wait was cancelled by the client"))});
  };
  for (auto& [handle, records] : session.parked) {
    std::erase_if(records, [&](const Record& record) {
      const auto* download = std::get_if<DownloadRecord>(&record);
      const auto* watch = std::get_if<WatchRecord>(&record);
      const uint64_t request = download != nullptr ? download->request : watch->request;
      if (!requests.contains(request)) return false;
      session.parked_weight -= WeightOf(record);
      cancelled.insert(request);
      return true;
    });
  }
  for (const uint64_t request : cancelled) {
    machine_.Send(session, SettledEvent{request, absl::CancelledError("wait: cancelled by the client")});
  }
  std::vector<std::pair<uint64_t, int32_t>> joins;
  for (const uint64_t number : session.groups) {
    ProcessGroupEntry* const group = process_groups_.Find(number);
    const std::optional<int32_t> rank = group == nullptr ? std::nullopt : group->RankOf(id);
    if (!rank.has_value()) continue;
    const uint64_t join = group->members[static_cast<size_t>(*rank)].request;
    if (join != 0 && requests.contains(join)) joins.emplace_back(number, *rank);
    for (GroupCall& call : group->calls) {
      for (ArrivedCall& arrived : call.arrived) cancel(arrived);
    }
    for (WaitingMessage& message : group->messages) cancel(message.call);
  }
  for (const auto& [number, rank] : joins) {
    LeaveGroup(*process_groups_.Find(number), rank, "join: cancelled by the client");
    session.groups.erase(number);
  }
}

}  // namespace tessera
