#pragma once

// SpillMemory: memory of the host to which a GPU's worker writes buffers first when the coordinator wants their memory
// (--spill-memory); what finds no place here goes to files (files/spill_files.h). The memory is the device's own
// staging memory, pinned, so bytes come and go without another copy. It is taken in slabs when it is first needed, and
// kept. A buffer has pieces of one size, wherever they are free, so nothing is lost to gaps.
//
//   SpillMemory memory(device, 1 << 30);
//   auto kept = memory.Create(7, 5 << 20);          // five pieces, in runs; null: there is no place
//   for (const SpillMemory::Run& run : kept->runs()) copy to run.memory ...
//   memory.Find(7) == kept;  memory.Forget(7);      // the pieces are free when nobody has it any more
//
// Any thread's calls.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "server/device/device.h"

namespace tessera {

// docs/limits.md: spill_piece_bytes, spill_slab_bytes
inline constexpr int64_t kSpillPieceBytes = int64_t{1} << 20;
inline constexpr int64_t kSpillSlabBytes = int64_t{64} << 20;

class SpillMemory {
 public:
  struct Run {
    std::byte* memory;
    int64_t bytes;
  };
  // One buffer's.
  class Kept {
   public:
    Kept(std::vector<Run> runs, std::vector<int64_t> pieces) : runs_(std::move(runs)), pieces_(std::move(pieces)) {}
    const std::vector<Run>& runs() const { return runs_; }

   private:
    friend class SpillMemory;
    std::vector<Run> runs_;
    std::vector<int64_t> pieces_;
  };

  // `max_bytes` are taken down to whole pieces. The device outlives what is kept.
  SpillMemory(Device& device, int64_t max_bytes);
  SpillMemory(const SpillMemory&) = delete;
  SpillMemory& operator=(const SpillMemory&) = delete;

  // Null where all of the memory is taken, or the host gives no more. Memory of that number is replaced.
  std::shared_ptr<const Kept> Create(uint64_t number, int64_t bytes);
  // Null where there is none of that number.
  std::shared_ptr<const Kept> Find(uint64_t number);
  void Forget(uint64_t number);
  int64_t used_bytes() const;

 private:
  // The memory to which kept pieces come back; it outlives this where a copy does.
  struct Pool {
    mutable std::mutex mutex;
    std::vector<std::shared_ptr<std::byte>> slabs;
    std::set<int64_t> free;    // pieces of the slabs
    int64_t pieces_left = 0;   // that no slab has yet
    bool is_refused = false;   // the host gave no slab
    int64_t taken_pieces = 0;  // of buffers
  };
  void TakeSlab(Pool& pool) const;

  Device& device_;
  const std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();
  std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<const Kept>> kept_;
};

}  // namespace tessera
