#pragma once

// SpillDesk: makes room in the workers' arenas by having idle buffers written to files of their workers, and has them
// read back when a record names a tensor that lies in one.
//
// A record that gets no memory waits while buffers leave: of its own tenant, and of tenants that have more than they
// are guaranteed; those of sessions without a client first, then those that were used longest ago. A buffer leaves only
// when nothing is under way on it, no transfer has it, and nobody published it. It leaves by a transfer window like a
// download's, and its range is given back when all its workers have its bytes in files. A record whose tensor is away
// waits until the buffer is back, in another range; other sessions go on. A failure costs no tensor: one whose file
// can't be written stays, and one whose file can't be read stays away, and the record is told why.
//
// Law: no instruction names a range whose buffer is away. Every record that takes a tensor asks BringBack first, and
// says Use when it was taken. Law: room is made for one session at a time, until its first record is taken or refused;
// who needs room meanwhile waits. Else two that want more than there is might take each other's range whenever it comes
// free, for ever.

#include <vector>

#include "absl/types/span.h"
#include "server/coordinator/state_machine.h"

namespace tessera {

class StateMachine::SpillDesk {
 public:
  explicit SpillDesk(StateMachine& machine) : machine_(machine), table_(machine.spills_) {}

  // A buffer that was just made, and each tensor that lies in one.
  void Watch(const BufferPointer& buffer);
  void Track(const TensorPointer& tensor);
  // A buffer that nobody refers to any more. True: its range is not its own, and is not given back.
  bool LetGo(BufferEntry& buffer);

  // kDone when the tensors' buffers are in memory; kBlocked while they come. ResourceExhausted where there is no room
  // for them, Unavailable or another error of a worker that could not read its file.
  absl::StatusOr<Progress> BringBack(SessionEntry& session, absl::Span<const TensorPointer> tensors);
  // Their record was taken: something reads them from now on.
  void Use(absl::Span<const TensorPointer> tensors);
  // Whether a record that was refused memory may be given some later, since windows are being closed or buffers leave.
  bool AwaitsMemory(SessionEntry& session, absl::Span<const MemoryMap::Request> requests);
  // Memory that the plan takes: its results', which stay, then its temporaries'.
  static std::vector<MemoryMap::Request> RequestsOf(const Plan& plan);
  // The session's first record was taken.
  void Taken(SessionEntry& session);
  // It waits for something else, or is refused: if room was being made for it, others have their turn.
  void HandTurnOn(SessionId session);

  // A worker has its part of one that leaves in its host's memory.
  void KeptByHost(const TicketEntry& ticket, WorkerIndex worker);
  // A transfer of a buffer to or from files is over.
  void Ended(TicketEntry& ticket);
  // A worker could not write its part of one: for a while no other buffer is tried there.
  void Failed(WorkerIndex worker);

 private:
  // How soon a buffer may leave: now, when what is under way on it has ended, or not before somebody lets go of it.
  enum class Ease : uint8_t { kIdle, kBusy, kHeld };

  bool IsOthersTurn(SessionId session) const;
  Ease EaseOf(SpillEntry& entry, const BufferPointer& buffer);
  bool HasPlace(const BufferEntry& buffer) const;  // in files of its workers
  std::vector<WorkerIndex> HoldersOf(const BufferEntry& buffer) const;
  bool MakesRoom(const SessionEntry& session, absl::Span<const MemoryMap::Request> requests);
  absl::Status Place(uint32_t slot, BufferPointer& placed);
  void Open(const BufferPointer& buffer, const WorkerGroup& workers, TransferDirection direction);
  void BeginLeaving(const BufferPointer& buffer);
  void BeginComing(const BufferPointer& buffer, const BufferPointer& placed);
  void GiveRangeBack(BufferEntry& buffer);
  void ForgetFile(const BufferEntry& buffer, SpillEntry& entry);
  void Count(const BufferEntry& buffer, int64_t sign);

  StateMachine& machine_;
  SpillTable& table_;
};

}  // namespace tessera
