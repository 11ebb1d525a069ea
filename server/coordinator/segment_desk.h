#pragma once

// SegmentDesk: which records of a queue are planned as one (server/planner/segment.h). It follows from the queue and
// the tables alone.

#include "server/coordinator/state_machine.h"

namespace tessera {

class StateMachine::SegmentDesk {
 public:
  explicit SegmentDesk(StateMachine& machine) : machine_(machine) {}

  absl::StatusOr<IssueUnit> UnitOf(const SessionEntry& session, const CallRecord& record) const;
  // The segment that begins with the first record of the queue; nullopt where nothing is gained.
  std::optional<IssueUnit> FindSegment(SessionEntry& session) const;
  static void AddDropsBehind(const SessionEntry& session,
                             IssueUnit& unit);  // what the drop behind it names, it uses last
  static Segment SegmentFor(const IssueUnit& unit);

 private:
  class Gatherer;

  StateMachine& machine_;
};

}  // namespace tessera
