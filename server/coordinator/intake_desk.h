#pragma once

// IntakeDesk: the records of a session in their order, as far as limits let them. A record is taken up, refused with
// the reason in its results, or waits at the front of its queue.

#include "server/coordinator/state_machine.h"

namespace tessera {

class StateMachine::IntakeDesk {
 public:
  explicit IntakeDesk(StateMachine& machine) : machine_(machine), config_(machine.config_) {}

  Progress Take(SessionEntry& session, size_t& taken);
  void Cancel(SessionEntry& session, const Cancels& cancels);
  void ReleaseTicket(const SessionEntry& session, const ReleaseRecord& release);
  absl::Status AddTensor(SessionEntry& session, HandleId handle, TensorPointer tensor);
  // One entry may stand for several handles that failed together.
  TensorPointer MakeFailedTensor(const SessionEntry& session, HandleId first, const absl::Status& cause,
                                 const TensorSpec* spec = nullptr);
  void AddFailedTensor(SessionEntry& session, HandleId handle, TensorPointer failed);
  // Whether a window is being closed on these workers, which refused memory, of those that the session's first record
  // may wait for. A window that a client may still use is none of them.
  bool AwaitsWindows(SessionEntry& session, absl::Span<const WorkerIndex> workers);

 private:
  Progress TakeRecord(SessionEntry& session, UploadRecord& record);
  Progress TakeRecord(SessionEntry& session, DownloadRecord& record);
  Progress TakeRecord(SessionEntry& session, WatchRecord& record);
  Progress TakeRecord(SessionEntry& session, DropRecord& record);
  Progress TakeRecord(SessionEntry& session, NamingRecord& record);
  Progress TakeRecord(SessionEntry& session, CommBeginRecord& record);
  Progress TakeRecord(SessionEntry& session, CommEndRecord& record);
  Progress TakeRecord(SessionEntry& session, CancelRecord& record);
  Progress TakeRecord(SessionEntry& session, CancelCallsRecord& record);
  Progress TakeRecord(SessionEntry& session, ReleaseRecord& record);
  template <class GroupRecord>
  Progress TakeRecord(SessionEntry& session, GroupRecord& record);  // joins, leaves, collectives
  Progress TakeRecord(SessionEntry& session, PublicationRecord& record);
  Progress TakeRecord(SessionEntry& session, BadRecord& record);
  Progress TakeRecord(SessionEntry& session, BatchEndRecord& record);
  // Memory and names for all of its tensors, or for none of them.
  absl::StatusOr<std::vector<TensorPointer>> PlaceUploads(SessionEntry& session, const UploadRecord& record,
                                                          const WorkerGroup& workers);
  absl::Status CheckInline(const UploadRecord& record) const;  // that its bytes are those of its tensor
  // By record of the queue up to `calls_before`, whether it leads to what is needed.
  static std::vector<bool> FindNeeded(const SessionEntry& session, const Cancels& cancels);
  void CancelWaiters(SessionEntry& session, const std::set<uint64_t>& requests);
  absl::Status CheckTickets(std::string_view op, const SessionEntry& session) const;
  void RefuseCall(SessionEntry& session, const CallRecord& record, const absl::Status& status);
  Progress TakeCalls(SessionEntry& session, CallRecord& record, size_t& taken);
  absl::StatusOr<Progress> TakeSegment(SessionEntry& session, IssueUnit& unit);
  void FinishUnit(SessionEntry& session, const IssueUnit& unit);

  StateMachine& machine_;
  const CoordinatorConfig& config_;
};

}  // namespace tessera
