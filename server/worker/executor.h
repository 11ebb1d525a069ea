#pragma once

// Executor: turns programs into device items. For each instance and phase: the waits, the messages of
// peers whose memory isn't mapped, the instructions, and the counter that peers wait for; then the
// report. It decides nothing: the plan said everything, the instance the rest.
//
//   Executor executor(WorkerIndex(0), arena, device, nullptr, report);
//   executor.AddMappedPeer(WorkerIndex(1), std::make_shared<SharedArena>(*SharedArena::Map(fd)));
//   executor.Define(id, plan);
//   executor.Run({.ordinal = Ordinal(1), .plan = id, .buffer_offsets = {0, 4096}});
//
// Law: every ordinal ends in one report and in its counter's DoneValue, whatever goes wrong, so that no
// peer hangs. A message that makes no sense (an unknown template, offsets outside the arena, wrong
// counts) is a report with InvalidArgument.
//
// Bytes received are counted where they move: by the device for what is read in a peer's memory, by
// the message that arrived for the rest; never copied from the plan.
//
// After warm-up an ordinal allocates nothing (ranks up to 6): records are used again (run_record.h). A merge by
// messages is the exception: its ranges (server/plan/merge_ranges.h) are lists of their own.
//
// All calls come from one thread; reports come from the device's threads.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/device/device.h"
#include "server/plan/instance.h"
#include "server/transport/transport.h"
#include "server/worker/arena.h"
#include "server/worker/call_items.h"
#include "server/worker/phase_enqueuer.h"
#include "server/worker/run_record.h"
#include "server/worker/template_cache.h"

namespace tessera {

inline constexpr int64_t kMaxInlineBytes = 4096;  // docs/limits.md: max_inline_bytes

class Executor {
 public:
  using Report = RunRecords::Report;

  // Everything outlives the executor; `messages` may be null: every peer is mapped.
  // `max_chunk_bytes` is the same on all workers.
  Executor(WorkerIndex self, const SharedArena& own, Device& device, MessageTransport* messages, Report report,
           int64_t max_chunk_bytes = kMaxChunkBytes);

  // A peer whose memory is mapped here; its counters are waited for.
  absl::Status AddMappedPeer(WorkerIndex peer, std::shared_ptr<const SharedArena> arena);
  // A peer that is reached by messages: its messages are the waits.
  absl::Status AddMessagePeer(WorkerIndex peer);
  // A peer that can't be reached in the way that plans rely on, until one of the other three is called for it:
  // instances that have to do with it end with Unavailable. It may read and write here all the same, and nobody here
  // could wait for it.
  void AddUnreachedPeer(WorkerIndex peer, const absl::Status& why);
  // Waits on it are met and its messages end with Unavailable from now on. Its memory is let go of when what was
  // enqueued before has run; the same when it is mapped anew.
  void MarkDead(WorkerIndex peer);

  // Nothing of what comes between Hold and Flush needs to start before Flush (device.h).
  void Hold() { device_.Hold(); }
  void Flush() { device_.Flush(); }
  // Whether an item runs on the device, or one has run since the last time (device.h).
  bool WasAtWork() { return device_.WasAtWork(); }
  // A plan that can't be read, or run here, is remembered as such: instances of it report why. `read_ns`: time of this
  // thread that reading it took; the first instance reports it, with the time of what follows.
  void Define(TemplateId id, const absl::StatusOr<std::shared_ptr<const Plan>>& plan, int64_t read_ns = 0);
  void Forget(TemplateId id);
  void Run(const Instance& instance);
  // The report of the window's ordinal says that it is open; the copies are not the executor's.
  void OpenWindow(const TransferWindow& window);
  void ReadInline(const InlineRead& read);
  void WriteInline(const InlineWrite& write);

  // Ordinals that were given and not reported yet.
  uint64_t outstanding() const { return records_->outstanding(); }
  WorkerIndex self() const { return arenas_.self(); }

 private:
  void RetireArena(WorkerIndex peer);
  absl::Status CheckOrdinal(StreamId stream, Ordinal ordinal);
  absl::Status CheckReached(const std::vector<WorkerIndex>& workers) const;
  absl::Status CheckReached(const std::vector<InstanceWait>& waits) const;
  absl::Status CheckReached(const Program& program) const;
  absl::Status CheckInstance(const Instance& instance, const ProgramTemplate& known) const;
  void RefusePhases(const Instance& instance, const RunRecordRef& record);
  void EnqueuePhases(StreamId stream, const Instance& instance, const RunRecordRef& record);
  // Enqueue a phase's waits: for what touched this worker's memory before the program, and for what peers must have
  // written before they are read, be ready for before they are written, or have read before it is overwritten here.
  // kAllPhases: of every phase.
  static constexpr int kAllPhases = 0;
  void EnqueueOwnWaits(StreamId stream, Ordinal ordinal, const std::vector<InstanceWait>& waits, int phase_number);
  void EnqueuePeerWaits(StreamId stream, Ordinal ordinal, const std::vector<InstanceWait>& waits, int phase_number,
                        const Phase& phase);
  void EnqueueWaitsToPush(StreamId stream, Ordinal ordinal, int phase_number, const Phase& phase);
  void EnqueueWaitOn(StreamId stream, const CounterWait& wait);
  bool IsAnyMapped(const std::vector<WorkerIndex>& workers) const;
  // The copy of the own box from memory that the record keeps.
  absl::StatusOr<CopyWork> CopyOfInline(const InlineWrite& write, RunRecord& record);
  // Ends the ordinal: its counter, then its report.
  void EnqueueEnd(StreamId stream, RunRecordRef record);

  ArenaTable arenas_;
  std::map<WorkerIndex, std::string> unreached_;  // and why
  Device& device_;
  MessageTransport* messages_;
  TemplateCache templates_;
  PhaseEnqueuer phases_;
  CallItems calls_;
  std::array<Ordinal, kStreamCount> last_ordinal_;
  std::vector<CounterWait> phase_waits_;  // of the phase at hand: each is enqueued once
  std::shared_ptr<RunRecords> records_;   // shared with reports under way
};

}  // namespace tessera
