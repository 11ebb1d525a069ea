#pragma once

// Instance: one run of a plan that the workers know (a template). Byte-identical for all workers of the
// plan's meshes; some 64 bytes. Values only; the codec carries them.

#include <cstdint>
#include <string>
#include <vector>

#include "schemas/ops/scalar.h"
#include "schemas/types/ids.h"
#include "schemas/types/run_times.h"
#include "server/plan/plan.h"

namespace tessera {

// Before `phase` (1 is the first) starts, `stream`'s counter must say that `ordinal` is done, on:
enum class WaitScope : uint8_t {
  kOwn = 0,        // the worker itself, if it is among `workers` or that is empty (another stream wrote
                   // what this one reads, or reads what it writes)
  kReadsFrom = 1,  // the peers that the phase reads from, those among `workers`, or all if that is empty (they must
                   // have written it)
  kWorkers = 2,    // these workers (they read, in place, the memory that is written now)
};
struct InstanceWait {
  int phase = 1;
  uint8_t stream = 0;  // StreamId
  Ordinal ordinal;
  WaitScope scope = WaitScope::kOwn;
  std::vector<WorkerIndex> workers;
  bool operator==(const InstanceWait&) const = default;
};

// A buffer whose shards lie at different offsets, as those of a tensor that several sessions' tensors are the shards
// of.
struct PlacedBuffer {
  int buffer = 0;  // of the plan
  std::vector<std::pair<WorkerIndex, int64_t>> offsets;
  bool operator==(const PlacedBuffer&) const = default;
};

struct Instance {
  Ordinal ordinal;
  TemplateId plan;
  uint8_t stream = 0;                           // StreamId
  std::vector<int64_t> buffer_offsets;          // by the plan's buffer number: bytes in every arena
  std::vector<PlacedBuffer> placed_apart = {};  // of these buffer_offsets has 0
  std::vector<Scalar> scalars;
  std::vector<InstanceWait> waits;
  // Nothing that was issued before is still about what this writes: in its first phase an instruction that stores to
  // peers doesn't wait until they are there.
  bool writes_are_free = false;
  // Its workers reach each other by a library that has collectives, and in no other way: the plan's calls of it
  // (collective_calls.h) are made.
  bool makes_calls = false;

  // Where a buffer begins in a worker's arena.
  int64_t OffsetOf(int buffer, WorkerIndex worker) const {
    const int64_t everywhere = buffer_offsets[static_cast<size_t>(buffer)];
    return placed_apart.empty() ? everywhere : OffsetApart(buffer, worker, everywhere);
  }
  int64_t OffsetApart(int buffer, WorkerIndex worker, int64_t otherwise) const {
    for (const PlacedBuffer& placed : placed_apart) {
      if (placed.buffer != buffer) continue;
      for (const auto& [known, offset] : placed.offsets) {
        if (known == worker) return offset;
      }
    }
    return otherwise;
  }
  bool operator==(const Instance&) const = default;
};

// A tensor's range of every arena of its mesh, that an upload fills or a download reads.
enum class TransferDirection : uint8_t { kUpload = 0, kDownload = 1 };
struct TransferRange {
  TransferDirection direction = TransferDirection::kDownload;
  TensorSpec spec;
  int64_t offset_bytes = 0;  // of the tensor's first element
  Strides strides;
  bool operator==(const TransferRange&) const = default;
};

// The worker opens the ranges for their ticket when the waits are met; further calls are between it and the client.
struct TransferWindow {
  Ordinal ordinal;
  uint8_t stream = 3;  // StreamId: kIo or kIoLight
  TicketId ticket;
  SessionId session;                  // that owns the ticket
  uint64_t secret = 0;                // known to the coordinator, the workers and the session that owns the ticket
  std::vector<TransferRange> ranges;  // of the ticket's tensors, by their number: one at least, of one direction
  std::vector<InstanceWait> waits;
  uint64_t spill_file =
      0;  // not a client's, but between the range and this file of the worker (--spill); 0: a client's
  TransferDirection direction() const { return ranges.front().direction; }
  bool operator==(const TransferWindow&) const = default;
};

// At most 4 KiB that comes back in the report: the elements of the own box, row-major.
struct InlineRead {
  Ordinal ordinal;
  uint8_t stream = 3;  // StreamId: kIo or kIoLight; or kProbe, where it waits for nothing
  TensorSpec spec;
  int64_t offset_bytes = 0;
  Strides strides;
  std::vector<InstanceWait> waits;
  bool operator==(const InlineRead&) const = default;
};

// At most 4 KiB that a client brought in its record: all elements of the tensor, row-major. A worker writes its own
// box.
struct InlineWrite {
  Ordinal ordinal;
  uint8_t stream = 3;  // StreamId: kIo or kIoLight
  TensorSpec spec;
  int64_t offset_bytes = 0;
  Strides strides;
  std::vector<InstanceWait> waits;
  std::string bytes;
  bool operator==(const InlineWrite&) const = default;
};

// One worker's report of a finished ordinal.
struct CompletionReport {
  Ordinal ordinal;
  absl::Status status;
  // (worker it was taken from, bytes), counted where the bytes moved.
  std::vector<std::pair<WorkerIndex, int64_t>> received_bytes;
  // (worker to whose memory it was stored, bytes): received by that worker, which doesn't count it.
  std::vector<std::pair<WorkerIndex, int64_t>> pushed_bytes;
  std::string inline_bytes;   // of an InlineRead
  int64_t written_bytes = 0;  // of an InlineWrite: copied to the own shard
  RunTimes times = {};
  int64_t prepared_ns = 0;  // that reading, verifying and lowering its template took, in the first instance's report
};

// One worker's report of a ticket that it is finished with.
struct TransferReport {
  TicketId ticket;
  absl::Status status;
  RunTimes times = {};          // from the first copy to the last
  int64_t bytes = 0;            // that were copied
  bool in_host_memory = false;  // of a spilled buffer that left: not in a file
};

}  // namespace tessera
