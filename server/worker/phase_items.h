#pragma once

// PhaseItems: one phase of a program as device items. Operands in mapped memory are read where they
// lie. Bytes of other peers come in one message per peer into staging memory, and the instructions read
// them there; what such peers need is packed into staging memory and sent.
//
// A part of a message that is a sum is reduced into staging memory, from mapped memory: its packing is its reduction.
//
// Staging memory belongs to a stream, is as large as its largest phase needed, and is used again by
// every phase: the items of a stream run in order, and a phase's messages have ended before its
// instructions run.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "server/device/device.h"
#include "server/plan/instance.h"
#include "server/transport/transport.h"
#include "server/worker/arena.h"
#include "server/worker/run_record.h"
#include "server/worker/template_cache.h"

namespace tessera {

class PhaseItems {
 public:
  PhaseItems(const ArenaTable& arenas, Device& device, MessageTransport* messages)
      : arenas_(arenas), device_(device), messages_(messages) {}

  // Enqueues the phase's messages and instructions. `record.report.received_bytes` has an entry per
  // peer of the template, and its vectors have room for what the program needs. Errors enqueue nothing: Unavailable
  // when bytes would come from a peer that can't be reached at all, ResourceExhausted when there is no memory for
  // staging; the phase's messages are then refused.
  absl::Status Enqueue(const Instance& instance, const Phase& phase, int phase_number, const RunRecordRef& record);
  // In place of the phase's messages, where the instance can't run: empty ones, which the other ends
  // find to be of the wrong size, so that no peer waits for what never comes.
  void EnqueueRefusal(const Instance& instance, const Phase& phase, int phase_number, const RunRecordRef& record);

 private:
  // Where a message lies in staging memory.
  struct Placed {
    int64_t at = 0;
    int64_t bytes = 0;
  };
  // An instruction's term in staging memory; no data when it is read in place.
  struct Staged {
    std::byte* data = nullptr;
    const Strides* strides = nullptr;
  };
  absl::Status PlaceMessages(const Phase& phase, StreamId stream, RunRecord& record);
  absl::Status ReserveStaging(StreamId stream, int64_t bytes, RunRecord& record);
  // Unavailable when the phase needs a peer in another way than it is reached.
  absl::Status CheckReach(const Phase& phase) const;
  void EnqueuePacking(const Instance& instance, const Phase& phase, RunRecord& record);
  void EnqueueSum(const Instance& instance, const MessagePart& part, std::byte* to, RunRecord& record);
  void EnqueueMessages(const Instance& instance, const Phase& phase, int phase_number, const RunRecordRef& record);
  void EnqueueStart(StreamId stream, PhaseMessages& messages, const RunRecordRef& record);
  void EnqueueCopy(const Instance& instance, const CopyInstruction& copy, size_t number, RunRecord& record);
  void EnqueueReduce(const Instance& instance, const ReduceInstruction& reduce, size_t number, RunRecord& record);
  void EnqueueKernel(const Instance& instance, const KernelInstruction& kernel, size_t number, RunRecord& record);
  void EnqueueInstructions(const Instance& instance, const Phase& phase, RunRecord& record);

  std::byte* AddressOf(const Operand& operand, const Instance& instance) const;
  // No data when the term is read in place.
  Staged StagedTerm(size_t instruction, size_t term) const;
  int64_t* CountOf(WorkerIndex worker, std::vector<std::pair<WorkerIndex, int64_t>>& counts) const;

  const ArenaTable& arenas_;
  Device& device_;
  MessageTransport* messages_;
  std::array<std::shared_ptr<StagingMemory>, kStreamCount> staging_;

  // Of the phase at hand.
  std::byte* staged_ = nullptr;
  std::vector<Placed> outgoing_, incoming_;  // by the phase's lists; bytes -1: mapped, no message
  // By instruction and term, one after another from first_term_[instruction] on. Empty when all are read
  // in place.
  std::vector<Staged> staged_terms_;
  std::vector<size_t> first_term_;
};

}  // namespace tessera
