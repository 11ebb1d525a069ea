#pragma once

// MessageStaging: memory for the messages of streams, outside the arena, in the host's memory or in the device's. It
// belongs to a stream and is used again by every phase; a block larger than kMaxStagingBytes goes when the items
// enqueued with it have run.
//
// Where the device has no room for it, it is the host's: a transport that takes the one takes the other.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "server/device/device.h"
#include "server/worker/arena.h"
#include "server/worker/run_record.h"

namespace tessera {

class MessageStaging {
 public:
  MessageStaging(const ArenaTable& arenas, Device& device) : arenas_(arenas), device_(device) {}

  // ResourceExhausted when it is more than max_phase_staging_bytes (docs/limits.md), or than there is.
  absl::StatusOr<std::shared_ptr<StagingMemory>> New(StagingPlace place, int64_t bytes) const;
  // The stream's, of at least so many bytes; the record keeps it.
  absl::StatusOr<std::byte*> Reserve(StagingPlace place, StreamId stream, int64_t bytes, RunRecord& record);

 private:
  // Memory that the stream's phases share while any of them is under way, and memory that stays.
  struct OfStream {
    std::weak_ptr<StagingMemory> shared;
    std::shared_ptr<StagingMemory> kept;
  };
  const ArenaTable& arenas_;
  Device& device_;
  std::array<std::array<OfStream, kStreamCount>, 2> streams_;  // by place
};

}  // namespace tessera
