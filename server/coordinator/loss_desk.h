#pragma once

// LossDesk: tensors that lose shards with a worker, and tensors of sessions that have ended. Both are long work: it is
// done in slices of about a millisecond, and a session whose tensors were not looked at since a loss has no turn.

#include "server/coordinator/state_machine.h"

namespace tessera {

class StateMachine::LossDesk {
 public:
  explicit LossDesk(StateMachine& machine) : machine_(machine), long_work_(machine.long_work_) {}

  void GoOnWithLongWork();  // for about a millisecond
  bool IsSwept(const SessionEntry& session) const;
  // Goes on where all shards have living copies (schemas/types/living_mesh.h), or fails. False: it loses nothing.
  bool LoseShard(TensorEntry& tensor, const WorkerLoss& loss);

 private:
  std::optional<SessionId> NextToSweep() const;
  int64_t Sweep(SessionId session, int64_t max_cost);

  StateMachine& machine_;
  LongWork& long_work_;
};

}  // namespace tessera
