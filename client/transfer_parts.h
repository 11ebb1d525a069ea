#pragma once

// Parts of one upload, and of one download.

#include <optional>
#include <vector>

#include "client/host_memory.h"
#include "schemas/types/ids.h"
#include "schemas/types/shape.h"

namespace tessera {

inline constexpr int64_t kSnapshotBytes = 4 << 20;     // docs/limits.md: snapshot_bytes
inline constexpr size_t kMaxSnapshots = 256;           // docs/limits.md: max_snapshots
inline constexpr int64_t kSlabBytes = 2 << 20;         // docs/limits.md: slab_bytes
inline constexpr int kSlabs = 8;                       // docs/limits.md: slabs
inline constexpr int64_t kPlacedSlabBytes = 16 << 20;  // docs/limits.md: placed_slab_bytes
inline constexpr int kPlacedSlabs = 2;                 // docs/limits.md: placed_slabs

// The piece of an upload that one group of workers gets: all of `box` lies in `source`, whose first
// element is the tensor's element `origin`.
struct UploadPiece {
  Box box;
  std::vector<WorkerIndex> workers;
  HostView source;
  Shape origin;
};

// The part of a tensor that is downloaded: the whole, a flat position's shard, or some rows of dim 0 of the whole.
struct DownloadPart {
  std::optional<int64_t> flat_position;
  std::optional<Interval> rows;
};

}  // namespace tessera
