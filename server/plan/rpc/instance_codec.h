#pragma once

// Worker messages and reports <-> schemas/worker.capnp, for both ends of the worker link. Decoding
// validates as schemas/codec does.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <capnp/message.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schemas/worker.capnp.h"
#include "server/plan/worker_message.h"

namespace tessera {

void EncodeWorkerMessage(const WorkerMessage& message, wire::WorkerMessages::Message::Builder builder);
// One WorkerMessages of the first so many: of all, or of those with which it is full. How many they are; at least one.
// A message that is full has less than twice kFullSendBytes, since no plan's text is longer than that.
inline constexpr size_t kFullSendBytes = 16u << 20;  // docs/limits.md: full_send_bytes
size_t EncodeWorkerMessages(absl::Span<const std::shared_ptr<const WorkerMessage>> messages, uint64_t epoch,
                            capnp::MessageBuilder& builder);
absl::StatusOr<WorkerMessage> DecodeWorkerMessage(wire::WorkerMessages::Message::Reader reader);

// Decodes one instance after another into the same memory, so that after warm-up none is allocated.
class InstanceDecoder {
 public:
  // Valid until the next call.
  absl::StatusOr<const Instance*> Decode(wire::Instance::Reader reader);

 private:
  Instance instance_;
  std::vector<InstanceWait> spare_waits_;
};

void EncodeCompletion(const CompletionReport& report, wire::Completion::Builder builder);
absl::StatusOr<CompletionReport> DecodeCompletion(wire::Completion::Reader reader);
void EncodeTransfer(const TransferReport& report, wire::TransferDone::Builder builder);
absl::StatusOr<TransferReport> DecodeTransfer(wire::TransferDone::Reader reader);

// The completions and transfers of a Reported, or of a journal's WorkerReport.
template <typename Builder>
void EncodeReport(absl::Span<const CompletionReport> completions, absl::Span<const TransferReport> transfers,
                  Builder builder) {
  auto completed = builder.initCompletions(static_cast<unsigned>(completions.size()));
  for (unsigned i = 0; i < completed.size(); ++i) EncodeCompletion(completions[i], completed[i]);
  auto transferred = builder.initTransfers(static_cast<unsigned>(transfers.size()));
  for (unsigned i = 0; i < transferred.size(); ++i) EncodeTransfer(transfers[i], transferred[i]);
}

// At most this much text of a plan is parsed.
inline constexpr size_t kMaxPlanTextBytes = 16u << 20;  // docs/limits.md: max_plan_text_bytes

}  // namespace tessera
