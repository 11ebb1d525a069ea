// Process groups of the state machine: sessions join as ranks, their calls are compared and issued as one op.
//
// A member's call is taken up at once, its result waits (TensorEntry::unmatched), and the session's next records have
// their turn: so calls of two groups may be made in any order. The last member's call issues the op. Calls are matched
// by their number within the group, sends and receives by ranks and tag.

#include <algorithm>
#include <utility>

#include "schemas/ops/attribute_ids.h"
#include "schemas/ops/catalog.h"
#include "schemas/ops/op_ids.h"
#include "schemas/types/call_origin.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/failure.h"
#include "server/coordinator/state_machine.h"

namespace tessera {
namespace {

constexpr int64_t kMaxGroupTimeoutUs = int64_t{365} * 24 * 3600 * 1'000'000;  // docs/limits.md: max_group_timeout

std::string Seconds(int64_t us) { return StrCat(static_cast<double>(us) * 1e-6, " s"); }

// Whether elements follow each other in memory.
bool IsRowMajor(const Shape& shape, const Strides& strides) {
  int64_t expected = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] == 0) return true;
    if (shape[d] != 1 && strides[d] != expected) return false;
    expected *= shape[d];
  }
  return true;
}

absl::StatusOr<Mesh> MeshOf(const ProcessGroupEntry& group, const std::vector<int32_t>& ranks) {
  std::vector<WorkerIndex> workers;
  for (const int32_t rank : ranks) workers.push_back(group.members[static_cast<size_t>(rank)].worker);
  return Mesh::Make({static_cast<int64_t>(ranks.size())}, {}, workers);
}

std::vector<ArrivedCall*> CallsOf(const std::vector<int32_t>& ranks, std::vector<ArrivedCall>& calls) {
  std::vector<ArrivedCall*> found;
  for (const int32_t rank : ranks) {
    for (ArrivedCall& call : calls) {
      if (call.rank == rank) found.push_back(&call);
    }
  }
  return found;
}

std::string CallName(const ProcessGroupEntry& group, const GroupCall& call) {
  return StrCat("call ", call.number, " of group '", group.key, "'");
}

absl::Status GoneError(const ProcessGroupEntry& group, int32_t rank, const std::string& what) {
  return absl::UnavailableError(StrCat(what, " of group '", group.key, "': ", group.NameOf(rank),
                                       " is gone: ", group.members[static_cast<size_t>(rank)].why));
}

std::optional<int32_t> FindGone(const ProcessGroupEntry& group) {
  for (size_t rank = 0; rank < group.members.size(); ++rank) {
    if (group.members[rank].state == GroupMember::State::kGone) return static_cast<int32_t>(rank);
  }
  return std::nullopt;
}

bool IsSend(const WaitingMessage& message) { return message.call.signature.kind == CollectiveKind::kSend; }

// "send f32[8] to rank 2 with tag 0".
std::string TextOf(const WaitingMessage& message) {
  const std::string whom = message.peer == kAnySource ? "any rank" : StrCat("rank ", message.peer);
  return StrCat(ToText(message.call.signature), IsSend(message) ? " to " : " from ", whom, " with tag ", message.tag);
}

// Whether a send and a recv name each other. One that waits for room alone has its other side.
bool AreTwoSides(const WaitingMessage& message, const WaitingMessage& known) {
  if (IsSend(message) == IsSend(known) || message.tag != known.tag || known.is_blocked) return false;
  const WaitingMessage& sent = IsSend(message) ? message : known;
  const WaitingMessage& received = IsSend(message) ? known : message;
  return sent.peer == received.call.rank && (received.peer == sent.call.rank || received.peer == kAnySource);
}

}  // namespace

// ---- joining

absl::Status StateMachine::CheckJoin(const SessionEntry& session, const JoinGroupRecord& record) const {
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
    return refuse(StrCat("a time-out of ", Seconds(record.timeout_us)));
  }
  TESSERA_RETURN_IF_ERROR(CheckWorkers(StrCat("group '", record.key, "'"), {record.worker}));
  for (const auto& [id, group] : process_groups_.all()) {
    if (group.key != record.key || group.tenant != session.info.tenant) continue;
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
  if (static_cast<int64_t>(process_groups_.size()) >= config_.max_groups) {
    return absl::ResourceExhaustedError(StrCat("group '", record.key, "': there are ", process_groups_.size(),
                                               " groups; max_groups is ", config_.max_groups));
  }
  return absl::OkStatus();
}

StateMachine::Progress StateMachine::TakeRecord(SessionEntry& session, JoinGroupRecord& record) {
  if (absl::Status status = CheckJoin(session, record); !status.ok()) {
    Send(session, SettledEvent{record.request, status});
    return Progress::kDone;
  }
  ProcessGroupEntry* known = process_groups_.FindByKey(session.info.tenant, record.key);
  ProcessGroupEntry& group =
      known != nullptr ? *known
                       : process_groups_.Add(session.info.tenant, record.key, static_cast<size_t>(record.size));
  GroupMember& member = group.members[static_cast<size_t>(record.rank)];
  member.state = GroupMember::State::kHere;
  member.session = session.info.session;
  member.worker = record.worker;
  member.process = std::move(record.process);
  member.request = record.request;
  session.groups.insert(group.id);
  const int64_t deadline_us = now_us_ + record.timeout_us;
  if (known == nullptr || deadline_us < group.forming_deadline_us) {
    group.forming_deadline_us = deadline_us;
    group.forming_timeout_us = record.timeout_us;
  }
  if (group.CountIn(GroupMember::State::kHere) == group.members.size()) AnswerJoins(group);
  return Progress::kDone;
}

void StateMachine::AnswerJoins(ProcessGroupEntry& group) {
  group.is_formed = true;
  GroupJoinedEvent joined;
  joined.group = group.id;
  for (const GroupMember& member : group.members) joined.members.push_back({member.worker, member.process});
  for (GroupMember& member : group.members) {
    joined.request = std::exchange(member.request, 0);
    SendTo(member.session, joined);
  }
}

void StateMachine::FailJoins(ProcessGroupEntry& group, const absl::Status& status) {
  for (const GroupMember& member : group.members) {
    if (member.state != GroupMember::State::kHere) continue;
    if (auto session = sessions_.find(member.session); session != sessions_.end()) {
      session->second.groups.erase(group.id);
    }
    SendTo(member.session, SettledEvent{member.request, status});
  }
  process_groups_.Erase(group.id);
}

// ---- leaving

StateMachine::Progress StateMachine::TakeRecord(SessionEntry& session, LeaveGroupRecord& record) {
  ProcessGroupEntry* const group = process_groups_.Find(record.group);
  const std::optional<int32_t> rank = group == nullptr ? std::nullopt : group->RankOf(session.info.session);
  if (rank.has_value()) LeaveGroup(*group, *rank, "it has left the group");
  session.groups.erase(record.group);
  return Progress::kDone;
}

void StateMachine::LeaveGroups(SessionId id, const std::string& why) {
  std::vector<uint64_t> left;
  for (const auto& [number, group] : process_groups_.all()) {
    if (group.RankOf(id).has_value()) left.push_back(number);
  }
  for (const uint64_t number : left) {
    ProcessGroupEntry& group = *process_groups_.Find(number);
    LeaveGroup(group, *group.RankOf(id), why);
  }
  if (auto session = sessions_.find(id); session != sessions_.end()) session->second.groups.clear();
}

void StateMachine::LeaveGroup(ProcessGroupEntry& group, int32_t rank, const std::string& why) {
  GroupMember& member = group.members[static_cast<size_t>(rank)];
  if (!group.is_formed) {
    if (member.request != 0) SendTo(member.session, SettledEvent{member.request, absl::CancelledError(why)});
    member = GroupMember{};
    if (group.CountIn(GroupMember::State::kMissing) == group.members.size()) process_groups_.Erase(group.id);
    return;
  }
  member.state = GroupMember::State::kGone;
  member.why = why;
  for (GroupCall& call : group.calls) {
    if (call.failed.ok()) FailGroupCall(call, GoneError(group, rank, StrCat("call ", call.number)));
  }
  group.ForgetCalls();
  const bool has_others = group.CountIn(GroupMember::State::kHere) > 1;
  std::erase_if(group.messages, [&](const WaitingMessage& message) {
    const bool is_his = message.call.rank == rank || message.peer == rank;
    if (!is_his && (message.peer != kAnySource || has_others)) return false;
    EndArrived(message.call, GoneError(group, rank, TextOf(message)));
    return true;
  });
  if (group.CountIn(GroupMember::State::kGone) == group.members.size()) process_groups_.Erase(group.id);
}

// ---- what nobody completes

void StateMachine::WatchGroups() {
  std::vector<uint64_t> unformed;
  for (auto& [id, group] : process_groups_.all()) {
    if (!group.is_formed) {
      if (now_us_ >= group.forming_deadline_us) unformed.push_back(id);
      continue;
    }
    for (GroupCall& call : group.calls) {
      if (call.failed.ok() && !call.arrived.empty() && now_us_ >= call.deadline_us) {
        FailGroupCall(call, WhyNotMatched(group, call));
      }
    }
    std::erase_if(group.messages, [&](const WaitingMessage& message) {
      if (now_us_ < message.deadline_us || message.is_blocked) return false;
      const std::string whom = message.peer == kAnySource ? "any rank" : group.NameOf(message.peer);
      EndArrived(message.call,
                 absl::DeadlineExceededError(StrCat(TextOf(message), " of group '", group.key, "' timed out after ",
                                                    Seconds(message.timeout_us), ": ", whom, " has not ",
                                                    IsSend(message) ? "received" : "sent", " it")));
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
                         StrCat("group '", group.key, "' timed out after ", Seconds(group.forming_timeout_us), ": ",
                                ProcessGroupEntry::TextOf(missing), " of ", group.members.size(), " did not join")));
  }
}

absl::Status StateMachine::WhyNotMatched(const ProcessGroupEntry& group, const GroupCall& call) const {
  const std::vector<int32_t> missing = group.MissingAt(call);
  std::string who;
  if (missing.size() == 1) {
    const GroupMember& member = group.members[static_cast<size_t>(missing[0])];
    who = StrCat(group.NameOf(missing[0]), " has not come to it");
    const auto session = sessions_.find(member.session);
    if (session != sessions_.end() && !session->second.connected) StrAppend(&who, "; its connection is gone");
  } else {
    who = StrCat(ProcessGroupEntry::TextOf(missing), " have not come to it");
  }
  return absl::DeadlineExceededError(StrCat(CallName(group, call), " timed out after ", Seconds(call.timeout_us), ": ",
                                            who, "; ", ProcessGroupEntry::WhoCalledWhat(call.arrived)));
}

void StateMachine::EndArrived(const ArrivedCall& call, const absl::Status& status) {
  if (call.result != nullptr) {
    call.result->unmatched = false;
    Unpark(call.session, call.result->handle);
    PoisonTensor(*call.result, OfCall(status, call.result->handle.value));
  }
  if (call.request != 0) SendTo(call.session, SettledEvent{call.request, status});
}

void StateMachine::FailGroupCall(GroupCall& call, const absl::Status& status) {
  call.failed = status;
  for (ArrivedCall& arrived : call.arrived) {
    EndArrived(arrived, status);
    arrived.operand = nullptr;
    arrived.result = nullptr;
    arrived.request = 0;
  }
}

void StateMachine::CancelGroupRequests(SessionEntry& session, const std::set<uint64_t>& requests) {
  const SessionId id = session.info.session;
  std::set<uint64_t> cancelled;  // told in their order
  const auto cancel = [&](ArrivedCall& call) {
    if (call.request == 0 || call.session != id || !requests.contains(call.request)) return;
    const std::string_view name = ToText(call.signature.kind);
    Send(session, SettledEvent{std::exchange(call.request, 0),
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
    Send(session, SettledEvent{request, absl::CancelledError("wait: cancelled by the client")});
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

// ---- calls

absl::StatusOr<ArrivedCall> StateMachine::ArriveAt(SessionEntry& session, const ProcessGroupEntry& group, int32_t rank,
                                                   const CollectiveRecord& record) {
  ArrivedCall call;
  call.rank = rank;
  call.session = session.info.session;
  call.request = record.request;
  call.signature.kind = record.kind;
  if (Reduces(record.kind)) call.signature.op = record.op;
  const auto ranks = static_cast<int64_t>(group.members.size());
  if (HasRoot(record.kind)) {
    call.signature.root = record.peer;
    if (record.peer < 0 || record.peer >= ranks) {
      return absl::InvalidArgumentError(
          StrCat(ToText(record.kind), ": root ", record.peer, " of ", ranks, " ranks, which are numbered from 0"));
    }
  }
  if (record.timeout_us < 0 || record.timeout_us > kMaxGroupTimeoutUs) {
    return absl::InvalidArgumentError(StrCat(ToText(record.kind), ": a time-out of ", Seconds(record.timeout_us)));
  }
  const WorkerIndex worker = group.members[static_cast<size_t>(rank)].worker;
  const auto check_place = [&](const TensorSpec& spec, std::string_view which) -> absl::Status {
    if (spec.mesh.size() == 1 && spec.mesh.workers()[0] == worker && !spec.has_partial()) return absl::OkStatus();
    return absl::InvalidArgumentError(StrCat(ToText(record.kind), ": the ", which, " ", ToText(spec), " of rank ", rank,
                                             " is to lie whole on worker ", worker.value));
  };
  CollectiveTensors tensors;
  if (record.operand.value != 0) {
    TESSERA_ASSIGN_OR_RETURN(call.operand, FindTensor(session, record.operand, ToText(record.kind)));
    TESSERA_RETURN_IF_ERROR(check_place(call.operand->spec, "tensor"));
    if (!IsRowMajor(call.operand->spec.shape, call.operand->strides)) {
      return absl::InvalidArgumentError(StrCat(ToText(record.kind), ": the tensor ", ToText(call.operand->spec),
                                               " of rank ", rank, " is a view whose elements lie apart"));
    }
    tensors.has_operand = true;
    tensors.operand_elements = NumElements(call.operand->spec.shape);
    tensors.operand_dtype = call.operand->spec.dtype;
  }
  if (record.result.value != 0) {
    TESSERA_RETURN_IF_ERROR(check_place(record.result_spec, "result"));
    tensors.has_result = true;
    tensors.result_elements = NumElements(record.result_spec.shape);
    tensors.result_dtype = record.result_spec.dtype;
  }
  TESSERA_RETURN_IF_ERROR(FillSignature(tensors, rank, ranks, call.signature));
  if (!tensors.has_result) return call;
  call.result = std::make_shared<TensorEntry>();
  call.result->session = session.info.session;
  call.result->handle = record.result;
  call.result->spec = record.result_spec;
  call.result->strides = RowMajorStrides(record.result_spec.shape);
  call.result->unmatched = true;
  TESSERA_RETURN_IF_ERROR(AddTensor(session, record.result, call.result));
  return call;
}

void StateMachine::RefuseCollective(SessionEntry& session, const CollectiveRecord& record, const absl::Status& status) {
  if (record.result.value != 0) {
    const absl::Status cause = OfCall(status, record.result.value);
    AddFailedTensor(session, record.result, MakeFailedTensor(session, record.result, cause, nullptr));
  }
  if (record.request != 0) Send(session, SettledEvent{record.request, status});
}

StateMachine::Progress StateMachine::TakeRecord(SessionEntry& session, CollectiveRecord& record) {
  if (const auto operand = session.tensors.find(record.operand);
      operand != session.tensors.end() && operand->second->status.ok() && operand->second->is_awaited()) {
    return BlockedBy(*operand->second);
  }
  ProcessGroupEntry* const group = process_groups_.Find(record.group);
  const std::optional<int32_t> rank = group == nullptr ? std::nullopt : group->RankOf(session.info.session);
  Progress progress = Progress::kDone;
  if (!rank.has_value() || !group->is_formed) {
    RefuseCollective(session, record,
                     absl::FailedPreconditionError(
                         StrCat(ToText(record.kind), ": this session is no member of that process group")));
  } else {
    progress = IsPointToPoint(record.kind) ? TakeMessage(session, *group, *rank, record)
                                           : TakeCall(session, *group, *rank, record);
  }
  if (progress == Progress::kDone && record.last_use) DropHandle(session, record.operand);
  return progress;
}

StateMachine::Progress StateMachine::TakeCall(SessionEntry& session, ProcessGroupEntry& group, int32_t rank,
                                              const CollectiveRecord& record) {
  GroupMember& member = group.members[static_cast<size_t>(rank)];
  GroupCall& call = group.CallAt(member.next_call);
  const auto own = [&call, rank] {
    return std::find_if(call.arrived.begin(), call.arrived.end(),
                        [rank](const ArrivedCall& arrived) { return arrived.rank == rank; });
  };
  const auto come = [&] {
    ++member.next_call;
    group.ForgetCalls();
    return Progress::kDone;
  };
  // It came before, and there was no room to issue it.
  const bool is_again = own() != call.arrived.end();
  if (!call.failed.ok()) {
    if (!is_again) RefuseCollective(session, record, call.failed);
    return come();
  }
  if (!is_again) {
    absl::StatusOr<ArrivedCall> arrived = ArriveAt(session, group, rank, record);
    absl::Status status = arrived.status();
    if (!status.ok()) {
      status =
          WithMessage(status, StrCat(CallName(group, call), ": ", group.NameOf(rank), ": ", StdView(status.message())));
    } else if (static_cast<int64_t>(group.calls.size()) > config_.max_calls_ahead) {
      status = absl::ResourceExhaustedError(StrCat(CallName(group, call), ": ", config_.max_calls_ahead,
                                                   " calls wait for other ranks; that is max_calls_ahead"));
    } else if (const auto gone = FindGone(group); gone.has_value()) {
      status = GoneError(group, *gone, StrCat("call ", call.number));
    }
    if (!status.ok()) {
      if (arrived.ok()) call.arrived.push_back(*std::move(arrived));
      if (!arrived.ok()) RefuseCollective(session, record, status);
      FailGroupCall(call, status);
      return come();
    }
    call.arrived.push_back(*std::move(arrived));
    const int64_t deadline_us = now_us_ + record.timeout_us;
    if (call.arrived.size() == 1 || deadline_us < call.deadline_us) {
      call.deadline_us = deadline_us;
      call.timeout_us = record.timeout_us;
    }
  }
  if (call.arrived.size() < group.members.size()) {
    ++member.next_call;
    return Progress::kDone;
  }
  const CollectiveSignature& first = call.arrived[0].signature;
  const bool is_same = std::all_of(call.arrived.begin(), call.arrived.end(),
                                   [&first](const ArrivedCall& arrived) { return arrived.signature == first; });
  if (!is_same) {
    FailGroupCall(call, absl::InvalidArgumentError(StrCat(
                            CallName(group, call), " differs: ", ProcessGroupEntry::WhoCalledWhat(call.arrived))));
    return come();
  }
  const CollectiveParts parts = PartsOf(first, static_cast<int64_t>(group.members.size()));
  const absl::StatusOr<Progress> issued = IssueCollective(session, group, parts, call.arrived);
  if (issued.ok() && *issued != Progress::kDone) return *issued;
  if (!issued.ok()) {
    FailGroupCall(
        call, WithMessage(issued.status(), StrCat(CallName(group, call), ": ", StdView(issued.status().message()))));
  }
  call.arrived.clear();
  return come();
}

absl::StatusOr<WaitingMessage> StateMachine::MessageOf(SessionEntry& session, ProcessGroupEntry& group, int32_t rank,
                                                       const CollectiveRecord& record) {
  // It came before, and there was no room to issue it.
  const auto own = std::find_if(group.messages.begin(), group.messages.end(), [rank](const WaitingMessage& message) {
    return message.call.rank == rank && message.is_blocked;
  });
  if (own != group.messages.end()) {
    WaitingMessage message = std::move(*own);
    group.messages.erase(own);
    return message;
  }
  const auto ranks = static_cast<int32_t>(group.members.size());
  const bool is_any = record.peer == kAnySource && record.kind == CollectiveKind::kRecv;
  if (!is_any && (record.peer < 0 || record.peer >= ranks || record.peer == rank)) {
    return absl::InvalidArgumentError(
        StrCat(ToText(record.kind), ": rank ", record.peer, " of ", ranks, " ranks as the other side of rank ", rank));
  }
  if (static_cast<int64_t>(group.messages.size()) >= config_.max_calls_ahead) {
    return absl::ResourceExhaustedError(StrCat(ToText(record.kind), ": ", group.messages.size(),
                                               " messages wait for the other side; max_calls_ahead is ",
                                               config_.max_calls_ahead));
  }
  TESSERA_ASSIGN_OR_RETURN(ArrivedCall call, ArriveAt(session, group, rank, record));
  return WaitingMessage{.call = std::move(call),
                        .peer = record.peer,
                        .tag = record.tag,
                        .deadline_us = now_us_ + record.timeout_us,
                        .timeout_us = record.timeout_us};
}

StateMachine::Progress StateMachine::TakeMessage(SessionEntry& session, ProcessGroupEntry& group, int32_t rank,
                                                 const CollectiveRecord& record) {
  absl::StatusOr<WaitingMessage> message = MessageOf(session, group, rank, record);
  if (!message.ok()) {
    RefuseCollective(
        session, record,
        WithMessage(message.status(), StrCat("group '", group.key, "': ", StdView(message.status().message()))));
    return Progress::kDone;
  }
  const auto other = std::find_if(group.messages.begin(), group.messages.end(),
                                  [&](const WaitingMessage& known) { return AreTwoSides(*message, known); });
  if (other == group.messages.end()) {
    const bool is_gone = message->peer != kAnySource &&
                         group.members[static_cast<size_t>(message->peer)].state == GroupMember::State::kGone;
    if (is_gone) {
      EndArrived(message->call, GoneError(group, message->peer, TextOf(*message)));
    } else {
      message->is_blocked = false;
      group.messages.push_back(*std::move(message));
    }
    return Progress::kDone;
  }
  const bool is_send = record.kind == CollectiveKind::kSend;
  const WaitingMessage& sent = is_send ? *message : *other;
  const WaitingMessage& received = is_send ? *other : *message;
  absl::Status status;
  if (sent.call.signature.dtype != received.call.signature.dtype ||
      sent.call.signature.elements != received.call.signature.elements) {
    status = absl::InvalidArgumentError(StrCat("message of group '", group.key, "' differs: rank ", sent.call.rank,
                                               " called ", TextOf(sent), "; rank ", received.call.rank, " called ",
                                               TextOf(received)));
  } else {
    std::vector<ArrivedCall> both = {sent.call, received.call};
    const CollectiveParts parts = PartsOfMessage(sent.call.signature, sent.call.rank, received.call.rank);
    const absl::StatusOr<Progress> issued = IssueCollective(session, group, parts, both);
    if (issued.ok() && *issued != Progress::kDone) {
      message->is_blocked = true;
      group.messages.push_back(*std::move(message));
      return *issued;
    }
    status = issued.status();
  }
  if (!status.ok()) {
    EndArrived(message->call, status);
    EndArrived(other->call, status);
  }
  group.messages.erase(other);
  return Progress::kDone;
}

bool StateMachine::AwaitsRanks(SessionId id) const {
  const auto is_own = [id](const ArrivedCall& call) { return call.session == id; };
  for (const auto& [number, group] : process_groups_.all()) {
    for (const GroupCall& call : group.calls) {
      if (call.failed.ok() && std::any_of(call.arrived.begin(), call.arrived.end(), is_own)) return true;
    }
    for (const WaitingMessage& message : group.messages) {
      if (is_own(message.call)) return true;
    }
    for (const GroupMember& member : group.members) {
      if (member.session == id && member.request != 0) return true;  // it joins
    }
  }
  return false;
}

// ---- issue

absl::StatusOr<StateMachine::Progress> StateMachine::IssueCollective(SessionEntry& session, ProcessGroupEntry& group,
                                                                     const CollectiveParts& parts,
                                                                     std::vector<ArrivedCall>& calls) {
  const std::string_view name = ToText(calls[0].signature.kind);
  const auto tell = [&] {
    int32_t source = 0;
    for (const ArrivedCall& call : calls) {
      if (call.signature.kind == CollectiveKind::kSend) source = call.rank;
    }
    for (const ArrivedCall& call : calls) {
      if (call.request != 0) SendTo(call.session, MatchedEvent{call.request, source});
    }
    return Progress::kDone;
  };
  if (parts.takers.empty()) return tell();
  const std::vector<ArrivedCall*> givers = CallsOf(parts.givers, calls), takers = CallsOf(parts.takers, calls);
  for (const ArrivedCall* giver : givers) {
    if (giver->operand->status.ok()) continue;
    return WithMessage(giver->operand->status, StrCat("the tensor of ", group.NameOf(giver->rank),
                                                      " has failed: ", StdView(giver->operand->status.message())));
  }
  TESSERA_ASSIGN_OR_RETURN(const Mesh from, MeshOf(group, parts.givers));
  TESSERA_ASSIGN_OR_RETURN(const Mesh to, MeshOf(group, parts.takers));
  TESSERA_RETURN_IF_ERROR(CheckWorkers(name, from.workers()));
  TESSERA_RETURN_IF_ERROR(CheckWorkers(name, to.workers()));
  auto whole = std::make_shared<TensorEntry>();
  TESSERA_ASSIGN_OR_RETURN(whole->spec,
                           TensorSpec::Make(name, calls[0].signature.dtype, parts.shape, from, {parts.from}));
  whole->strides = RowMajorStrides(MaxShardShape(whole->spec));
  CallRecord record;
  record.call.op = OpId::kRedistribute;
  record.call.attributes.Set(attribute::mesh, to);
  record.call.attributes.Set(attribute::placements, Placements{parts.to});
  record.operands.push_back({HandleId(), false});
  Unit unit;
  unit.calls.push_back(&record);
  unit.name = name;
  unit.key.topology_version = topologies_[0].version;
  unit.key.inputs.push_back({whole->spec, whole->strides});
  PlanKeyCall& key = unit.key.calls.emplace_back();
  key.op = record.call.op;
  key.attributes = record.call.attributes;
  key.operands.emplace_back().value = 0;
  unit.tensors.push_back(std::move(whole));
  unit.last_uses.push_back(false);
  std::vector<Scalar> scalars;
  absl::StatusOr<PlanTemplate*> plan = TemplateOf(session, unit, scalars);
  if (!plan.ok()) return SaidBy(name, NameOf(record.call.op), plan.status());
  const WorkerGroup workers = (*plan)->workers;
  if (!HasRoom(*workers)) return Progress::kBlocked;
  const absl::Status run = RunCollective(name, group, givers, takers, **plan);
  if (absl::IsResourceExhausted(run) && AwaitsWindows(session, *workers)) return Progress::kBlocked;
  TESSERA_RETURN_IF_ERROR(run);
  session.deficit_us -= (*plan)->cost_us;
  return tell();
}

absl::Status StateMachine::RunCollective(std::string_view name, const ProcessGroupEntry& group,
                                         const std::vector<ArrivedCall*>& givers,
                                         const std::vector<ArrivedCall*>& takers, PlanTemplate& plan) {
  const Plan& p = *plan.plan;
  const PlanValue& input = p.values[static_cast<size_t>(p.inputs[0])];
  const PlanValue& output = p.values[static_cast<size_t>(p.outputs[0])];
  Instance instance;
  instance.plan = plan.id;
  instance.stream = plan.stream;
  instance.makes_calls = MakesCalls(plan);
  instance.buffer_offsets.resize(p.buffers.size());
  BuffersApart apart;
  const auto place_apart = [&](int buffer) -> PlacedBuffer& {
    return instance.placed_apart.emplace_back(PlacedBuffer{buffer, {}});
  };
  const auto worker_of = [&group](const ArrivedCall& call) {
    return group.members[static_cast<size_t>(call.rank)].worker;
  };
  PlacedBuffer& read = place_apart(input.buffer);
  for (const ArrivedCall* giver : givers) {
    apart.emplace_back(input.buffer, giver->operand->buffer);
    read.offsets.emplace_back(worker_of(*giver), giver->operand->offset_bytes);
  }
  // A result of its own for each, so that nobody's memory waits for another's.
  std::vector<std::pair<BufferPointer, int64_t>> results;  // and the offset of its first element
  const int64_t skipped_bytes = output.offset * SizeBytes(output.spec.dtype);
  if (output.buffer == input.buffer) {
    for (const ArrivedCall* taker : takers) {
      const auto own = std::find(givers.begin(), givers.end(), taker);
      if (own == givers.end()) return absl::InternalError(StrCat(name, ": a result lies in another rank's tensor"));
      results.emplace_back((*own)->operand->buffer, (*own)->operand->offset_bytes + skipped_bytes);
    }
  } else {
    PlacedBuffer& written = place_apart(output.buffer);
    for (const ArrivedCall* taker : takers) {
      TESSERA_ASSIGN_OR_RETURN(BufferPointer made,
                               NewBuffer(taker->session, MakeGroup({worker_of(*taker)}),
                                         p.buffers[static_cast<size_t>(output.buffer)].bytes, name));
      written.offsets.emplace_back(worker_of(*taker), made->offset_bytes);
      results.emplace_back(made, made->offset_bytes + skipped_bytes);
      apart.emplace_back(output.buffer, std::move(made));
    }
  }
  std::vector<BufferPointer> buffers(p.buffers.size());
  for (size_t b = 0; b < buffers.size(); ++b) {
    if (p.buffers[b].kind != PlanBuffer::Kind::kTemporary) continue;
    TESSERA_ASSIGN_OR_RETURN(buffers[b], NewBuffer(SessionId(), plan.buffer_workers[b], p.buffers[b].bytes, name));
    instance.buffer_offsets[b] = buffers[b]->offset_bytes;
  }
  OpPointer op;
  if (!p.steps.empty()) {
    Define(plan);
    op = NewOp(OpEntry::Kind::kRun, name, SessionId(), plan.workers, plan.cost_us);
    op->plan = plan.plan;
    for (const ArrivedCall* giver : givers) AddParent(op, *giver->operand);
    for (const auto& calls : {givers, takers}) {
      for (const ArrivedCall* call : calls) AddShare(*op, *call, plan);
    }
    instance.ordinal = op->ordinal;
    AddWaits(plan, buffers, apart, instance);
    ToGroup(plan.workers, std::move(instance));
  }
  for (size_t t = 0; t < takers.size(); ++t) {
    const TensorPointer& result = takers[t]->result;
    result->buffer = results[t].first;
    result->offset_bytes = results[t].second;
    result->unmatched = false;
    if (op == nullptr) {
      const auto own = std::find(givers.begin(), givers.end(), takers[t]);
      if (own != givers.end()) result->producer = (*own)->operand->producer;
    } else {
      result->producer = op;
    }
    if (result->producer && !result->producer->settled) result->producer->outputs.push_back(result);
    Unpark(takers[t]->session, result->handle);
  }
  return absl::OkStatus();
}

StateMachine::Progress StateMachine::Park(SessionEntry& session, HandleId handle, Record record) {
  session.parked_weight += WeightOf(record);
  session.parked[handle].push_back(std::move(record));
  return Progress::kDone;
}

void StateMachine::Unpark(SessionId id, HandleId handle) {
  const auto session = sessions_.find(id);
  if (session == sessions_.end()) return;
  const auto parked = session->second.parked.find(handle);
  if (parked == session->second.parked.end()) return;
  for (Record& record : parked->second) {
    session->second.parked_weight -= WeightOf(record);
    unparked_.emplace_back(id, std::move(record));
  }
  session->second.parked.erase(parked);
}

void StateMachine::TakeBackParked() {
  // The last one first, so that the first is in front.
  for (auto item = unparked_.rbegin(); item != unparked_.rend(); ++item) {
    const auto session = sessions_.find(item->first);
    if (session == sessions_.end()) continue;
    session->second.queue_weight += WeightOf(item->second);
    session->second.queue.push_front(std::move(item->second));
    session->second.memory_wait.reset();  // of the record that was the first
  }
  unparked_.clear();
}

// Of the calling member's session: once, though it gives and takes.
void StateMachine::AddShare(OpEntry& op, const ArrivedCall& call, const PlanTemplate& plan) {
  const auto is_same = [&call](const OpShare& share) { return share.session == call.session; };
  const auto found = sessions_.find(call.session);
  if (found == sessions_.end() || std::any_of(op.shares.begin(), op.shares.end(), is_same)) return;
  SessionEntry& session = found->second;
  OpShare share;
  share.session = call.session;
  share.comm_scopes = EnterScopes(session);
  share.profile_number = session.profile.TakeNumber();
  if (call.result != nullptr) share.result = call.result->handle;
  for (const uint64_t open : share.comm_scopes) {
    CommScope& scope = session.scopes.at(open);
    for (const auto& [collective, count] : plan.collectives) scope.collectives[collective] += count;
  }
  op.shares.push_back(std::move(share));
}

}  // namespace tessera
