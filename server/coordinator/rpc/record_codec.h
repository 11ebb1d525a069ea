#pragma once

// Client records and events <-> schemas/session.capnp, and what workers report. A record that can't be decoded becomes
// a BadRecord: its results are poisoned with the reason and everything else goes on.

#include <vector>

#include "absl/status/statusor.h"
#include "schemas/session.capnp.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/events.h"

namespace tessera {

inline constexpr uint32_t kMaxRecordsPerBatch = 4096;  // docs/limits.md: max_records_per_batch
inline constexpr size_t kMaxHandlesPerBatch = 16'384;  // docs/limits.md: max_handles_per_batch

// InvalidArgument only when the batch itself is beyond the limits.
absl::StatusOr<std::vector<Record>> DecodeRecords(wire::Batch::Reader batch);
// One of them; the error is what a BadRecord in its place would have.
absl::StatusOr<Record> DecodeRecord(wire::Record::Reader reader);

absl::StatusOr<WorkerReportEvent> DecodeReport(WorkerIndex worker, uint64_t incarnation,
                                               capnp::List<wire::Completion>::Reader completions,
                                               capnp::List<wire::TransferDone>::Reader transfers);

void EncodeSessionEvent(const SessionEvent& event, wire::Event::Builder builder);
// For a coordinator that reads its own: DataLoss for one of an unknown kind.
absl::StatusOr<SessionEvent> DecodeSessionEvent(wire::Event::Reader reader);

}  // namespace tessera
