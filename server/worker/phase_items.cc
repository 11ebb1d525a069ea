#include "server/worker/phase_items.h"

#include <algorithm>
#include <new>
#include <utility>
#include <variant>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int64_t kStagingAlignment = 64;

int64_t AlignUp(int64_t bytes) { return (bytes + kStagingAlignment - 1) / kStagingAlignment * kStagingAlignment; }

// How many of an instruction's operands can come in a message.
size_t TermCount(const Instruction& instruction) {
  if (const auto* reduce = std::get_if<ReduceInstruction>(&instruction)) return reduce->terms.size();
  const auto* kernel = std::get_if<KernelInstruction>(&instruction);
  return kernel == nullptr ? 1 : kernel->inputs.size();
}

MessageTag TagOf(const Instance& instance, int phase_number) {
  return {.ordinal = instance.ordinal.value, .phase = static_cast<uint32_t>(phase_number)};
}

}  // namespace

std::byte* PhaseItems::AddressOf(const Operand& operand, const Instance& instance) const {
  return arenas_.MemoryOf(operand.worker) + instance.buffer_offsets[static_cast<size_t>(operand.parameter)] +
         operand.offset_bytes;
}

PhaseItems::Staged PhaseItems::StagedTerm(size_t instruction, size_t term) const {
  return staged_terms_.empty() ? Staged{} : staged_terms_[first_term_[instruction] + term];
}

int64_t* PhaseItems::CountOf(WorkerIndex worker, std::vector<std::pair<WorkerIndex, int64_t>>& counts) const {
  if (worker == arenas_.self()) return nullptr;
  for (auto& [peer, bytes] : counts) {
    if (peer == worker) return &bytes;
  }
  return nullptr;
}

absl::Status PhaseItems::ReserveStaging(StreamId stream, int64_t bytes, RunRecord& record) {
  std::shared_ptr<StagingMemory>& staging = staging_[static_cast<size_t>(stream)];
  if (staging == nullptr || staging->size < bytes) {
    // Phases that were enqueued before keep the smaller one until they have run.
    auto larger = std::make_shared<StagingMemory>();
    larger->bytes.reset(new (std::nothrow) std::byte[static_cast<size_t>(bytes)]);
    if (larger->bytes == nullptr) {
      return absl::ResourceExhaustedError(
          StrCat("worker ", arenas_.self().value, ": no host memory for messages of ", bytes, " bytes"));
    }
    larger->size = bytes;
    staging = std::move(larger);
  }
  staged_ = staging->bytes.get();
  if (record.staging.empty() || record.staging.back() != staging) record.staging.push_back(staging);
  return absl::OkStatus();
}

absl::Status PhaseItems::CheckReach(const Phase& phase) const {
  const auto unavailable = [this](WorkerIndex peer, std::string_view why) {
    return absl::UnavailableError(StrCat("worker ", peer.value, ": its memory is ", why, arenas_.self().value));
  };
  size_t next = 0;  // of the messages, which are sorted as the peers are
  for (const WorkerIndex peer : phase.reads_from) {
    while (next < phase.incoming.size() && phase.incoming[next].from < peer) ++next;
    const bool has_message = next < phase.incoming.size() && phase.incoming[next].from == peer;
    if (arenas_.IsMapped(peer)) {
      if (std::binary_search(phase.sums_from.begin(), phase.sums_from.end(), peer)) {
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

absl::Status PhaseItems::PlaceMessages(const Phase& phase, StreamId stream, RunRecord& record) {
  outgoing_.clear();
  incoming_.clear();
  staged_terms_.clear();
  staged_ = nullptr;
  int64_t total = 0;
  auto place = [&](WorkerIndex peer, int64_t bytes) {
    if (arenas_.IsMapped(peer)) return Placed{0, -1};
    const Placed placed{total, bytes};
    total += AlignUp(bytes);
    return placed;
  };
  TESSERA_RETURN_IF_ERROR(CheckReach(phase));
  if (messages_ == nullptr) return absl::OkStatus();
  for (const OutgoingMessage& message : phase.outgoing) outgoing_.push_back(place(message.to, message.bytes));
  for (const IncomingMessage& message : phase.incoming) incoming_.push_back(place(message.from, message.bytes));
  if (total == 0) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(ReserveStaging(stream, total, record));
  for (size_t m = 0; m < phase.incoming.size(); ++m) {
    if (incoming_[m].bytes < 0) continue;
    if (staged_terms_.empty()) {
      first_term_.clear();
      for (const Instruction& instruction : phase.instructions) {
        first_term_.push_back(staged_terms_.size());
        staged_terms_.resize(staged_terms_.size() + TermCount(instruction));
      }
    }
    for (const IncomingOperand& operand : phase.incoming[m].operands) {
      staged_terms_[first_term_[static_cast<size_t>(operand.instruction)] + static_cast<size_t>(operand.term)] = {
          staged_ + incoming_[m].at + operand.message_offset_bytes, &operand.strides};
    }
  }
  return absl::OkStatus();
}

void PhaseItems::EnqueueSum(const Instance& instance, const MessagePart& part, std::byte* to, RunRecord& record) {
  const size_t first = record.terms.size(), first_destination = record.destinations.size();
  for (const Operand& source : part.sources) {
    record.terms.push_back({AddressOf(source, instance), source.strides});
    record.term_counts.push_back(CountOf(source.worker, record.report.received_bytes));
  }
  record.destinations.push_back({to, RowMajorStrides(part.extents)});
  record.push_counts.push_back(nullptr);
  device_.EnqueueRun(static_cast<StreamId>(instance.stream),
                     ReduceWork{.op = part.op == ReduceOp::kAvg ? ReduceOp::kSum : part.op,
                                .dtype = part.dtype,
                                .extents = part.extents,
                                .terms = absl::MakeConstSpan(record.terms).subspan(first),
                                .term_count = static_cast<int64_t>(part.sources.size()),
                                .destinations = absl::MakeConstSpan(record.destinations).subspan(first_destination),
                                .received_bytes = absl::MakeConstSpan(record.term_counts).subspan(first),
                                .pushed_bytes = absl::MakeConstSpan(record.push_counts).subspan(first_destination)});
}

void PhaseItems::EnqueuePacking(const Instance& instance, const Phase& phase, RunRecord& record) {
  const StreamId stream = static_cast<StreamId>(instance.stream);
  for (size_t m = 0; m < outgoing_.size(); ++m) {
    if (outgoing_[m].bytes <= 0) continue;
    std::byte* at = staged_ + outgoing_[m].at;
    for (const MessagePart& part : phase.outgoing[m].parts) {
      const int64_t element_bytes = SizeBytes(part.dtype);
      if (part.sources.size() > 1) {
        EnqueueSum(instance, part, at, record);
      } else {
        device_.EnqueueRun(stream, CopyWork{.extents = part.extents,
                                            .element_bytes = element_bytes,
                                            .source = AddressOf(part.sources[0], instance),
                                            .source_strides = part.sources[0].strides,
                                            .destination = at,
                                            .destination_strides = RowMajorStrides(part.extents)});
      }
      at += NumElements(part.extents) * element_bytes;
    }
  }
}

void PhaseItems::EnqueueStart(StreamId stream, PhaseMessages& messages, const RunRecordRef& record) {
  if (messages.empty()) return;
  device_.EnqueueAsync(stream, [&messages, record](Device::Done done) { messages.Start(record, std::move(done)); });
}

void PhaseItems::EnqueueMessages(const Instance& instance, const Phase& phase, int phase_number,
                                 const RunRecordRef& record) {
  PhaseMessages& messages = record->AddMessages(*messages_, TagOf(instance, phase_number));
  for (size_t m = 0; m < outgoing_.size(); ++m) {
    if (outgoing_[m].bytes <= 0) continue;
    messages.Add(phase.outgoing[m].to, staged_ + outgoing_[m].at, outgoing_[m].bytes, nullptr);
  }
  for (size_t m = 0; m < incoming_.size(); ++m) {
    if (incoming_[m].bytes <= 0) continue;
    const WorkerIndex from = phase.incoming[m].from;
    messages.Add(from, staged_ + incoming_[m].at, incoming_[m].bytes, CountOf(from, record->report.received_bytes));
  }
  EnqueueStart(static_cast<StreamId>(instance.stream), messages, record);
}

void PhaseItems::EnqueueCopy(const Instance& instance, const CopyInstruction& copy, size_t number, RunRecord& record) {
  const Staged staged = StagedTerm(number, 0);
  CopyWork work{.extents = copy.extents,
                .element_bytes = SizeBytes(copy.dtype),
                .source = staged.data,
                .source_strides = {},
                .destination = AddressOf(copy.destination, instance),
                .destination_strides = copy.destination.strides};
  if (staged.data != nullptr) {
    work.source_strides = *staged.strides;
  } else {
    work.source = AddressOf(copy.source, instance);
    work.source_strides = copy.source.strides;
    work.received_bytes = CountOf(copy.source.worker, record.report.received_bytes);
  }
  device_.EnqueueRun(static_cast<StreamId>(instance.stream), std::move(work));
}

void PhaseItems::EnqueueReduce(const Instance& instance, const ReduceInstruction& reduce, size_t number,
                               RunRecord& record) {
  const size_t first = record.terms.size(), first_destination = record.destinations.size();
  for (size_t t = 0; t < reduce.terms.size(); ++t) {
    if (const Staged staged = StagedTerm(number, t); staged.data != nullptr) {
      record.terms.push_back({staged.data, *staged.strides});
      record.term_counts.push_back(nullptr);
    } else {
      record.terms.push_back({AddressOf(reduce.terms[t], instance), reduce.terms[t].strides});
      record.term_counts.push_back(CountOf(reduce.terms[t].worker, record.report.received_bytes));
    }
  }
  record.destinations.push_back({AddressOf(reduce.destination, instance), reduce.destination.strides});
  record.push_counts.push_back(nullptr);
  for (const Operand& push : reduce.pushes) {
    if (!arenas_.IsMapped(push.worker)) continue;
    record.destinations.push_back({AddressOf(push, instance), push.strides});
    record.push_counts.push_back(CountOf(push.worker, record.report.pushed_bytes));
  }
  device_.EnqueueRun(static_cast<StreamId>(instance.stream),
                     ReduceWork{.op = reduce.op,
                                .dtype = reduce.dtype,
                                .extents = reduce.extents,
                                .terms = absl::MakeConstSpan(record.terms).subspan(first),
                                .term_count = reduce.term_count,
                                .destinations = absl::MakeConstSpan(record.destinations).subspan(first_destination),
                                .received_bytes = absl::MakeConstSpan(record.term_counts).subspan(first),
                                .pushed_bytes = absl::MakeConstSpan(record.push_counts).subspan(first_destination)});
}

void PhaseItems::EnqueueKernel(const Instance& instance, const KernelInstruction& kernel, size_t number,
                               RunRecord& record) {
  const size_t first_input = record.kernel_inputs.size();
  const size_t first_scalar = record.kernel_scalars.size();
  const size_t first_count = record.kernel_counts.size();
  for (size_t k = 0; k < kernel.inputs.size(); ++k) {
    const Staged staged = StagedTerm(number, k);
    const bool is_staged = staged.data != nullptr;
    record.kernel_inputs.push_back({.data = is_staged ? staged.data : AddressOf(kernel.inputs[k], instance),
                                    .dtype = kernel.input_dtypes[k],
                                    .extents = kernel.input_extents[k],
                                    .strides = is_staged ? *staged.strides : kernel.inputs[k].strides,
                                    .is_zero = kernel.input_is_zero[k] != 0});
    int64_t* const received_bytes =
        is_staged ? nullptr : CountOf(kernel.inputs[k].worker, record.report.received_bytes);
    if (received_bytes != nullptr) record.kernel_counts.push_back({received_bytes, kernel.input_received_bytes[k]});
  }
  for (int scalar : kernel.scalars) record.kernel_scalars.push_back(instance.scalars[static_cast<size_t>(scalar)]);
  device_.EnqueueRun(static_cast<StreamId>(instance.stream),
                     KernelWork{{.op = &kernel.op,
                                 .inputs = absl::MakeConstSpan(record.kernel_inputs).subspan(first_input),
                                 .output = AddressOf(kernel.output, instance),
                                 .output_dtype = kernel.output_dtype,
                                 .output_extents = kernel.output_extents,
                                 .output_strides = kernel.output.strides,
                                 .output_box = kernel.output_box,
                                 .scalars = absl::MakeConstSpan(record.kernel_scalars).subspan(first_scalar),
                                 .store = kernel.store},
                                absl::MakeConstSpan(record.kernel_counts).subspan(first_count)});
}

void PhaseItems::EnqueueInstructions(const Instance& instance, const Phase& phase, RunRecord& record) {
  for (size_t i = 0; i < phase.instructions.size(); ++i) {
    if (const auto* copy = std::get_if<CopyInstruction>(&phase.instructions[i])) {
      // What a mapped peer pushed is here.
      if (StagedTerm(i, 0).data == nullptr && phase.delivery == Delivery::kPush) continue;
      EnqueueCopy(instance, *copy, i, record);
    } else if (const auto* reduce = std::get_if<ReduceInstruction>(&phase.instructions[i])) {
      EnqueueReduce(instance, *reduce, i, record);
    } else {
      EnqueueKernel(instance, std::get<KernelInstruction>(phase.instructions[i]), i, record);
    }
  }
}

void PhaseItems::EnqueueRefusal(const Instance& instance, const Phase& phase, int phase_number,
                                const RunRecordRef& record) {
  if (messages_ == nullptr) return;
  PhaseMessages& messages = record->AddMessages(*messages_, TagOf(instance, phase_number));
  for (const OutgoingMessage& message : phase.outgoing) {
    if (message.bytes > 0 && !arenas_.IsMapped(message.to)) messages.Add(message.to, nullptr, 0, nullptr);
  }
  for (const IncomingMessage& message : phase.incoming) {
    if (message.bytes > 0 && !arenas_.IsMapped(message.from)) {
      messages.Add(message.from, nullptr, 0, &record->refused_bytes);
    }
  }
  EnqueueStart(static_cast<StreamId>(instance.stream), messages, record);
}

absl::Status PhaseItems::Enqueue(const Instance& instance, const Phase& phase, int phase_number,
                                 const RunRecordRef& record) {
  if (absl::Status s = PlaceMessages(phase, static_cast<StreamId>(instance.stream), *record); !s.ok()) {
    EnqueueRefusal(instance, phase, phase_number, record);
    return s;
  }
  if (staged_ != nullptr) {
    EnqueuePacking(instance, phase, *record);
    EnqueueMessages(instance, phase, phase_number, record);
  }
  EnqueueInstructions(instance, phase, *record);
  return absl::OkStatus();
}

}  // namespace tessera
