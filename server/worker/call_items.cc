#include "server/worker/call_items.h"

#include <utility>

namespace tessera {
namespace {

CollectiveKey KeyOf(const Instance& instance, int number) {
  return {.ordinal = instance.ordinal.value, .phase = static_cast<uint32_t>(number)};
}

const PhaseCalls& CallsOf(const RunRecordRef& record, int number) {
  return record->known->calls[static_cast<size_t>(number) - 1];
}

void CountReceived(const PhaseCalls& phase, CompletionReport& report) {
  for (const CollectiveCall& call : phase.calls) {
    for (size_t from = 0; from < call.workers.size(); ++from) {
      const int64_t bytes = BytesTaken(call, from, phase.rank);
      if (bytes == 0) continue;
      for (auto& [peer, count] : report.received_bytes) {
        if (peer == call.workers[from]) count += bytes;
      }
    }
  }
}

}  // namespace

void CallItems::Enqueue(const Instance& instance, int number, const RunRecordRef& record) {
  const PhaseCalls& phase = CallsOf(record, number);
  const CollectiveKey key = KeyOf(instance, number);
  collectives_->Announce(key, phase.calls[0].workers);
  std::vector<CollectivePart> parts;
  for (const CollectiveCall& call : phase.calls) {
    const auto at = [&](const CallMemory& memory) {
      return arenas_.MemoryOf(arenas_.self()) + instance.OffsetOf(memory.parameter, arenas_.self()) +
             memory.Of(phase.rank);
    };
    // The library's word for a root that keeps nothing, and for those who give nothing: both are the same memory.
    std::byte* const source = call.gives(phase.rank) ? at(call.source) : at(call.destination);
    std::byte* const destination = call.takes(phase.rank) ? at(call.destination) : source;
    parts.push_back({call.kind, call.root, call.dtype, call.count, source, destination});
  }
  device_.EnqueueAsync(static_cast<StreamId>(instance.stream), [collectives = collectives_, key,
                                                                parts = std::move(parts), &phase,
                                                                record](Device::Done done) mutable {
    collectives->Enter(key, std::move(parts), [&phase, record, done = std::move(done)](absl::Status status) mutable {
      if (status.ok()) CountReceived(phase, record->report);
      done(std::move(status));
    });
  });
}

void CallItems::Refuse(const Instance& instance, int number, const RunRecordRef& record) {
  collectives_->Announce(KeyOf(instance, number), CallsOf(record, number).calls[0].workers);
  collectives_->Refuse(KeyOf(instance, number));
}

}  // namespace tessera
