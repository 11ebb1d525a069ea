#pragma once

// TurnDesk: whose turn it is, and what it costs. Sessions take turns at the workers' windows by what they have used
// (fair_turns.h); a session that waits for a gate has its next turn when that opens.
//
//   TurnDesk(machine).Pump();   // records of all sessions are taken up, as far as windows and max_intake_us let them

#include "server/coordinator/state_machine.h"

namespace tessera {

class StateMachine::TurnDesk {
 public:
  explicit TurnDesk(StateMachine& machine)
      : machine_(machine),
        config_(machine.config_),
        turns_(machine.turns_),
        turn_(machine.turn_),
        gate_(machine.gate_) {}

  void Pump();
  void Charge(SessionEntry& session, int64_t own_us);
  int64_t WindowUs();
  bool HasRoom(absl::Span<const WorkerIndex> workers, Lane lane);
  bool HasRoomFor(const PlanTemplate& plan, Lane lane);
  OpPointer NewRun(std::string_view name, SessionId session, const PlanTemplate& plan, Lane lane);
  void EndWork(OpEntry& op);
  void PayForRuns(SessionEntry& session, const ProfiledRuns& runs);

 private:
  void TakeTurn(SessionEntry& session);
  bool IsOpen(WorkerIndex worker, Lane lane);

  StateMachine& machine_;
  const CoordinatorConfig& config_;
  FairTurns& turns_;
  SessionId& turn_;
  int32_t& gate_;
};

}  // namespace tessera
