#pragma once

// GroupDesk: process groups. Sessions join as ranks and leave (rank_groups.cc); calls of members are compared, matched,
// and issued as one op when the last one comes (collectives.cc, issue_collective.cc).
//
// A call is taken up at once and its result waits, so a collective holds up no other record of its session. Reads of
// such a result are parked until the call is matched or has failed.

#include "server/coordinator/state_machine.h"

namespace tessera {

class StateMachine::GroupDesk {
 public:
  explicit GroupDesk(StateMachine& machine)
      : machine_(machine), config_(machine.config_), process_groups_(machine.process_groups_) {}

  Progress Take(SessionEntry& session, JoinGroupRecord& record);
  Progress Take(SessionEntry& session, LeaveGroupRecord& record);
  Progress Take(SessionEntry& session, CollectiveRecord& record);
  void LeaveGroups(SessionId session, const std::set<uint64_t>& groups, const std::string& why);
  void WatchGroups();
  void CancelGroupRequests(SessionEntry& session, const std::set<uint64_t>& requests);
  Progress Park(SessionEntry& session, HandleId handle, Record record);
  void TakeBackParked();

 private:
  absl::Status CheckJoin(const SessionEntry& session, const JoinGroupRecord& record) const;
  void AnswerJoins(ProcessGroupEntry& group);
  void FailJoins(ProcessGroupEntry& group, const absl::Status& status);
  void LeaveGroup(ProcessGroupEntry& group, int32_t rank, const std::string& why);
  absl::StatusOr<ArrivedCall> ArriveAt(SessionEntry& session, const ProcessGroupEntry& group, int32_t rank,
                                       const CollectiveRecord& record);
  absl::StatusOr<TensorPointer> RowMajorCopyOf(SessionEntry& session, HandleId handle);
  void RefuseCollective(SessionEntry& session, const CollectiveRecord& record, const absl::Status& status);
  Progress TakeCall(SessionEntry& session, ProcessGroupEntry& group, int32_t rank, const CollectiveRecord& record);
  absl::StatusOr<WaitingMessage> MessageOf(SessionEntry& session, ProcessGroupEntry& group, int32_t rank,
                                           const CollectiveRecord& record);
  Progress TakeMessage(SessionEntry& session, ProcessGroupEntry& group, int32_t rank, const CollectiveRecord& record);
  absl::Status WhyNotMatched(const ProcessGroupEntry& group, const GroupCall& call) const;
  void EndArrived(const ArrivedCall& call, const absl::Status& status);
  void FailGroupCall(ProcessGroupEntry& group, GroupCall& call, const absl::Status& status);
  // Plans and issues the members' calls as one op; kBlocked while some worker has no room for it.
  absl::StatusOr<Progress> IssueCollective(SessionEntry& session, ProcessGroupEntry& group,
                                           const CollectiveParts& parts, std::vector<ArrivedCall>& calls);
  absl::Status RunCollective(std::string_view name, const ProcessGroupEntry& group,
                             const std::vector<ArrivedCall*>& givers, const std::vector<ArrivedCall*>& takers,
                             PlanTemplate& plan);
  void AddShare(OpEntry& op, const ArrivedCall& call, const PlanTemplate& plan);
  void Unpark(SessionId session, HandleId handle);

  StateMachine& machine_;
  const CoordinatorConfig& config_;
  ProcessGroups& process_groups_;
};

}  // namespace tessera
