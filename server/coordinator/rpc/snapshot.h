#pragma once

// Snapshot: all of a core as bytes, and back: the state machine with its queues, ops under way and tickets, and the
// outboxes. A restart from a snapshot and what the log has behind it leads to the same state as one from the whole log.
//
// A file of parts (schemas/snapshot.capnp), each [bytes: u64][XXH3 of them: u64][packed Cap'n Proto]. The last one
// counts the others, so that a file that ends early is seen.
//
// Not in it: plans, which are made again by their keys and keep their ids where they are the same; profiles of what has
// run; counters of metrics, which begin anew.
//
//   Snapshot::Save(core, {.segment = 4, .events = 70'211}, [&](auto bytes) { return Write(bytes); });
//   Snapshot::Load(bytes)->core
//
// Law: Digest(Load(Save(core))) == Digest(core), and so after any further events.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include <kj/common.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/coordinator/rpc/core.h"
#include "server/coordinator/rpc/versions.h"

namespace tessera {

class Snapshot {
 public:
  // Where in the log the state is.
  struct Place {
    uint64_t segment = 0;  // the log's, whose first event comes next
    uint64_t events = 0;   // that led to it
    uint32_t version = kSnapshotVersion;
  };
  using Write = std::function<absl::Status(kj::ArrayPtr<const kj::byte>)>;
  // Calls `write` for each piece, in order; its first error ends it.
  static absl::Status Save(const Core& core, const Place& place, const Write& write);

  struct Loaded {
    std::unique_ptr<Core> core;  // without a log
    Place place;
  };
  // DataLoss, with the byte, for what is not as it was written; FailedPrecondition for a version that this program
  // doesn't read.
  static absl::StatusOr<Loaded> Load(absl::Span<const std::byte> bytes);

  // XXH3 of the state machine's parts: equal for equal state, however it came to be.
  static uint64_t Digest(const Core& core);

 private:
  class Encoder;
  class Decoder;
};

}  // namespace tessera
