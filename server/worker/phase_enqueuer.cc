#include "server/worker/phase_enqueuer.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <variant>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

MessageTag TagOf(const Instance& instance, int phase_number) {
  return {.ordinal = instance.ordinal.value, .phase = static_cast<uint32_t>(phase_number)};
}

bool IsKernel(const Instruction& instruction) { return std::holds_alternative<KernelInstruction>(instruction); }

// Whether a mapped peer has written it here.
bool IsPushed(const Phase& phase, const Instruction& whole) { return phase.is_pushed() && !IsKernel(whole); }

}  // namespace

const PhaseEnqueuer::Transit* PhaseEnqueuer::TransitAt(const Operand& operand) const {
  if (transit_.empty()) return nullptr;
  const Transit& transit = transit_[static_cast<size_t>(operand.parameter)];
  return transit.passes_on ? &transit : nullptr;
}

std::byte* PhaseEnqueuer::AddressOf(const Operand& operand, const Instance& instance) const {
  if (const Transit* transit = TransitAt(operand); transit != nullptr) return transit->data + operand.offset_bytes;
  return arenas_.MemoryOf(operand.worker) + instance.OffsetOf(operand.parameter, operand.worker) + operand.offset_bytes;
}

PhaseEnqueuer::Staged PhaseEnqueuer::StagedTerm(const Here& here, const InstructionPiece* piece, size_t term) const {
  if (piece == nullptr) return {};
  for (const StagedOperand& operand : piece->operands) {
    if (static_cast<size_t>(operand.term) != term || !IsActive(operand)) continue;
    return {here.messages->at(TransferOf(operand, operand.place.first)).data + operand.place.offset, &operand.strides};
  }
  return {};
}

int64_t* PhaseEnqueuer::CountOf(WorkerIndex worker, std::vector<std::pair<WorkerIndex, int64_t>>& counts) const {
  if (worker == arenas_.self()) return nullptr;
  for (auto& [peer, bytes] : counts) {
    if (peer == worker) return &bytes;
  }
  return nullptr;
}

// ---- which messages, which pieces, how much of them at once

absl::Status PhaseEnqueuer::CheckReach(const Phase& phase) const {
  const auto unavailable = [this](WorkerIndex peer, std::string_view why) {
    return absl::UnavailableError(StrCat("worker ", peer.value, ": its memory is ", why, arenas_.self().value));
  };
  size_t next = 0;  // of the messages, which are sorted as the peers are
  for (const WorkerIndex peer : phase.peers.reads_from) {
    while (next < phase.messages.incoming.size() && phase.messages.incoming[next].from < peer) ++next;
    const bool has_message = next < phase.messages.incoming.size() && phase.messages.incoming[next].from == peer;
    if (arenas_.IsMapped(peer)) {
      if (std::binary_search(phase.peers.sums_from.begin(), phase.peers.sums_from.end(), peer)) {
        return unavailable(peer, "mapped, and the plan has it on another host than worker ");
      }
    } else if (messages_ == nullptr) {
      return unavailable(peer, "not mapped, and there is no message transport, for worker ");
    } else if (!has_message) {
      return unavailable(peer, "not mapped, and the plan has it on one host with worker ");
    }
  }
  return absl::OkStatus();
}

PhaseEnqueuer::Active PhaseEnqueuer::MakeActive(size_t number, WorkerIndex peer, size_t chunk_count) const {
  const bool takes_device = messages_->TakesDeviceMemory(peer);
  const bool is_staged_there = takes_device && !device_.IsHostMemory();
  return {.number = number,
          .chunk_count = chunk_count,
          .place = is_staged_there ? StagingPlace::kDevice : StagingPlace::kHost,
          .takes_direct = takes_device || device_.IsHostMemory()};
}

void PhaseEnqueuer::FindMessages(const Phase& phase) {
  outgoing_.clear();
  incoming_.clear();
  active_of_incoming_.assign(phase.messages.incoming.size(), -1);
  if (messages_ == nullptr) return;
  for (size_t m = 0; m < phase.messages.outgoing.size(); ++m) {
    const OutgoingMessage& message = phase.messages.outgoing[m];
    if (message.bytes == 0 || arenas_.IsMapped(message.to)) continue;
    outgoing_.push_back(MakeActive(m, message.to, message.chunks.size()));
  }
  for (size_t m = 0; m < phase.messages.incoming.size(); ++m) {
    const IncomingMessage& message = phase.messages.incoming[m];
    if (message.bytes == 0 || arenas_.IsMapped(message.from)) continue;
    active_of_incoming_[m] = static_cast<int>(incoming_.size());
    incoming_.push_back(MakeActive(m, message.from, message.chunks.size()));
  }
}

void PhaseEnqueuer::ListRuns(const Phase& phase) {
  runs_.clear();
  const auto waits = [this](const InstructionPiece& piece) {
    return std::any_of(piece.operands.begin(), piece.operands.end(),
                       [this](const StagedOperand& operand) { return IsActive(operand); });
  };
  const bool products_wait =
      std::any_of(phase.messages.pieces.begin(), phase.messages.pieces.end(),
                  [&](const InstructionPiece& piece) { return IsKernel(piece.work) && waits(piece); });
  size_t piece = 0;
  for (size_t i = 0; i < phase.instructions.size(); ++i) {
    const size_t first = piece;
    while (piece < phase.messages.pieces.size() && static_cast<size_t>(phase.messages.pieces[piece].instruction) == i)
      ++piece;
    if (first < piece && (products_wait || waits(phase.messages.pieces[first]))) {
      ListPieces(phase, first, piece);
    } else if (!IsPushed(phase, phase.instructions[i])) {
      runs_.push_back({kNoMessage, i, nullptr});
    }
  }
  if (products_wait) OrderProducts();
  // Runs that wait for no message come first.
  const auto order = [](const Run& a, const Run& b) {
    return std::tie(a.step, a.instruction, a.piece) < std::tie(b.step, b.instruction, b.piece);
  };
  if (!std::is_sorted(runs_.begin(), runs_.end(), order)) std::sort(runs_.begin(), runs_.end(), order);
  if (!products_wait) return;
  // Products take long: all messages are under way before the first one.
  for (Run& run : runs_) run.step = 0;
}

// A product waits for its own chunks, and for those before it in its region.
void PhaseEnqueuer::OrderProducts() {
  std::vector<int64_t> steps;  // by region
  for (Run& run : runs_) {
    const size_t region = run.piece == nullptr ? 0 : static_cast<size_t>(run.piece->region);
    if (steps.size() <= region) steps.resize(region + 1, kNoMessage);
    steps[region] = std::max(steps[region], run.step);
    run.step = steps[region];
  }
}

// The pieces of one instruction.
void PhaseEnqueuer::ListPieces(const Phase& phase, size_t first, size_t end) {
  for (size_t p = first; p < end; ++p) {
    const InstructionPiece& piece = phase.messages.pieces[p];
    int64_t step = kNoMessage;
    bool is_direct = false;
    for (const StagedOperand& operand : piece.operands) {
      if (!IsActive(operand)) continue;
      step = std::max<int64_t>(step, operand.place.last);
      const Active& active = ActiveOf(operand);
      const MessageChunk& chunk =
          phase.messages.incoming[active.number].chunks[static_cast<size_t>(operand.place.first)];
      is_direct |= active.IsDirect(chunk) && chunk.direct == static_cast<int>(p);
    }
    if (!is_direct) runs_.push_back({step, static_cast<size_t>(piece.instruction), &piece});
  }
}

// ---- memory

absl::Status PhaseEnqueuer::Begin(const ProgramTemplate& known, RunRecord& record) {
  transit_.clear();
  if (known.transit.empty()) return absl::OkStatus();
  transit_.resize(static_cast<size_t>(known.buffer_count));
  for (const TransitUse& use : known.transit) {
    Transit& transit = transit_[static_cast<size_t>(use.buffer.parameter)];
    transit.passes_on = true;
    if (messages_ == nullptr) continue;
    bool is_sent = false, is_host = device_.IsHostMemory();
    for (const WorkerIndex to : use.takers) {
      if (arenas_.IsMapped(to)) continue;
      is_sent = true;
      is_host = is_host || !messages_->TakesDeviceMemory(to);
    }
    if (!is_sent) continue;
    TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<StagingMemory> memory,
                             staging_.New(is_host ? StagingPlace::kHost : StagingPlace::kDevice, use.buffer.bytes));
    transit.data = memory->bytes.get();
    record.staging.push_back(std::move(memory));
  }
  return absl::OkStatus();
}

PhaseEnqueuer::Ring PhaseEnqueuer::PlaceRing(const Active& active, const std::vector<MessageChunk>& chunks,
                                             int64_t memory_bytes, int64_t window, std::array<int64_t, 2>& totals) {
  int64_t& total = totals[static_cast<size_t>(active.place)];
  Ring ring{total, window, 0};
  int64_t largest = 0;
  for (const MessageChunk& chunk : chunks) {
    if (!active.IsDirect(chunk)) largest = std::max(largest, AlignInMessage(chunk.bytes));
  }
  const int64_t count = static_cast<int64_t>(chunks.size());
  if (window < count) ring.slot_bytes = largest;
  if (largest > 0) total += window < count ? window * largest : AlignInMessage(memory_bytes);
  return ring;
}

int64_t PhaseEnqueuer::At(const Ring& ring, const MessageChunk& chunk, size_t number) {
  if (ring.slot_bytes == 0) return ring.base + chunk.at;
  return ring.base + static_cast<int64_t>(number) % ring.window * ring.slot_bytes;
}

absl::Status PhaseEnqueuer::AddTransfers(const Here& here) {
  std::array<int64_t, 2> totals = {};
  rings_.clear();
  for (const Active& active : outgoing_) {
    const OutgoingMessage& message = here.phase.messages.outgoing[active.number];
    rings_.push_back(PlaceRing(active, message.chunks, message.memory_bytes, here.windows.send, totals));
  }
  for (const Active& active : incoming_) {
    const IncomingMessage& message = here.phase.messages.incoming[active.number];
    rings_.push_back(PlaceRing(active, message.chunks, message.memory_bytes, here.windows.receive, totals));
  }
  std::array<std::byte*, 2> staged = {};
  for (const StagingPlace place : {StagingPlace::kHost, StagingPlace::kDevice}) {
    const size_t p = static_cast<size_t>(place);
    if (totals[p] == 0) continue;
    TESSERA_ASSIGN_OR_RETURN(staged[p], staging_.Reserve(place, here.stream, totals[p], *here.record));
  }
  auto ring = rings_.begin();
  // Where a chunk lies: in staging memory, or in the shard that the first chunk of its part or piece begins at.
  const auto data_of = [&](const Active& active, size_t number, const MessageChunk& chunk, const Operand* shard,
                           int64_t first_at) {
    return shard == nullptr ? staged[static_cast<size_t>(active.place)] + At(*ring, chunk, number)
                            : AddressOf(*shard, here.instance) + (chunk.at - first_at);
  };
  for (Active& active : outgoing_) {
    const OutgoingMessage& message = here.phase.messages.outgoing[active.number];
    active.first_transfer = here.messages->size();
    for (size_t c = 0; c < message.chunks.size(); ++c) {
      const MessageChunk& chunk = message.chunks[c];
      const MessagePart* part = active.IsDirect(chunk) ? &message.parts[static_cast<size_t>(chunk.direct)] : nullptr;
      const int64_t first_at = part == nullptr ? 0 : message.chunks[static_cast<size_t>(part->place.first)].at;
      std::byte* const data = data_of(active, c, chunk, part == nullptr ? nullptr : &part->sources[0], first_at);
      here.messages->Add({.direction = PhaseMessages::Direction::kSend,
                          .peer = message.to,
                          .chunk = static_cast<uint32_t>(c),
                          .data = data,
                          .bytes = chunk.bytes});
    }
    ++ring;
  }
  for (Active& active : incoming_) {
    const IncomingMessage& message = here.phase.messages.incoming[active.number];
    active.first_transfer = here.messages->size();
    int64_t* const count = CountOf(message.from, here.record->report.received_bytes);
    for (size_t c = 0; c < message.chunks.size(); ++c) {
      const MessageChunk& chunk = message.chunks[c];
      const InstructionPiece* piece =
          active.IsDirect(chunk) ? &here.phase.messages.pieces[static_cast<size_t>(chunk.direct)] : nullptr;
      const int first = piece == nullptr ? 0 : piece->operands[0].place.first;
      const Operand* shard = piece == nullptr ? nullptr : &std::get<CopyInstruction>(piece->work).destination;
      here.messages->Add({.direction = PhaseMessages::Direction::kReceive,
                          .peer = message.from,
                          .chunk = static_cast<uint32_t>(c),
                          .data = data_of(active, c, chunk, shard, message.chunks[static_cast<size_t>(first)].at),
                          .bytes = chunk.bytes,
                          .received_bytes = count});
    }
    ++ring;
  }
  awaited_.assign(here.messages->size(), 0);
  return absl::OkStatus();
}

// ---- items

// The stream goes on at once.
void PhaseEnqueuer::EnqueueStart(const Here& here, size_t transfer) {
  PhaseMessages::Transfer* const started = &here.messages->at(transfer);
  device_.EnqueueAsync(here.stream, [started, record = here.record](Device::Done done) {
    PhaseMessages::Start(*started, record);
    done(absl::OkStatus());
  });
}

void PhaseEnqueuer::EnqueueAwait(const Here& here, size_t transfer) {
  if (awaited_[transfer] != 0) return;
  awaited_[transfer] = 1;
  PhaseMessages::Transfer* const awaited = &here.messages->at(transfer);
  device_.EnqueueAsync(here.stream, [awaited, record = here.record](Device::Done done) {
    PhaseMessages::Await(*awaited, std::move(done));
  });
}

void PhaseEnqueuer::EnqueueReceives(const Here& here, size_t chunk) {
  for (const Active& active : incoming_) {
    if (chunk < active.chunk_count) EnqueueStart(here, active.first_transfer + chunk);
  }
}

void PhaseEnqueuer::EnqueuePart(const Here& here, const MessagePart& part, std::byte* destination) {
  if (part.sources.size() > 1 || part.source_dtype != part.dtype) return EnqueueSum(here, part, destination);
  device_.EnqueueRun(here.stream, CopyWork{.extents = part.extents,
                                           .element_bytes = SizeBytes(part.dtype),
                                           .source = AddressOf(part.sources[0], here.instance),
                                           .source_strides = part.sources[0].strides,
                                           .destination = destination,
                                           .destination_strides = RowMajorStrides(part.extents)});
}

void PhaseEnqueuer::EnqueueSum(const Here& here, const MessagePart& part, std::byte* destination) {
  RunRecord& record = *here.record;
  const size_t first = record.terms.size(), first_destination = record.destinations.size();
  for (const Operand& source : part.sources) {
    record.terms.push_back({AddressOf(source, here.instance), source.strides});
    record.term_counts.push_back(CountOf(source.worker, record.report.received_bytes));
  }
  record.destinations.push_back({destination, RowMajorStrides(part.extents)});
  record.push_counts.push_back(nullptr);
  EnqueueReduction(here,
                   {.op = part.op == ReduceOp::kAvg ? ReduceOp::kSum : part.op,
                    .dtype = part.source_dtype,
                    .destination_dtype = part.dtype,
                    .extents = part.extents,
                    .term_count = static_cast<int64_t>(part.sources.size())},
                   first, first_destination);
}

void PhaseEnqueuer::EnqueueReduction(const Here& here, ReduceWork work, size_t first_term, size_t first_destination) {
  const RunRecord& record = *here.record;
  work.terms = absl::MakeConstSpan(record.terms).subspan(first_term);
  work.destinations = absl::MakeConstSpan(record.destinations).subspan(first_destination);
  work.received_bytes = absl::MakeConstSpan(record.term_counts).subspan(first_term);
  work.pushed_bytes = absl::MakeConstSpan(record.push_counts).subspan(first_destination);
  device_.EnqueueRun(here.stream, std::move(work));
}

void PhaseEnqueuer::EnqueueSends(const Here& here, size_t chunk) {
  for (Active& active : outgoing_) {
    if (chunk >= active.chunk_count) continue;
    const OutgoingMessage& message = here.phase.messages.outgoing[active.number];
    const size_t transfer = active.first_transfer + chunk;
    // Its memory is that of the one a window before.
    const int64_t window = here.windows.send;
    if (static_cast<int64_t>(chunk) >= window) EnqueueAwait(here, transfer - static_cast<size_t>(window));
    for (; active.next_part < message.parts.size(); ++active.next_part) {
      const MessagePart& part = message.parts[active.next_part];
      if (static_cast<size_t>(part.place.first) != chunk) break;
      if (!active.IsDirect(message.chunks[chunk])) {
        EnqueuePart(here, part, here.messages->at(transfer).data + part.place.offset);
      }
    }
    EnqueueStart(here, transfer);
  }
}

void PhaseEnqueuer::EnqueueRunOf(const Here& here, const Run& run) {
  if (run.piece == nullptr) return EnqueueWork(here, here.phase.instructions[run.instruction], nullptr);
  for (const StagedOperand& operand : run.piece->operands) {
    if (!IsActive(operand)) continue;
    for (int c = operand.place.first; c <= operand.place.last; ++c) EnqueueAwait(here, TransferOf(operand, c));
  }
  EnqueueWork(here, run.piece->work, run.piece);
}

void PhaseEnqueuer::EnqueueSteps(const Here& here) {
  int64_t steps = 1;
  for (const Active& active : outgoing_) steps = std::max(steps, static_cast<int64_t>(active.chunk_count));
  for (const Active& active : incoming_) steps = std::max(steps, static_cast<int64_t>(active.chunk_count));
  int64_t posted = 0, sent = 0;
  size_t run = 0;
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t receives = std::min(steps, step + here.windows.receive);
    const int64_t sends = std::min(steps, step + here.windows.send);
    for (; posted < receives; ++posted) EnqueueReceives(here, static_cast<size_t>(posted));
    for (; sent < sends; ++sent) EnqueueSends(here, static_cast<size_t>(sent));
    for (; run < runs_.size() && runs_[run].step <= step; ++run) EnqueueRunOf(here, runs_[run]);
    // Also those that are received in place: the step after this may post into this one's memory.
    for (const Active& active : incoming_) {
      const bool is_windowed = here.windows.receive != kWholeMessage && static_cast<size_t>(step) < active.chunk_count;
      if (is_windowed) EnqueueAwait(here, active.first_transfer + static_cast<size_t>(step));
    }
  }
  for (size_t transfer = 0; transfer < awaited_.size(); ++transfer) EnqueueAwait(here, transfer);
}

void PhaseEnqueuer::EnqueueWork(const Here& here, const Instruction& work, const InstructionPiece* piece) {
  if (const auto* copy = std::get_if<CopyInstruction>(&work)) return EnqueueCopy(here, *copy, piece);
  if (const auto* reduce = std::get_if<ReduceInstruction>(&work)) return EnqueueReduce(here, *reduce, piece);
  device_.EnqueueRun(here.stream, MakeKernel(here, std::get<KernelInstruction>(work), piece, nullptr));
}

void PhaseEnqueuer::EnqueueCopy(const Here& here, const CopyInstruction& copy, const InstructionPiece* piece) {
  const Staged staged = StagedTerm(here, piece, 0);
  CopyWork work{.extents = copy.extents,
                .element_bytes = SizeBytes(copy.dtype),
                .source = staged.data,
                .source_strides = {},
                .destination = AddressOf(copy.destination, here.instance),
                .destination_strides = copy.destination.strides};
  if (staged.data != nullptr) {
    work.source_strides = *staged.strides;
  } else {
    work.source = AddressOf(copy.source, here.instance);
    work.source_strides = copy.source.strides;
    work.received_bytes = CountOf(copy.source.worker, here.record->report.received_bytes);
  }
  device_.EnqueueRun(here.stream, std::move(work));
}

void PhaseEnqueuer::EnqueueReduce(const Here& here, const ReduceInstruction& reduce, const InstructionPiece* piece) {
  RunRecord& record = *here.record;
  const size_t first = record.terms.size(), first_destination = record.destinations.size();
  for (size_t t = 0; t < reduce.terms.size(); ++t) {
    if (const Staged staged = StagedTerm(here, piece, t); staged.data != nullptr) {
      record.terms.push_back({staged.data, *staged.strides});
      record.term_counts.push_back(nullptr);
    } else {
      record.terms.push_back({AddressOf(reduce.terms[t], here.instance), reduce.terms[t].strides});
      record.term_counts.push_back(CountOf(reduce.terms[t].worker, record.report.received_bytes));
    }
  }
  const auto add_destination = [&](const Operand& to) {
    if (const Transit* transit = TransitAt(to); transit != nullptr && transit->data == nullptr) return;
    if (to.worker != arenas_.self() && !arenas_.IsMapped(to.worker)) return;
    record.destinations.push_back({AddressOf(to, here.instance), to.strides});
    record.push_counts.push_back(CountOf(to.worker, record.report.pushed_bytes));
  };
  add_destination(reduce.destination);
  for (const Operand& push : reduce.pushes) add_destination(push);
  if (record.destinations.size() == first_destination) return;
  EnqueueReduction(here,
                   {.op = reduce.op,
                    .dtype = reduce.dtype,
                    .destination_dtype = reduce.destination_dtype,
                    .extents = reduce.extents,
                    .term_count = reduce.term_count},
                   first, first_destination);
}

// Where a merge of runs, or a gather of shards, that lie apart says how many elements it took of each; null of any
// other kernel. (A merge takes as many places as values.)
int64_t* PhaseEnqueuer::AddTakenCounts(const KernelInstruction& kernel, RunRecord& record) {
  const bool may_lie_apart = std::holds_alternative<MergeOp>(kernel.op) || std::holds_alternative<GatherOp>(kernel.op);
  const bool lie_apart =
      may_lie_apart && std::any_of(kernel.input_received_bytes.begin(), kernel.input_received_bytes.end(),
                                   [](int64_t bytes) { return bytes > 0; });
  if (!lie_apart) return nullptr;
  const size_t first = record.taken_elements.size();
  record.taken_elements.resize(first + kernel.inputs.size(), 0);
  int64_t* const taken = record.taken_elements.data() + first;
  const auto count = static_cast<int64_t>(kernel.inputs.size());
  record.merge_outputs.push_back({.data = taken, .dtype = DType::kI64, .extents = {count}, .strides = {1}});
  return taken;
}

KernelWork PhaseEnqueuer::MakeKernel(const Here& here, const KernelInstruction& kernel, const InstructionPiece* piece,
                                     const int64_t* ranges) {
  RunRecord& record = *here.record;
  const size_t first_input = record.kernel_inputs.size();
  const size_t first_scalar = record.kernel_scalars.size();
  const size_t first_count = record.kernel_counts.size();
  const size_t first_output = record.merge_outputs.size();
  int64_t* const taken = AddTakenCounts(kernel, record);
  bool is_as_planned = ranges == nullptr;  // else strides are those of messages, or inputs are more
  for (size_t k = 0; k < kernel.inputs.size(); ++k) {
    const Staged staged = StagedTerm(here, piece, k);
    const bool is_staged = staged.data != nullptr;
    is_as_planned = is_as_planned && !is_staged;
    record.kernel_inputs.push_back({.data = is_staged ? staged.data : AddressOf(kernel.inputs[k], here.instance),
                                    .dtype = kernel.input_dtypes[k],
                                    .extents = kernel.input_extents[k],
                                    .strides = is_staged ? *staged.strides : kernel.inputs[k].strides,
                                    .is_zero = kernel.input_is_zero[k] != 0});
    int64_t* const received_bytes =
        is_staged ? nullptr : CountOf(kernel.inputs[k].worker, record.report.received_bytes);
    if (received_bytes != nullptr) {
      const int64_t* const times = taken == nullptr ? nullptr : taken + k;
      record.kernel_counts.push_back({received_bytes, kernel.input_received_bytes[k], times});
    }
  }
  if (ranges != nullptr) {
    const auto runs = static_cast<int64_t>(std::get<MergeOp>(kernel.op).runs.size());
    record.kernel_inputs.push_back({.data = ranges, .dtype = DType::kI64, .extents = {runs, 2}, .strides = {2, 1}});
  }
  for (int scalar : kernel.scalars) record.kernel_scalars.push_back(here.instance.scalars[static_cast<size_t>(scalar)]);
  return KernelWork{{.op = &kernel.op,
                     .inputs = absl::MakeConstSpan(record.kernel_inputs).subspan(first_input),
                     .output = AddressOf(kernel.output, here.instance),
                     .output_dtype = kernel.output_dtype,
                     .output_extents = kernel.output_extents,
                     .output_strides = kernel.output.strides,
                     .output_box = kernel.output_box,
                     .input_box = kernel.input_box,
                     .more_outputs = absl::MakeConstSpan(record.merge_outputs).subspan(first_output),
                     .scalars = absl::MakeConstSpan(record.kernel_scalars).subspan(first_scalar),
                     .store = kernel.store,
                     .output_readers = kernel.output_readers},
                    absl::MakeConstSpan(record.kernel_counts).subspan(first_count),
                    is_as_planned ? kernel.form : 0};
}

void PhaseEnqueuer::EnqueueRefusal(const Instance& instance, const Phase& phase, int phase_number,
                                   const RunRecordRef& record) {
  FindMessages(phase);
  if (outgoing_.empty() && incoming_.empty()) return;
  PhaseMessages& messages = record->AddMessages(*messages_, lives_, TagOf(instance, phase_number));
  const Here here{instance, phase, record, static_cast<StreamId>(instance.stream), {}, &messages};
  for (const Active& active : outgoing_) {
    for (size_t c = 0; c < active.chunk_count; ++c) {
      messages.Add({.direction = PhaseMessages::Direction::kSend,
                    .peer = phase.messages.outgoing[active.number].to,
                    .chunk = static_cast<uint32_t>(c)});
    }
  }
  for (const Active& active : incoming_) {
    for (size_t c = 0; c < active.chunk_count; ++c) {
      messages.Add({.direction = PhaseMessages::Direction::kReceive,
                    .peer = phase.messages.incoming[active.number].from,
                    .chunk = static_cast<uint32_t>(c)});
    }
  }
  awaited_.assign(messages.size(), 0);
  for (size_t transfer = 0; transfer < messages.size(); ++transfer) EnqueueStart(here, transfer);
  for (size_t transfer = 0; transfer < messages.size(); ++transfer) EnqueueAwait(here, transfer);
}

absl::Status PhaseEnqueuer::Enqueue(const Instance& instance, const Phase& phase, int phase_number,
                                    const RunRecordRef& record) {
  if (absl::Status s = CheckReach(phase); !s.ok()) {
    EnqueueRefusal(instance, phase, phase_number, record);
    return s;
  }
  FindMessages(phase);
  Here here{instance, phase, record, static_cast<StreamId>(instance.stream), {}, nullptr};
  if (outgoing_.empty() && incoming_.empty()) {
    for (const Instruction& whole : phase.instructions) {
      if (!IsPushed(phase, whole)) EnqueueWork(here, whole, nullptr);
    }
    return absl::OkStatus();
  }
  const bool is_ranged = phase.ranged_merge() != nullptr && device_.IsHostMemory();
  if (is_ranged) {
    here.messages = &record->AddMessages(*messages_, lives_, TagOf(instance, phase_number));
    MergePhase merge;
    const auto& kernel = std::get<KernelInstruction>(phase.instructions[0]);
    if (absl::Status s = AddMergeTransfers(here, kernel, merge); !s.ok()) {
      EnqueueRefusal(instance, phase, phase_number, record);
      return s;
    }
    EnqueueMerge(here, merge);
    return absl::OkStatus();
  }
  ListRuns(phase);
  here.windows = ChooseWindows(phase, [this](WorkerIndex peer) { return arenas_.IsMapped(peer); });
  here.messages = &record->AddMessages(*messages_, lives_, TagOf(instance, phase_number));
  if (absl::Status s = AddTransfers(here); !s.ok()) {
    EnqueueRefusal(instance, phase, phase_number, record);
    return s;
  }
  EnqueueSteps(here);
  return absl::OkStatus();
}

}  // namespace tessera
