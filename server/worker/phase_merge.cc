// A phase whose messages bring ranges of runs: samples first, then what the ranges that they give have
// (merge_messages.h).

#include <algorithm>
#include <optional>
#include <utility>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/worker/merge_messages.h"
#include "server/worker/phase_enqueuer.h"

namespace tessera {
namespace {

// The chunks of a message that have the samples, of so many bytes.
size_t SampleChunks(const std::vector<MessageChunk>& chunks, int64_t bytes) {
  size_t count = 0;
  for (int64_t found = 0; found < bytes && count < chunks.size(); ++count) found += chunks[count].bytes;
  return count;
}

std::optional<size_t> RunOf(const KernelInstruction& kernel, WorkerIndex holder) {
  for (size_t run = 0; run < std::get<MergeOp>(kernel.op).runs.size(); ++run) {
    if (kernel.inputs[run].worker == holder) return run;
  }
  return std::nullopt;
}

}  // namespace

absl::Status PhaseEnqueuer::AddMergeTransfers(const Here& here, const KernelInstruction& kernel, MergePhase& merge) {
  const int64_t step = here.phase.ranged_merge()->step;
  const auto runs = static_cast<int64_t>(std::get<MergeOp>(kernel.op).runs.size());
  const auto sample_bytes = [&](size_t run) {
    return SampleCount(kernel.input_extents[run][0], step) * SizeBytes(kernel.input_dtypes[0]);
  };
  const auto run_of = [&](WorkerIndex peer) -> absl::StatusOr<size_t> {
    const std::optional<size_t> run = RunOf(kernel, peer);
    if (run.has_value()) return *run;
    return absl::InternalError(StrCat("worker ", arenas_.self().value, ": merges no run of worker ", peer.value));
  };
  TESSERA_ASSIGN_OR_RETURN(const size_t own_run, run_of(arenas_.self()));
  int64_t total = 0;
  const auto reserve = [&total](int64_t bytes) { return std::exchange(total, total + AlignInMessage(bytes)); };
  std::vector<int64_t> sample_places;
  for (const Active& active : outgoing_) {
    TESSERA_RETURN_IF_ERROR(run_of(here.phase.messages.outgoing[active.number].to).status());
    sample_places.push_back(reserve(sample_bytes(own_run)));
  }
  for (const Active& active : incoming_) {
    TESSERA_ASSIGN_OR_RETURN(const size_t run, run_of(here.phase.messages.incoming[active.number].from));
    sample_places.push_back(reserve(sample_bytes(run)));
  }
  const int64_t memory_bytes = MergeMessages::MemoryBytes(kernel, step);
  const int64_t memory_at = reserve(memory_bytes), ranges_at = reserve(2 * runs * SizeBytes(DType::kI64));
  TESSERA_ASSIGN_OR_RETURN(std::byte* const staged,
                           staging_.Reserve(StagingPlace::kHost, here.stream, total, *here.record));
  merge.ranges = reinterpret_cast<int64_t*>(staged + ranges_at);
  merge.messages = std::make_shared<MergeMessages>(
      kernel, step, MergeMessages::Memory{staged + memory_at, memory_bytes, merge.ranges}, *here.messages);

  auto place = sample_places.begin();
  for (Active& active : outgoing_) {
    const OutgoingMessage& message = here.phase.messages.outgoing[active.number];
    active.first_transfer = here.messages->size();
    active.first_chunks = SampleChunks(message.chunks, sample_bytes(own_run));
    const bool is_direct = active.IsDirect(message.chunks[0]);
    std::byte* const samples = is_direct ? AddressOf(message.parts[0].sources[0], here.instance) : staged + *place;
    for (size_t c = 0; c < message.chunks.size(); ++c) {
      here.messages->Add({.direction = PhaseMessages::Direction::kSend,
                          .peer = message.to,
                          .chunk = static_cast<uint32_t>(c),
                          .data = c < active.first_chunks ? samples + message.chunks[c].at : staged,
                          .bytes = message.chunks[c].bytes});
    }
    for (size_t p = 1; p < message.parts.size(); ++p) {
      const ChunkRange& range = message.parts[p].place;
      merge.messages->Add(
          MergeMessages::Moved{.run = own_run,
                               .part = *RunOf(kernel, message.to),
                               .first_transfer = active.first_transfer + static_cast<size_t>(range.first),
                               .transfers = static_cast<size_t>(range.last - range.first) + 1,
                               .element_bytes = SizeBytes(message.parts[p].dtype),
                               .data = AddressOf(message.parts[p].sources[0], here.instance)});
    }
    ++place;
  }
  for (Active& active : incoming_) {
    const IncomingMessage& message = here.phase.messages.incoming[active.number];
    active.first_transfer = here.messages->size();
    active.first_chunks = SampleChunks(message.chunks, sample_bytes(*RunOf(kernel, message.from)));
    int64_t* const count = CountOf(message.from, here.record->report.received_bytes);
    for (size_t c = 0; c < message.chunks.size(); ++c) {
      here.messages->Add({.direction = PhaseMessages::Direction::kReceive,
                          .peer = message.from,
                          .chunk = static_cast<uint32_t>(c),
                          .data = c < active.first_chunks ? staged + *place + message.chunks[c].at : staged + memory_at,
                          .bytes = message.chunks[c].bytes,
                          .received_bytes = count});
    }
    ++place;
  }
  awaited_.assign(here.messages->size(), 0);
  return absl::OkStatus();
}

// Adds the runs of the kernel whose inputs are the record's from `inputs` on.
void PhaseEnqueuer::AddRuns(const Here& here, const InstructionPiece& piece, KernelInput* inputs,
                            MergeMessages& merge) const {
  const auto& kernel = std::get<KernelInstruction>(piece.work);
  const size_t runs = std::get<MergeOp>(kernel.op).runs.size();
  for (size_t run = 0; run < runs; ++run) {
    MergeMessages::Samples samples{.data = static_cast<const std::byte*>(inputs[run].data),
                                   .stride = here.phase.ranged_merge()->step * kernel.inputs[run].strides[0]};
    for (const Active& active : incoming_) {
      if (here.phase.messages.incoming[active.number].from != kernel.inputs[run].worker) continue;
      samples = {.data = here.messages->at(active.first_transfer).data,
                 .stride = 1,
                 .first_transfer = active.first_transfer,
                 .transfers = active.first_chunks};
    }
    const bool is_mapped = samples.transfers == 0;
    if (is_mapped) samples.received_bytes = CountOf(kernel.inputs[run].worker, here.record->report.received_bytes);
    merge.Add(samples);
  }
  const size_t own_run = *RunOf(kernel, arenas_.self());
  for (const StagedOperand& operand : piece.operands) {
    if (!IsActive(operand)) continue;
    const auto input = static_cast<size_t>(operand.term);
    merge.Add(MergeMessages::Moved{.run = input % runs,
                                   .part = own_run,
                                   .first_transfer = TransferOf(operand, operand.place.first),
                                   .transfers = static_cast<size_t>(operand.place.last - operand.place.first) + 1,
                                   .element_bytes = SizeBytes(kernel.input_dtypes[input]),
                                   .input = inputs + input});
  }
}

void PhaseEnqueuer::EnqueueMerge(const Here& here, const MergePhase& merge) {
  const auto start = [&](const Active& active, size_t first, size_t last) {
    for (size_t c = first; c < last; ++c) EnqueueStart(here, active.first_transfer + c);
  };
  for (const Active& active : incoming_) start(active, 0, active.first_chunks);
  for (const Active& active : outgoing_) {
    const OutgoingMessage& message = here.phase.messages.outgoing[active.number];
    if (!active.IsDirect(message.chunks[0])) {
      EnqueuePart(here, message.parts[0], here.messages->at(active.first_transfer).data);
    }
    start(active, 0, active.first_chunks);
  }
  for (const Active& active : incoming_) {
    for (size_t c = 0; c < active.first_chunks; ++c) EnqueueAwait(here, active.first_transfer + c);
  }
  // Its inputs are written as the ranges are chosen: they must be there before.
  const InstructionPiece* const piece = here.phase.messages.pieces.empty() ? nullptr : &here.phase.messages.pieces[0];
  const size_t first_input = here.record->kernel_inputs.size();
  KernelWork work = MakeKernel(here, std::get<KernelInstruction>(here.phase.instructions[0]), piece, merge.ranges);
  if (piece != nullptr) AddRuns(here, *piece, here.record->kernel_inputs.data() + first_input, *merge.messages);
  device_.EnqueueAsync(here.stream,
                       [chosen = merge.messages, record = here.record](Device::Done done) { done(chosen->Choose()); });
  for (const Active& active : incoming_) start(active, active.first_chunks, active.chunk_count);
  for (const Active& active : outgoing_) start(active, active.first_chunks, active.chunk_count);
  for (const Active& active : incoming_) {
    for (size_t c = active.first_chunks; c < active.chunk_count; ++c) EnqueueAwait(here, active.first_transfer + c);
  }
  device_.EnqueueRun(here.stream, std::move(work));
  for (size_t transfer = 0; transfer < awaited_.size(); ++transfer) EnqueueAwait(here, transfer);
}

}  // namespace tessera
