#include "server/worker/phase_items.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>
#include <variant>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int64_t kStagingAlignment = 64;

int64_t AlignUp(int64_t bytes) { return (bytes + kStagingAlignment - 1) / kStagingAlignment * kStagingAlignment; }

// The messages of one phase, under way together; the last to end ends the device item.
class MessageGroup {
 public:
  MessageGroup(int count, Device::Done done) : left_(count), done_(std::move(done)) {}

  void End(absl::Status status, int64_t* received_bytes, int64_t bytes) {
    Device::Done done;
    absl::Status first;
    {
      std::lock_guard lock(mutex_);
      if (status.ok() && received_bytes != nullptr) *received_bytes += bytes;
      if (!status.ok() && status_.ok()) status_ = std::move(status);
      if (--left_ > 0) return;
      done = std::move(done_);
      first = std::move(status_);
    }
    done(std::move(first));
  }

 private:
  std::mutex mutex_;
  int left_;
  absl::Status status_;
  Device::Done done_;
};

// One phase's sends and receives, started together: neither waits for the other side's order.
struct PhaseMessages {
  struct One {
    WorkerIndex peer;
    std::byte* data = nullptr;
    int64_t bytes = 0;
    int64_t* received_bytes = nullptr;  // null: a send
  };
  MessageTransport* transport = nullptr;
  MessageTag tag;
  std::vector<One> all;
  std::shared_ptr<RunRecord> keep_alive;

  void Start(Device::Done done) const {
    auto group = std::make_shared<MessageGroup>(static_cast<int>(all.size()), std::move(done));
    for (const One& one : all) {
      auto end = [group, keep = keep_alive, received = one.received_bytes, bytes = one.bytes](absl::Status status) {
        group->End(std::move(status), received, bytes);
      };
      const size_t size = static_cast<size_t>(one.bytes);
      if (one.received_bytes == nullptr) {
        transport->Send(one.peer, tag, {one.data, size}, std::move(end));
      } else {
        transport->Receive(one.peer, tag, {one.data, size}, std::move(end));
      }
    }
  }
};

}  // namespace

std::byte* PhaseItems::AddressOf(const Operand& operand, const Instance& instance) const {
  return arenas_.MemoryOf(operand.worker) + instance.buffer_offsets[static_cast<size_t>(operand.parameter)] +
         operand.offset_bytes;
}

std::byte* PhaseItems::StagedTerm(size_t instruction, size_t term) const {
  return terms_.empty() ? nullptr : terms_[instruction][term];
}

int64_t* PhaseItems::CountOf(WorkerIndex worker, RunRecord& record) const {
  if (worker == arenas_.self()) return nullptr;
  for (auto& [peer, bytes] : record.report.received_bytes) {
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

absl::Status PhaseItems::PlaceMessages(const Phase& phase, StreamId stream, RunRecord& record) {
  outgoing_.clear();
  incoming_.clear();
  terms_.clear();
  staged_ = nullptr;
  int64_t total = 0;
  auto place = [&](WorkerIndex peer, int64_t bytes) {
    if (arenas_.IsMapped(peer)) return Placed{0, -1};
    const Placed placed{total, bytes};
    total += AlignUp(bytes);
    return placed;
  };
  if (messages_ == nullptr) {
    for (WorkerIndex peer : phase.reads_from) {
      if (!arenas_.IsMapped(peer)) {
        return absl::UnavailableError(StrCat("worker ", peer.value, ": its memory is not mapped by worker ",
                                             arenas_.self().value, ", which has no message transport"));
      }
    }
    return absl::OkStatus();
  }
  for (const OutgoingMessage& message : phase.outgoing) outgoing_.push_back(place(message.to, message.bytes));
  for (const IncomingMessage& message : phase.incoming) incoming_.push_back(place(message.from, message.bytes));
  if (total == 0) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(ReserveStaging(stream, total, record));
  for (size_t m = 0; m < phase.incoming.size(); ++m) {
    if (incoming_[m].bytes < 0) continue;
    if (terms_.empty()) {
      terms_.resize(phase.instructions.size());
      for (size_t i = 0; i < phase.instructions.size(); ++i) {
        const auto* reduce = std::get_if<ReduceInstruction>(&phase.instructions[i]);
        terms_[i].assign(reduce == nullptr ? 1 : reduce->terms.size(), nullptr);
      }
    }
    for (const IncomingOperand& operand : phase.incoming[m].operands) {
      terms_[static_cast<size_t>(operand.instruction)][static_cast<size_t>(operand.term)] =
          staged_ + incoming_[m].at + operand.message_offset_bytes;
    }
  }
  return absl::OkStatus();
}

void PhaseItems::EnqueuePacking(const Instance& instance, const Phase& phase) {
  const StreamId stream = static_cast<StreamId>(instance.stream);
  for (size_t m = 0; m < outgoing_.size(); ++m) {
    if (outgoing_[m].bytes <= 0) continue;
    std::byte* at = staged_ + outgoing_[m].at;
    for (const MessagePart& part : phase.outgoing[m].parts) {
      const int64_t element_bytes = SizeBytes(part.dtype);
      device_.EnqueueRun(stream, CopyWork{.extents = part.extents,
                                          .element_bytes = element_bytes,
                                          .source = AddressOf(part.source, instance),
                                          .source_strides = part.source.strides,
                                          .destination = at,
                                          .destination_strides = RowMajorStrides(part.extents)});
      at += NumElements(part.extents) * element_bytes;
    }
  }
}

void PhaseItems::EnqueueMessages(const Instance& instance, const Phase& phase, int phase_number,
                                 const std::shared_ptr<RunRecord>& record) {
  auto messages = std::make_shared<PhaseMessages>();
  messages->transport = messages_;
  messages->tag = {.ordinal = instance.ordinal.value, .phase = static_cast<uint32_t>(phase_number)};
  messages->keep_alive = record;
  for (size_t m = 0; m < outgoing_.size(); ++m) {
    if (outgoing_[m].bytes <= 0) continue;
    messages->all.push_back({phase.outgoing[m].to, staged_ + outgoing_[m].at, outgoing_[m].bytes, nullptr});
  }
  for (size_t m = 0; m < incoming_.size(); ++m) {
    if (incoming_[m].bytes <= 0) continue;
    const WorkerIndex from = phase.incoming[m].from;
    messages->all.push_back({from, staged_ + incoming_[m].at, incoming_[m].bytes, CountOf(from, *record)});
  }
  if (messages->all.empty()) return;
  device_.EnqueueAsync(static_cast<StreamId>(instance.stream),
                       [messages](Device::Done done) { messages->Start(std::move(done)); });
}

void PhaseItems::EnqueueInstructions(const Instance& instance, const Phase& phase, RunRecord& record) {
  const StreamId stream = static_cast<StreamId>(instance.stream);
  for (size_t i = 0; i < phase.instructions.size(); ++i) {
    if (const auto* copy = std::get_if<CopyInstruction>(&phase.instructions[i])) {
      std::byte* staged = StagedTerm(i, 0);
      CopyWork work{.extents = copy->extents,
                    .element_bytes = SizeBytes(copy->dtype),
                    .source = staged,
                    .source_strides = {},
                    .destination = AddressOf(copy->destination, instance),
                    .destination_strides = copy->destination.strides};
      if (staged != nullptr) {
        work.source_strides = RowMajorStrides(copy->extents);
      } else {
        work.source = AddressOf(copy->source, instance);
        work.source_strides = copy->source.strides;
        work.received_bytes = CountOf(copy->source.worker, record);
      }
      device_.EnqueueRun(stream, std::move(work));
    } else if (const auto* reduce = std::get_if<ReduceInstruction>(&phase.instructions[i])) {
      ReduceWork work{.op = reduce->op,
                      .dtype = reduce->dtype,
                      .extents = reduce->extents,
                      .destination = AddressOf(reduce->destination, instance),
                      .destination_strides = reduce->destination.strides};
      for (size_t t = 0; t < reduce->terms.size(); ++t) {
        std::byte* staged = StagedTerm(i, t);
        if (staged != nullptr) {
          work.terms.push_back({staged, RowMajorStrides(reduce->extents)});
          work.received_bytes.push_back(nullptr);
        } else {
          work.terms.push_back({AddressOf(reduce->terms[t], instance), reduce->terms[t].strides});
          work.received_bytes.push_back(CountOf(reduce->terms[t].worker, record));
        }
      }
      device_.EnqueueRun(stream, std::move(work));
    } else {
      const auto& kernel = std::get<KernelInstruction>(phase.instructions[i]);
      KernelCall call{.op = &kernel.op,
                      .inputs = {},
                      .output = AddressOf(kernel.output, instance),
                      .output_dtype = kernel.output_dtype,
                      .output_extents = kernel.output_extents,
                      .output_strides = kernel.output.strides,
                      .output_box = kernel.output_box};
      for (size_t k = 0; k < kernel.inputs.size(); ++k) {
        call.inputs.push_back({.data = AddressOf(kernel.inputs[k], instance),
                               .dtype = kernel.input_dtypes[k],
                               .extents = kernel.input_extents[k],
                               .strides = kernel.inputs[k].strides,
                               .is_zero = kernel.input_is_zero[k] != 0});
      }
      for (int scalar : kernel.scalars) call.scalars.push_back(instance.scalars[static_cast<size_t>(scalar)]);
      device_.EnqueueRun(stream, std::move(call));
    }
  }
}

void PhaseItems::EnqueueRefusal(const Instance& instance, const Phase& phase, int phase_number,
                                const std::shared_ptr<RunRecord>& record) {
  if (messages_ == nullptr) return;
  auto messages = std::make_shared<PhaseMessages>();
  messages->transport = messages_;
  messages->tag = {.ordinal = instance.ordinal.value, .phase = static_cast<uint32_t>(phase_number)};
  messages->keep_alive = record;
  for (const OutgoingMessage& message : phase.outgoing) {
    if (message.bytes > 0 && !arenas_.IsMapped(message.to)) messages->all.push_back({message.to, nullptr, 0, nullptr});
  }
  for (const IncomingMessage& message : phase.incoming) {
    if (message.bytes > 0 && !arenas_.IsMapped(message.from)) {
      messages->all.push_back({message.from, nullptr, 0, &record->refused_bytes});
    }
  }
  if (messages->all.empty()) return;
  device_.EnqueueAsync(static_cast<StreamId>(instance.stream),
                       [messages](Device::Done done) { messages->Start(std::move(done)); });
}

absl::Status PhaseItems::Enqueue(const Instance& instance, const Phase& phase, int phase_number,
                                 const std::shared_ptr<RunRecord>& record) {
  if (absl::Status s = PlaceMessages(phase, static_cast<StreamId>(instance.stream), *record); !s.ok()) {
    EnqueueRefusal(instance, phase, phase_number, record);
    return s;
  }
  if (staged_ != nullptr) {
    EnqueuePacking(instance, phase);
    EnqueueMessages(instance, phase, phase_number, record);
  }
  EnqueueInstructions(instance, phase, *record);
  return absl::OkStatus();
}

}  // namespace tessera
