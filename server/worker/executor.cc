#include "server/worker/executor.h"

#include <algorithm>
#include <utility>

#include "schemas/types/contains.h"
#include "schemas/types/layout.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/worker/window_copy.h"

namespace tessera {
namespace {

constexpr uint64_t kMaxOrdinal = uint64_t{1} << (64 - kPhaseBits);

// A message that says no other stream has that of transfers.
StreamId IoStreamOf(uint8_t stream) {
  return stream == NumberOf(StreamId::kIoLight) ? StreamId::kIoLight : StreamId::kIo;
}

Collectives* CollectivesOf(MessageTransport* messages) {
  return messages == nullptr ? nullptr : messages->collectives();
}

}  // namespace

Executor::Executor(WorkerIndex self, const SharedArena& own, Device& device, MessageTransport* messages, Report report,
                   int64_t max_chunk_bytes)
    : arenas_(self, own),
      device_(device),
      messages_(messages),
      templates_(self, messages == nullptr ? MessageLists::kOmit : MessageLists::kBuild, max_chunk_bytes,
                 CollectivesOf(messages) == nullptr ? CallLists::kOmit : CallLists::kBuild),
      phases_(arenas_, device, messages),
      calls_(arenas_, device, CollectivesOf(messages)),
      records_(RunRecords::Make(std::move(report))) {}

absl::Status Executor::AddMappedPeer(WorkerIndex peer, std::shared_ptr<const SharedArena> arena) {
  TESSERA_RETURN_IF_ERROR(arenas_.CheckPeer(peer));
  unreached_.erase(peer);
  RetireArena(peer);
  device_.MapCounters(peer, std::shared_ptr<CounterPage>(arena, arena->counters()));
  return arenas_.MapPeer(peer, std::move(arena));
}

// Enqueued items may touch it: every stream lets go of it behind its last item.
void Executor::RetireArena(WorkerIndex peer) {
  std::shared_ptr<const SharedArena> arena = arenas_.UnmapPeer(peer);
  if (arena == nullptr) return;
  const auto let_go_after = [this](StreamId stream, std::shared_ptr<const SharedArena> held) {
    device_.EnqueueAsync(stream, [held = std::move(held)](Device::Done done) { done(absl::OkStatus()); });
  };
  for (int stream = 1; stream < kStreamCount; ++stream) let_go_after(static_cast<StreamId>(stream), arena);
  let_go_after(StreamId::kCompute, std::move(arena));  // not the last one here: unmapping takes a while
}

absl::Status Executor::AddMessagePeer(WorkerIndex peer) {
  TESSERA_RETURN_IF_ERROR(arenas_.CheckPeer(peer));
  RetireArena(peer);
  device_.MapCounters(peer, nullptr);
  if (messages_ == nullptr) {
    return absl::FailedPreconditionError(
        StrCat("worker ", peer.value, ": worker ", arenas_.self().value, " has no message transport to reach it"));
  }
  unreached_.erase(peer);
  return absl::OkStatus();
}

void Executor::AddUnreachedPeer(WorkerIndex peer, const absl::Status& why) {
  if (arenas_.CheckPeer(peer).ok()) unreached_[peer] = std::string(why.message());
}

void Executor::MarkDead(WorkerIndex peer) {
  if (!arenas_.CheckPeer(peer).ok()) return;
  unreached_.erase(peer);
  device_.MarkDead(peer);
  phases_.MarkDead(peer);
  RetireArena(peer);
  if (messages_ != nullptr) messages_->MarkDead(peer);
}

void Executor::Define(TemplateId id, const absl::StatusOr<std::shared_ptr<const Plan>>& plan, int64_t read_ns) {
  if (!plan.ok()) return templates_.Refuse(id, plan.status());
  templates_.Define(id, **plan, read_ns).IgnoreError();
}
void Executor::Forget(TemplateId id) { templates_.Forget(id); }

absl::Status Executor::CheckOrdinal(StreamId stream, Ordinal ordinal) {
  Ordinal& last = last_ordinal_[static_cast<size_t>(stream)];
  if (ordinal <= last || ordinal.value >= kMaxOrdinal) {
    return absl::InvalidArgumentError(
        StrCat("worker ", arenas_.self().value, ": ordinal ", ordinal.value, " does not follow ", last.value));
  }
  last = ordinal;
  return absl::OkStatus();
}

absl::Status Executor::CheckReached(const std::vector<WorkerIndex>& workers) const {
  for (const auto& [peer, why] : unreached_) {
    if (!Contains(workers, peer)) continue;
    return absl::UnavailableError(
        StrCat("worker ", peer.value, ": worker ", arenas_.self().value, " can't reach it: ", why));
  }
  return absl::OkStatus();
}

absl::Status Executor::CheckReached(const std::vector<InstanceWait>& waits) const {
  if (unreached_.empty()) return absl::OkStatus();
  for (const InstanceWait& wait : waits) {
    if (wait.scope != WaitScope::kOwn) TESSERA_RETURN_IF_ERROR(CheckReached(wait.workers));
  }
  return absl::OkStatus();
}

absl::Status Executor::CheckReached(const Program& program) const {
  if (unreached_.empty()) return absl::OkStatus();
  for (const Phase& phase : program.phases) {
    for (const auto* peers : {&phase.peers.reads_from, &phase.peers.read_by, &phase.peers.pushes_to,
                              &phase.peers.pushed_by, &phase.overwrites.read_by}) {
      TESSERA_RETURN_IF_ERROR(CheckReached(*peers));
    }
  }
  return absl::OkStatus();
}

absl::Status Executor::CheckInstance(const Instance& instance, const ProgramTemplate& known) const {
  TESSERA_RETURN_IF_ERROR(CheckReached(instance.waits));
  TESSERA_RETURN_IF_ERROR(CheckReached(known.program));
  if (instance.buffer_offsets.size() != static_cast<size_t>(known.buffer_count) ||
      instance.scalars.size() != static_cast<size_t>(known.scalar_count)) {
    return absl::InvalidArgumentError(StrCat("ordinal ", instance.ordinal.value, ": ", instance.buffer_offsets.size(),
                                             " buffers and ", instance.scalars.size(), " scalars; the plan has ",
                                             known.buffer_count, " and ", known.scalar_count));
  }
  for (const TouchedRange& range : known.ranges) {
    if (range.worker != arenas_.self() && !arenas_.IsMapped(range.worker)) continue;
    const int64_t base = instance.OffsetOf(range.parameter, range.worker);
    int64_t first = 0;
    if (__builtin_add_overflow(base, range.first, &first) ||
        !arenas_.Contains(range.worker, first, range.last - range.first)) {
      return absl::InvalidArgumentError(StrCat("ordinal ", instance.ordinal.value, ": buffer ", range.parameter, " at ",
                                               base, " lies outside the arena of worker ", range.worker.value));
    }
  }
  return absl::OkStatus();
}

void Executor::EnqueueWaitOn(StreamId stream, const CounterWait& wait) {
  if (wait.worker == arenas_.self() && wait.stream == stream) return;  // stream order
  if (std::find(phase_waits_.begin(), phase_waits_.end(), wait) != phase_waits_.end()) return;
  phase_waits_.push_back(wait);
  device_.EnqueueWait(stream, wait);
}

bool Executor::IsAnyMapped(const std::vector<WorkerIndex>& workers) const {
  return std::any_of(workers.begin(), workers.end(), [this](WorkerIndex w) { return arenas_.IsMapped(w); });
}

void Executor::EnqueueOwnWaits(StreamId stream, Ordinal ordinal, const std::vector<InstanceWait>& waits,
                               int phase_number) {
  const WorkerIndex self = arenas_.self();
  phase_waits_.clear();
  for (const InstanceWait& wait : waits) {
    if (wait.stream >= kStreamCount || wait.ordinal >= ordinal) continue;  // no wait points forwards
    if (phase_number != kAllPhases && wait.phase != phase_number) continue;
    const StreamId other = static_cast<StreamId>(wait.stream);
    const uint64_t value = DoneValue(wait.ordinal);
    if (wait.scope == WaitScope::kOwn && (wait.workers.empty() || Contains(wait.workers, self))) {
      EnqueueWaitOn(stream, {self, other, value});
    }
    if (wait.scope != WaitScope::kWorkers) continue;
    for (WorkerIndex peer : wait.workers) {
      if (peer == self || arenas_.IsMapped(peer)) {
        EnqueueWaitOn(stream, {peer, other, value});
      } else if (Contains(wait.workers, self)) {
        // It read this worker's memory through a message that this worker packed.
        EnqueueWaitOn(stream, {self, other, value});
      }
    }
  }
}

void Executor::EnqueuePeerWaits(StreamId stream, Ordinal ordinal, const std::vector<InstanceWait>& waits,
                                int phase_number, const Phase& phase) {
  const auto wait_on = [&](const std::vector<WorkerIndex>& peers, StreamId other, uint64_t value) {
    for (WorkerIndex peer : peers) {
      if (arenas_.IsMapped(peer)) EnqueueWaitOn(stream, {peer, other, value});
    }
  };
  for (const InstanceWait& wait : waits) {
    if (wait.stream >= kStreamCount || wait.ordinal >= ordinal || wait.scope != WaitScope::kReadsFrom) continue;
    // From its phase on, for every phase that reads what was there before the program.
    if (wait.phase != phase_number && (wait.phase > phase_number || phase.peers.phase != 0)) continue;
    for (WorkerIndex peer : phase.peers.reads_from) {
      const bool wrote = wait.workers.empty() || Contains(wait.workers, peer);
      if (wrote && arenas_.IsMapped(peer)) {
        EnqueueWaitOn(stream, {peer, static_cast<StreamId>(wait.stream), DoneValue(wait.ordinal)});
      }
    }
  }
  if (phase.peers.phase > 0) {
    wait_on(phase.peers.reads_from, stream, CounterValue(ordinal, static_cast<uint64_t>(phase.peers.phase)));
  }
  if (phase.overwrites.phase > 0) {
    wait_on(phase.overwrites.read_by, stream, CounterValue(ordinal, static_cast<uint64_t>(phase.overwrites.phase)));
  }
}

void Executor::EnqueueWaitsToPush(StreamId stream, Ordinal ordinal, int phase_number, const Phase& phase) {
  for (WorkerIndex peer : phase.peers.pushes_to) {
    if (!arenas_.IsMapped(peer)) continue;
    EnqueueWaitOn(stream, {peer, stream, CounterValue(ordinal, static_cast<uint64_t>(phase_number - 1))});
  }
}

void Executor::EnqueueEnd(StreamId stream, RunRecordRef record) {
  device_.EnqueueSignal(stream, DoneValue(record->report.ordinal));
  device_.EnqueueReport(stream, [record = std::move(record)](absl::Status status, const RunTimes& times) {
    record->report.times = times;
    record->End(std::move(status));
  });
}

void Executor::Run(const Instance& instance) {
  RunRecordRef record = records_->Take(instance.ordinal);
  StreamId stream = static_cast<StreamId>(instance.stream);
  if (instance.stream >= kStreamCount) {
    record->failure =
        absl::InvalidArgumentError(StrCat("ordinal ", instance.ordinal.value, ": stream ", instance.stream));
    stream = StreamId::kCompute;
  } else {
    record->failure = CheckOrdinal(stream, instance.ordinal);
  }
  if (record->failure.ok()) {
    auto known = templates_.Find(instance.plan);
    record->failure = known.status();
    record->report.prepared_ns = templates_.TakePreparedNs(instance.plan);
    if (known.ok()) {
      record->known = *std::move(known);
      record->failure = record->known->status;
      if (record->failure.ok()) record->failure = CheckInstance(instance, *record->known);
      if (record->failure.ok()) record->failure = phases_.Begin(*record->known, *record);
      if (!record->failure.ok()) RefusePhases(instance, record);
    }
  }
  if (record->failure.ok()) {
    EnqueuePhases(stream, instance, record);
  } else {
    // Its counters say that peers may write here: not before it is so.
    EnqueueOwnWaits(stream, instance.ordinal, instance.waits, kAllPhases);
  }
  EnqueueEnd(stream, std::move(record));
}

void Executor::EnqueuePhases(StreamId stream, const Instance& instance, const RunRecordRef& record) {
  const ProgramTemplate& known = *record->known;
  for (WorkerIndex peer : known.peers) record->report.received_bytes.emplace_back(peer, 0);
  for (WorkerIndex peer : known.pushed_peers) record->report.pushed_bytes.emplace_back(peer, 0);
  record->kernel_inputs.reserve(known.kernel_input_count);
  record->kernel_counts.reserve(known.kernel_input_count);
  record->merge_outputs.reserve(known.merge_count);
  record->taken_elements.reserve(known.merge_count == 0 ? 0 : known.kernel_input_count);
  record->kernel_scalars.reserve(known.kernel_scalar_count);
  record->terms.reserve(known.term_count);
  record->term_counts.reserve(known.term_count);
  record->destinations.reserve(known.destination_count);
  record->push_counts.reserve(known.destination_count);
  const std::vector<Phase>& phases = known.program.phases;
  for (size_t p = 0; p < phases.size(); ++p) {
    const int number = static_cast<int>(p) + 1;
    EnqueueOwnWaits(stream, instance.ordinal, instance.waits, number);
    // Peers may write here from now on. Before any wait for them, so that nobody waits in a circle.
    const bool may_push_at_once = p == 0 && instance.writes_are_free;
    if (!may_push_at_once && IsAnyMapped(phases[p].peers.pushed_by)) {
      device_.EnqueueSignal(stream, CounterValue(instance.ordinal, p));
    }
    EnqueuePeerWaits(stream, instance.ordinal, instance.waits, number, phases[p]);
    if (!may_push_at_once) EnqueueWaitsToPush(stream, instance.ordinal, number, phases[p]);
    if (calls_.Has(instance, known, number)) {
      calls_.Enqueue(instance, number, record);
    } else if (absl::Status s = phases_.Enqueue(instance, phases[p], number, record); !s.ok() && record->failure.ok()) {
      record->failure = std::move(s);
    }
    // A phase before one that is pushed to is published with that one's readiness, not earlier.
    const bool is_later = p + 1 < phases.size() && IsAnyMapped(phases[p + 1].peers.pushed_by);
    if (known.publishes[p] != 0 && !is_later) {
      device_.EnqueueSignal(stream, CounterValue(instance.ordinal, static_cast<uint64_t>(number)));
    }
  }
}

void Executor::RefusePhases(const Instance& instance, const RunRecordRef& record) {
  const std::vector<Phase>& phases = record->known->program.phases;
  for (size_t p = 0; p < phases.size(); ++p) {
    const int number = static_cast<int>(p) + 1;
    if (calls_.Has(instance, *record->known, number)) {
      calls_.Refuse(instance, number, record);
    } else {
      phases_.EnqueueRefusal(instance, phases[p], number, record);
    }
  }
}

void Executor::OpenWindow(const TransferWindow& window) {
  const StreamId io = IoStreamOf(window.stream);
  RunRecordRef record = records_->Take(window.ordinal);
  record->failure = CheckOrdinal(io, window.ordinal);
  for (const TransferRange& range : window.ranges) {
    if (!record->failure.ok()) break;
    record->failure =
        CheckShard(range.spec, range.strides, range.offset_bytes, arenas_.self(), arenas_.own().bytes()).status();
  }
  if (record->failure.ok()) record->failure = CheckReached(window.waits);
  if (record->failure.ok()) EnqueueOwnWaits(io, window.ordinal, window.waits, 1);
  EnqueueEnd(io, std::move(record));
}

void Executor::ReadInline(const InlineRead& read) {
  const StreamId stream = read.stream == NumberOf(StreamId::kProbe) ? StreamId::kProbe : IoStreamOf(read.stream);
  RunRecordRef record = records_->Take(read.ordinal);
  record->failure = CheckOrdinal(stream, read.ordinal);
  if (record->failure.ok()) record->failure = CheckReached(read.waits);
  if (record->failure.ok()) {
    absl::StatusOr<Box> box =
        CheckShard(read.spec, read.strides, read.offset_bytes, arenas_.self(), arenas_.own().bytes());
    record->failure = box.status();
    const int64_t bytes = box.ok() ? NumElements(*box) * SizeBytes(read.spec.dtype) : 0;
    if (bytes > kMaxInlineBytes) {
      record->failure = absl::InvalidArgumentError(StrCat(
          "ordinal ", read.ordinal.value, ": ", bytes, " bytes are more than an inline value has (max_inline_bytes)"));
    }
    if (record->failure.ok()) {
      const Shape extents = BoxShape(*box);
      record->report.inline_bytes.resize(static_cast<size_t>(bytes));
      EnqueueOwnWaits(stream, read.ordinal, read.waits, 1);
      device_.EnqueueRead(stream, CopyWork{.extents = extents,
                                           .element_bytes = SizeBytes(read.spec.dtype),
                                           .source = arenas_.own().memory() + read.offset_bytes,
                                           .source_strides = read.strides,
                                           .destination = record->report.inline_bytes.data(),
                                           .destination_strides = RowMajorStrides(extents)});
    }
  }
  EnqueueEnd(stream, std::move(record));
}

absl::StatusOr<CopyWork> Executor::CopyOfInline(const InlineWrite& write, RunRecord& record) {
  TESSERA_RETURN_IF_ERROR(CheckOrdinal(IoStreamOf(write.stream), write.ordinal));
  TESSERA_RETURN_IF_ERROR(CheckReached(write.waits));
  TESSERA_ASSIGN_OR_RETURN(
      const Box box, CheckShard(write.spec, write.strides, write.offset_bytes, arenas_.self(), arenas_.own().bytes()));
  const int64_t element_bytes = SizeBytes(write.spec.dtype), bytes = static_cast<int64_t>(write.bytes.size());
  if (bytes > kMaxInlineBytes || bytes != NumElements(write.spec.shape) * element_bytes) {
    return absl::InvalidArgumentError(StrCat("ordinal ", write.ordinal.value, ": ", bytes, " bytes for ",
                                             ToText(write.spec), "; max_inline_bytes is ", kMaxInlineBytes));
  }
  // Items may point at staging memory, a GPU's too.
  TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<std::byte> brought, device_.MakeStaging(bytes, StagingPlace::kHost));
  std::memcpy(brought.get(), write.bytes.data(), write.bytes.size());
  const Strides strides = RowMajorStrides(write.spec.shape);
  const std::byte* first = brought.get();
  for (size_t d = 0; d < box.size(); ++d) first += box[d].start * strides[d] * element_bytes;
  record.staging.push_back(std::make_shared<StagingMemory>(StagingMemory{std::move(brought), bytes}));
  return CopyWork{.extents = BoxShape(box),
                  .element_bytes = element_bytes,
                  .source = first,
                  .source_strides = strides,
                  .destination = arenas_.own().memory() + write.offset_bytes,
                  .destination_strides = write.strides,
                  .received_bytes = &record.report.written_bytes};
}

void Executor::WriteInline(const InlineWrite& write) {
  const StreamId io = IoStreamOf(write.stream);
  RunRecordRef record = records_->Take(write.ordinal);
  absl::StatusOr<CopyWork> copy = CopyOfInline(write, *record);
  record->failure = copy.status();
  EnqueueOwnWaits(io, write.ordinal, write.waits, 1);
  if (copy.ok() && NumElements(copy->extents) > 0) device_.EnqueueRun(io, *std::move(copy));
  EnqueueEnd(io, std::move(record));
}

}  // namespace tessera
