#pragma once

// ArenaTable: the worker's own shared memory and its peers', by worker index. The executor finds in it
// where an operand lies, or that a peer's memory can't be reached here (its bytes then come by message).
//
// A peer's memory stays mapped while anyone shares in it: the table as long as it is the peer's, and whoever has
// something under way that may still touch it. Used from one thread.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "schemas/types/ids.h"
#include "schemas/types/mesh.h"
#include "server/device/counters.h"
#include "server/device/shared_arena.h"

namespace tessera {

inline constexpr int32_t kMaxWorkers = kMaxMeshSize;  // docs/limits.md: max_workers

class ArenaTable {
 public:
  // `own` is worker `self`'s arena; it outlives the table.
  ArenaTable(WorkerIndex self, const SharedArena& own);

  WorkerIndex self() const { return self_; }
  const SharedArena& own() const { return own_; }

  // Replaces what was known of the peer. Errors: CheckPeer's.
  absl::Status MapPeer(WorkerIndex peer, std::shared_ptr<const SharedArena> arena);
  // The peer's memory isn't reached here from now on. Returns its mapped arena, or null.
  std::shared_ptr<const SharedArena> UnmapPeer(WorkerIndex peer);
  // InvalidArgument for an index out of range or the own one.
  absl::Status CheckPeer(WorkerIndex peer) const;

  bool IsMapped(WorkerIndex worker) const { return Find(worker) != nullptr; }
  // Null where the worker's memory isn't mapped.
  std::byte* MemoryOf(WorkerIndex worker) const;
  // Whether [offset, offset + bytes) lies in the worker's arena (false where it isn't mapped).
  bool Contains(WorkerIndex worker, int64_t offset_bytes, int64_t bytes) const;
  CounterPage* CountersOf(WorkerIndex worker) const;

 private:
  const SharedArena* Find(WorkerIndex worker) const;

  WorkerIndex self_;
  const SharedArena& own_;
  std::vector<std::shared_ptr<const SharedArena>> peers_;  // by worker; null where unmapped
};

}  // namespace tessera
