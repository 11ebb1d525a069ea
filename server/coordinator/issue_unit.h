#pragma once

// IssueUnit, Cancels, Progress: the values that the state machine's intake hands from one of its steps to the next.

#include <cstdint>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "server/coordinator/plan_cache.h"
#include "server/coordinator/tables.h"

namespace tessera {

// kBlocked: by a limit per worker, or by windows that are being closed. kAwaitsUpload: bytes of an operand are still
// on their way from the client.
enum class Progress : uint8_t { kDone, kBlocked, kAwaitsUpload };
inline Progress BlockedBy(const TensorEntry& awaited) {
  return awaited.uploading ? Progress::kAwaitsUpload : Progress::kBlocked;
}

// One instruction's worth of records: a call, or a segment of calls of a batch.
struct IssueUnit {
  absl::InlinedVector<const CallRecord*, 1> calls;
  size_t record_count = 1;                        // of the queue's: the calls, and the drops between and after them
  std::string_view name;                          // of the last call
  absl::InlinedVector<TensorPointer, 2> tensors;  // inputs, by number
  absl::InlinedVector<bool, 2> last_uses;         // by input: nobody has its handle after the unit
  absl::InlinedVector<HandleId, 2> dropped;       // handles that nobody has after it
  absl::InlinedVector<HandleId, 1> results;       // of what is kept
  absl::InlinedVector<Scalar, 2> numbers;
  PlanKey key;
  Lane lane = Lane::kBatch;  // where it is to run, unless it turns out to wait for the batch lane
};

// Buffers of a plan whose shards are buffers of their own, by their number.
using BuffersApart = std::vector<std::pair<size_t, BufferPointer>>;

// Finds what an instruction on the stream waits for. A light op that waits for the batch lane moves there.
using CollectWaits = absl::FunctionRef<void(uint8_t stream, std::vector<InstanceWait>& waits)>;
// Makes it a BadRecord with this status, if it works or asks for something; it still gives back what it used last.
void RefuseRecord(Record& record, absl::StatusCode code, std::string_view why);

// All that the cancels of one batch name.
struct Cancels {
  std::set<uint64_t> requests;
  size_t calls_before = 0;  // calls and uploads of the queue up to here, but for those that lead to `needed`
  absl::flat_hash_set<HandleId> needed;
};

}  // namespace tessera
