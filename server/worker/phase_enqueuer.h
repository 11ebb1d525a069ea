#pragma once

// PhaseEnqueuer: one phase of a program as device items. Operands in mapped memory are read where they lie. Bytes of
// other peers come in messages, chunk by chunk, and what such peers need is sent so:
//
//   receives of the first chunks are posted; the first chunks are packed, and each is sent as soon as it is packed;
//   instructions that need no message run; then, step by step: the chunks of the step are awaited, the pieces of
//   instructions that read them run, and the next receive is posted and the next chunk packed and sent
//
// A chunk that is one contiguous range of a shard is sent from there, or received to there, where the transport takes
// the device's memory, or that is the host's. Others go through staging memory (message_staging.h), of the device where
// the transport takes it, which a part that is a sum of mapped memory is reduced into, and of which each message has a
// window of a few chunks, used again in turn; where instructions need more of a message at once, all of it. All
// transfers of a phase have ended when its last item has, and the next one uses the memory again.
//
// A merge whose runs come in ranges (merge_messages.h) sends the chunks with samples first, then what is wanted of the
// others.
//
// Law: nobody waits in a circle. Chunk c of every message is posted, packed and sent before anything of step c is
// awaited, and what is awaited before that are chunks of earlier steps.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/device/device.h"
#include "server/plan/instance.h"
#include "server/transport/transport.h"
#include "server/worker/arena.h"
#include "server/worker/merge_messages.h"
#include "server/worker/message_staging.h"
#include "server/worker/message_windows.h"
#include "server/worker/peer_lives.h"
#include "server/worker/run_record.h"
#include "server/worker/template_cache.h"

namespace tessera {

class PhaseEnqueuer {
 public:
  PhaseEnqueuer(const ArenaTable& arenas, Device& device, MessageTransport* messages)
      : arenas_(arenas), device_(device), messages_(messages), staging_(arenas, device) {}

  // Before the phases of a run: memory for what passes on and is taken by messages. ResourceExhausted as Enqueue.
  absl::Status Begin(const ProgramTemplate& known, RunRecord& record);
  // Enqueues the phase's messages and instructions. `record.report.received_bytes` has an entry per
  // peer of the template, and its vectors have room for what the program needs. Errors enqueue nothing: Unavailable
  // when bytes would come from a peer that can't be reached at all, ResourceExhausted when messages would take more
  // memory than the arena has (docs/limits.md: max_phase_staging_bytes) or than there is; the phase's messages are then
  // refused.
  absl::Status Enqueue(const Instance& instance, const Phase& phase, int phase_number, const RunRecordRef& record);
  // In place of the phase's messages, where the instance can't run: empty chunks, which the other ends
  // find to be of the wrong size, so that no peer waits for what never comes.
  void EnqueueRefusal(const Instance& instance, const Phase& phase, int phase_number, const RunRecordRef& record);
  // Messages of the peer that were enqueued and haven't started end with Unavailable, though another process may have
  // taken its number by then.
  void MarkDead(WorkerIndex peer) { lives_.End(peer); }

 private:
  // The phase at hand.
  struct Here {
    const Instance& instance;
    const Phase& phase;
    const RunRecordRef& record;
    StreamId stream;
    MessageWindows windows;
    PhaseMessages* messages;
  };
  // A message of a peer that isn't mapped.
  struct Active {
    size_t number = 0;  // in the phase's list
    size_t chunk_count = 0;
    size_t first_transfer = 0;  // its chunks' transfers follow each other
    size_t next_part = 0;       // to be packed
    StagingPlace place = StagingPlace::kHost;
    size_t first_chunks = 0;    // of a merge of ranges: those that have the samples
    bool takes_direct = false;  // chunks that lie in one piece in a shard go from there, or to there

    bool IsDirect(const MessageChunk& chunk) const { return takes_direct && chunk.direct >= 0; }
  };
  // An instruction, or a piece of one.
  struct Run {
    int64_t step = 0;  // the chunk that it waits for; kNoMessage: none
    size_t instruction = 0;
    const InstructionPiece* piece = nullptr;
  };
  // An instruction's term in staging memory; no data when it is read in place.
  struct Staged {
    std::byte* data = nullptr;
    const Strides* strides = nullptr;
  };
  // A buffer: whether it is of what passes on; no data where nobody gets it in messages.
  struct Transit {
    bool passes_on = false;
    std::byte* data = nullptr;
  };
  // A merge of ranges: what chooses them, and where they are said to the kernel.
  struct MergePhase {
    std::shared_ptr<MergeMessages> messages;
    int64_t* ranges = nullptr;
  };
  // Where a message's chunks lie in staging memory.
  struct Ring {
    int64_t base = 0;
    int64_t window = 0;
    int64_t slot_bytes = 0;  // 0: the whole message lies there
  };
  static constexpr int64_t kNoMessage = -1;

  // Unavailable when the phase needs a peer in another way than it is reached.
  absl::Status CheckReach(const Phase& phase) const;
  void FindMessages(const Phase& phase);
  Active MakeActive(size_t number, WorkerIndex peer, size_t chunk_count) const;
  void ListRuns(const Phase& phase);
  void ListPieces(const Phase& phase, size_t first, size_t end);
  void OrderProducts();
  absl::Status AddTransfers(const Here& here);
  static Ring PlaceRing(const Active& active, const std::vector<MessageChunk>& chunks, int64_t memory_bytes,
                        int64_t window, std::array<int64_t, 2>& totals);
  static int64_t At(const Ring& ring, const MessageChunk& chunk, size_t number);

  absl::Status AddMergeTransfers(const Here& here, const KernelInstruction& kernel, MergePhase& merge);
  void AddRuns(const Here& here, const InstructionPiece& piece, KernelInput* inputs, MergeMessages& merge) const;
  void EnqueueMerge(const Here& here, const MergePhase& merge);

  void EnqueueSteps(const Here& here);
  void EnqueueReceives(const Here& here, size_t chunk);
  void EnqueueSends(const Here& here, size_t chunk);
  void EnqueuePart(const Here& here, const MessagePart& part, std::byte* destination);
  void EnqueueSum(const Here& here, const MessagePart& part, std::byte* destination);
  // Uses the record's terms and destinations from these on.
  void EnqueueReduction(const Here& here, ReduceWork work, size_t first_term, size_t first_destination);
  void EnqueueRunOf(const Here& here, const Run& run);
  void EnqueueStart(const Here& here, size_t transfer);
  void EnqueueAwait(const Here& here, size_t transfer);

  void EnqueueWork(const Here& here, const Instruction& work, const InstructionPiece* piece);
  void EnqueueCopy(const Here& here, const CopyInstruction& copy, const InstructionPiece* piece);
  void EnqueueReduce(const Here& here, const ReduceInstruction& reduce, const InstructionPiece* piece);
  static int64_t* AddTakenCounts(const KernelInstruction& kernel, RunRecord& record);
  // `ranges`: of a merge of ranges, what it may read of each run; else null.
  KernelWork MakeKernel(const Here& here, const KernelInstruction& kernel, const InstructionPiece* piece,
                        const int64_t* ranges);

  std::byte* AddressOf(const Operand& operand, const Instance& instance) const;
  // Null where nothing passes on in the operand's buffer.
  const Transit* TransitAt(const Operand& operand) const;
  Staged StagedTerm(const Here& here, const InstructionPiece* piece, size_t term) const;
  bool IsActive(const StagedOperand& operand) const {
    return active_of_incoming_[static_cast<size_t>(operand.message)] >= 0;
  }
  const Active& ActiveOf(const StagedOperand& operand) const {
    return incoming_[static_cast<size_t>(active_of_incoming_[static_cast<size_t>(operand.message)])];
  }
  size_t TransferOf(const StagedOperand& operand, int chunk) const {
    return ActiveOf(operand).first_transfer + static_cast<size_t>(chunk);
  }
  int64_t* CountOf(WorkerIndex worker, std::vector<std::pair<WorkerIndex, int64_t>>& counts) const;

  const ArenaTable& arenas_;
  Device& device_;
  MessageTransport* messages_;
  PeerLives lives_;
  MessageStaging staging_;

  std::vector<Transit> transit_;  // of the run at hand, by parameter; empty: nothing passes on

  // For the phase at hand.
  std::vector<Active> outgoing_, incoming_;
  std::vector<int> active_of_incoming_;  // by the phase's list: index into incoming_, -1 where it is mapped
  std::vector<Run> runs_;                // in the order in which they are enqueued
  std::vector<Ring> rings_;
  std::vector<uint8_t> awaited_;  // by transfer
};

}  // namespace tessera
