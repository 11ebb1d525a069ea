// The calls of a process group's members: compared, matched, and issued as one op when the last one comes.
//
// A call is taken up at once, its result waits (TensorEntry::unmatched), and the session's next records have their
// turn: so calls of two groups may be made in any order. Calls are matched by their number within the group, sends and
// receives by ranks, tag and claim.

#include <algorithm>
#include <utility>

#include "schemas/types/call_origin.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/group_desk.h"
#include "server/coordinator/intake_desk.h"
#include "server/coordinator/spill_desk.h"

namespace tessera {
namespace {

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

}  // namespace

absl::StatusOr<ArrivedCall> StateMachine::GroupDesk::ArriveAt(SessionEntry& session, const ProcessGroupEntry& group,
                                                              int32_t rank, const CollectiveRecord& record) {
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
    return absl::InvalidArgumentError(StrCat(ToText(record.kind), ": a time-out of ", SecondsText(record.timeout_us)));
  }
  if (record.on_devices) {
    const bool has_handles = record.operand.value != 0 || record.result.value != 0;
    if (has_handles || record.elements < 0 || IsPointToPoint(record.kind) || record.kind == CollectiveKind::kBarrier) {
      return absl::InvalidArgumentError(StrCat(ToText(record.kind), " on devices of ", record.elements, " elements",
                                               has_handles ? ", with a handle" : ""));
    }
    call.signature.dtype = record.dtype;
    call.signature.elements = record.elements;
    call.signature.on_devices = true;
    return call;
  }
  const WorkerIndex worker = group.members[static_cast<size_t>(rank)].worker;
  const auto check_place = [&](const TensorSpec& spec, std::string_view which) -> absl::Status {
    if (spec.mesh.size() == 1 && spec.mesh.workers()[0] == worker && !spec.has_partial()) return absl::OkStatus();
    return absl::InvalidArgumentError(StrCat(ToText(record.kind), ": the ", which, " ", ToText(spec), " of rank ", rank,
                                             " is to lie whole on worker ", worker.value));
  };
  CollectiveTensors tensors;
  if (record.operand.value != 0) {
    TESSERA_ASSIGN_OR_RETURN(call.operand, machine_.FindTensor(session, record.operand, ToText(record.kind)));
    TESSERA_RETURN_IF_ERROR(check_place(call.operand->spec(), "tensor"));
    if (!IsRowMajor(call.operand->spec().shape, call.operand->strides())) {
      TESSERA_ASSIGN_OR_RETURN(call.operand, RowMajorCopyOf(session, record.operand));
    }
    tensors.has_operand = true;
    tensors.operand_elements = NumElements(call.operand->spec().shape);
    tensors.operand_dtype = call.operand->spec().dtype;
  }
  if (record.result.value != 0) {
    TESSERA_RETURN_IF_ERROR(check_place(record.result_spec, "result"));
    tensors.has_result = true;
    tensors.result_elements = NumElements(record.result_spec.shape);
    tensors.result_dtype = record.result_spec.dtype;
  }
  TESSERA_RETURN_IF_ERROR(FillSignature(tensors, rank, ranks, call.signature));
  if (!tensors.has_result) return call;
  call.result = machine_.tensors_.Add();
  call.result->session = session.info.session;
  call.result->handle = record.result;
  call.result->layout = machine_.layouts_.Of(record.result_spec, RowMajorStrides(record.result_spec.shape));
  call.result->unmatched = true;
  TESSERA_RETURN_IF_ERROR(IntakeDesk(machine_).AddTensor(session, record.result, call.result));
  return call;
}

void StateMachine::GroupDesk::RefuseCollective(SessionEntry& session, const CollectiveRecord& record,
                                               const absl::Status& status) {
  if (record.result.value != 0) {
    const absl::Status cause = OfCall(status, record.result.value);
    IntakeDesk(machine_).AddFailedTensor(session, record.result,
                                         IntakeDesk(machine_).MakeFailedTensor(session, record.result, cause, nullptr));
  }
  if (record.request != 0) machine_.Send(session, SettledEvent{record.request, status});
}

Progress StateMachine::GroupDesk::Take(SessionEntry& session, CollectiveRecord& record) {
  if (const auto operand = session.tensors.find(record.operand);
      operand != session.tensors.end() && operand->second->status.ok() && operand->second->is_awaited()) {
    return BlockedBy(*operand->second);
  } else if (operand != session.tensors.end() && operand->second->status.ok()) {
    const absl::StatusOr<Progress> back = SpillDesk(machine_).BringBack(session, {operand->second});
    if (back.ok() && *back != Progress::kDone) return *back;
    if (!back.ok()) {
      RefuseCollective(session, record, back.status());
      return Progress::kDone;
    }
    SpillDesk(machine_).Use({operand->second});
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
  if (progress == Progress::kDone && record.last_use) machine_.DropHandle(session, record.operand);
  return progress;
}

Progress StateMachine::GroupDesk::TakeCall(SessionEntry& session, ProcessGroupEntry& group, int32_t rank,
                                           const CollectiveRecord& record) {
  GroupMember& member = group.members[static_cast<size_t>(rank)];
  if (record.number != 0) {
    if (record.number < member.next_call || record.number > kMaxCallNumber) {
      RefuseCollective(session, record,
                       absl::InvalidArgumentError(StrCat("group '", group.key, "': call ", record.number, " of rank ",
                                                         rank, " comes after its call ", member.next_call - 1)));
      return Progress::kDone;
    }
    member.next_call = record.number;  // the ranks matched those between by themselves
  }
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
          WithMessage(status, StrCat(group.NameOf(call), ": ", group.NameOf(rank), ": ", StdView(status.message())));
    } else if (static_cast<int64_t>(group.calls.size()) > config_.max_calls_ahead) {
      status = absl::ResourceExhaustedError(StrCat(group.NameOf(call), ": ", config_.max_calls_ahead,
                                                   " calls wait for other ranks; that is max_calls_ahead"));
    } else if (const auto gone = group.FindGone(); gone.has_value()) {
      status = group.WhyGone(*gone, StrCat("call ", call.number));
    }
    if (!status.ok()) {
      if (arrived.ok()) call.arrived.push_back(*std::move(arrived));
      if (!arrived.ok()) RefuseCollective(session, record, status);
      FailGroupCall(group, call, status);
      return come();
    }
    FlightCall* noted = group.Noted(call.number);
    if (noted == nullptr) {
      noted = &group.Note(call.number, ToText(arrived->signature), static_cast<size_t>(config_.max_flight_calls));
    }
    noted->arrived_us[static_cast<size_t>(rank)] = machine_.now_us_;
    call.arrived.push_back(*std::move(arrived));
    const int64_t deadline_us =
        machine_.now_us_ + record.timeout_us - std::clamp<int64_t>(record.waited_us, 0, record.timeout_us);
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
    FailGroupCall(group, call,
                  absl::InvalidArgumentError(
                      StrCat(group.NameOf(call), " differs: ", ProcessGroupEntry::WhoCalledWhat(call.arrived))));
    return come();
  }
  const CollectiveParts parts =
      first.on_devices ? CollectiveParts{} : PartsOf(first, static_cast<int64_t>(group.members.size()));
  const absl::StatusOr<Progress> issued = IssueCollective(session, group, parts, call.arrived);
  if (issued.ok() && *issued != Progress::kDone) return *issued;
  if (!issued.ok()) {
    FailGroupCall(group, call,
                  WithMessage(issued.status(), StrCat(group.NameOf(call), ": ", StdView(issued.status().message()))));
  }
  FlightCall* const noted = group.Noted(call.number);
  if (issued.ok() && noted != nullptr) noted->matched_us = machine_.now_us_;
  call.arrived.clear();
  return come();
}

absl::StatusOr<WaitingMessage> StateMachine::GroupDesk::MessageOf(SessionEntry& session, ProcessGroupEntry& group,
                                                                  int32_t rank, const CollectiveRecord& record) {
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
                        .claim = record.number,
                        .deadline_us = machine_.now_us_ + record.timeout_us,
                        .timeout_us = record.timeout_us};
}

Progress StateMachine::GroupDesk::TakeMessage(SessionEntry& session, ProcessGroupEntry& group, int32_t rank,
                                              const CollectiveRecord& record) {
  absl::StatusOr<WaitingMessage> message = MessageOf(session, group, rank, record);
  if (!message.ok()) {
    RefuseCollective(
        session, record,
        WithMessage(message.status(), StrCat("group '", group.key, "': ", StdView(message.status().message()))));
    return Progress::kDone;
  }
  if (message->has_failed) return Progress::kDone;
  const auto other = std::find_if(group.messages.begin(), group.messages.end(),
                                  [&](const WaitingMessage& known) { return message->IsOtherSideOf(known); });
  if (other == group.messages.end()) {
    const bool is_gone = message->peer != kAnySource &&
                         group.members[static_cast<size_t>(message->peer)].state == GroupMember::State::kGone;
    if (is_gone) {
      EndArrived(message->call, group.WhyGone(message->peer, message->ToText()));
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
                                               " called ", sent.ToText(), "; rank ", received.call.rank, " called ",
                                               received.ToText()));
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
  if (sent.claim == 0 || !status.ok()) {  // the ranks have noted the message of a claim
    FlightCall& noted = group.Note(0, StrCat(sent.ToText(), " of rank ", sent.call.rank),
                                   static_cast<size_t>(config_.max_flight_calls));
    noted.arrived_us[static_cast<size_t>(rank)] = machine_.now_us_;
    if (status.ok()) noted.matched_us = machine_.now_us_;
    noted.failure = StdView(status.message());
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
  const auto session = sessions_.find(id);
  if (session == sessions_.end()) return false;
  for (const uint64_t number : session->second.groups) {
    const auto found = process_groups_.all().find(number);
    if (found == process_groups_.all().end()) continue;
    const ProcessGroupEntry& group = found->second;
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

// ---- reads of results that are not there yet

Progress StateMachine::GroupDesk::Park(SessionEntry& session, HandleId handle, Record record) {
  session.parked_weight += WeightOf(record);
  session.parked[handle].push_back(std::move(record));
  return Progress::kDone;
}

void StateMachine::GroupDesk::Unpark(SessionId id, HandleId handle) {
  const auto session = machine_.sessions_.find(id);
  if (session == machine_.sessions_.end()) return;
  machine_.turns_.Retry(id);  // its first record may wait for the handle
  const auto parked = session->second.parked.find(handle);
  if (parked == session->second.parked.end()) return;
  for (Record& record : parked->second) {
    session->second.parked_weight -= WeightOf(record);
    machine_.unparked_.emplace_back(id, std::move(record));
  }
  session->second.parked.erase(parked);
}

void StateMachine::GroupDesk::TakeBackParked() {
  // The last one first, so that the first is in front.
  for (auto item = machine_.unparked_.rbegin(); item != machine_.unparked_.rend(); ++item) {
    const auto session = machine_.sessions_.find(item->first);
    if (session == machine_.sessions_.end()) continue;
    session->second.queue_weight += WeightOf(item->second);
    session->second.queue.push_front(std::move(item->second));
    machine_.turns_.SetReady(item->first);
    session->second.memory_wait.reset();  // of the record that was the first
  }
  machine_.unparked_.clear();
}

}  // namespace tessera
