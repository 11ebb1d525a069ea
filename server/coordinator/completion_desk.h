#pragma once

// CompletionDesk: reports of workers. An op is complete when all of its workers have said so, and is settled when its
// parents are, too: then who waits for it is told. A failure poisons what was computed from it.

#include "server/coordinator/state_machine.h"

namespace tessera {

class StateMachine::CompletionDesk {
 public:
  explicit CompletionDesk(StateMachine& machine) : machine_(machine), tickets_(machine.tickets_) {}

  void Complete(const OpPointer& op, WorkerIndex worker, const CompletionReport& report);
  void PoisonTensor(TensorEntry& tensor, const absl::Status& cause);
  void SettleIfDone(const OpPointer& op);
  void Remember(OpEntry& op);
  void TransferDone(WorkerIndex worker, const TransferReport& report);

 private:
  void LeaveScopes(SessionId session, const ScopeNumbers& scopes);
  void CountTraffic(const OpEntry& op, WorkerIndex worker, const CompletionReport& report);
  // Bytes that went between a worker's shard and the client or a file.
  void CountTransfer(SessionId session, const ScopeNumbers& scopes, TransferDirection direction, WorkerIndex worker,
                     int64_t bytes);
  std::vector<CommScope*> ScopesOf(SessionId session, const ScopeNumbers& scopes);
  void Blame(const OpPointer& op, const absl::Status& cause);
  void Poison(const OpPointer& op, const absl::Status& cause);
  void Settled(const OpPointer& op);
  void AnswerRequest(OpEntry& op);
  void ForgetRequest(OpEntry& op);  // it has been answered, which its ticket is told: nothing answers twice
  void AddRun(OpEntry& op, WorkerIndex worker, const CompletionReport& report);
  void FinishTicket(TicketId id, TicketEntry& ticket);

  StateMachine& machine_;
  std::map<TicketId, TicketEntry>& tickets_;
};

}  // namespace tessera
