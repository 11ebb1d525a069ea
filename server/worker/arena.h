#pragma once

// ArenaTable: the worker's own shared memory and its peers', by worker index. The executor finds in it
// where an operand lies, or that a peer's memory can't be reached here (its bytes then come by message).
//
// Memory of a peer that died stays mapped while the table lives: items under way may still read it.
// Used from one thread.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "schemas/types/ids.h"
#include "server/device/counters.h"
#include "server/transport/transport.h"

namespace tessera {

inline constexpr int32_t kMaxWorkers = 65536;  // docs/limits.md: max_workers

class ArenaTable {
 public:
  // `own` is worker `self`'s arena; it outlives the table.
  ArenaTable(WorkerIndex self, const SharedArena& own);

  WorkerIndex self() const { return self_; }
  const SharedArena& own() const { return own_; }

  // Replaces what was known of the peer. InvalidArgument for an index out of range or the own one.
  absl::Status MapPeer(WorkerIndex peer, SharedArena arena);
  // The peer is to be reached by messages from now on.
  absl::Status UnmapPeer(WorkerIndex peer);

  bool IsMapped(WorkerIndex worker) const { return Find(worker) != nullptr; }
  // Null where the worker's memory isn't mapped.
  std::byte* MemoryOf(WorkerIndex worker) const;
  // Whether [offset, offset + bytes) lies in the worker's arena (false where it isn't mapped).
  bool Contains(WorkerIndex worker, int64_t offset_bytes, int64_t bytes) const;
  CounterPage* CountersOf(WorkerIndex worker) const;

 private:
  const SharedArena* Find(WorkerIndex worker) const;
  absl::Status CheckPeer(WorkerIndex peer) const;

  WorkerIndex self_;
  const SharedArena& own_;
  std::vector<SharedArena> arenas_;       // of peers: all that were ever mapped
  std::vector<int32_t> arena_of_worker_;  // index into arenas_, -1 where unmapped
};

}  // namespace tessera
