#pragma once

// Parts of uploads and downloads by slabs. For session_data.cc and session_download.cc alone.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "client/session_transfers.h"
#include "client/wait.h"

namespace tessera {

// Part of a box that comes or goes at once.
struct SessionTransfers::Slab {
  Box box;
  int64_t offset_bytes = 0;  // where it begins in memory
  int64_t bytes = 0;         // that it has there
  int64_t moved_bytes = 0;   // those of them that the workers have or want

  // The box cut into what lies in one piece in row-major memory, each of at most so many bytes but for single elements.
  static std::vector<Slab> Cut(const Box& box, int64_t element_bytes, int64_t most_bytes);
};

// Slabs that the same workers copy, in this order.
struct SessionTransfers::SlabRun {
  std::vector<WorkerIndex> workers;
  std::vector<Slab> slabs;

  // The workers that have some of the box, each with what it has: of copies one.
  static Holders HoldersOf(const TensorSpec& spec, std::optional<int64_t> flat_position, const Box& box);
  // The runs that each holder is asked for where the box lies in memory from `offset_bytes` on.
  static std::vector<SlabRun> OfHolders(const Holders& holders, const Box& box, int64_t element_bytes,
                                        int64_t offset_bytes);
};

// Callbacks may come after an early return, so what they touch is shared. Guarded by the session's mutex, but for the
// poll.
struct SessionTransfers::SlabProgress {
  // Copies of one slab at a time: a slot of a ring, or, where workers copy in place, one of some that keep them busy.
  struct Lane {
    int pending = 0;  // copies under way
    int unsure = 0;   // copies that are not known to have been made
    Slab slab;
  };
  explicit SlabProgress(size_t lane_count) : lanes(lane_count), meter(ThreadMeter()) {}
  // Ends the transfer of an upload. When the workers have answered, an error goes to `give_up`, and the memory may be
  // the ring of the next one.
  static void FinishUpload(SessionTransfers& transfers, uint64_t request, const SlabProgressPtr& progress,
                           const std::shared_ptr<HostMemory>& memory, std::function<void(const absl::Status&)> give_up);
  // Lets workers that may still write bytes of a download that ended early write them elsewhere. With the mutex held.
  void TakeBack(HostMemory& memory) const;

  std::vector<Lane> lanes;
  absl::Status error;
  bool finished = false;
  std::shared_ptr<TransferMeter> meter;  // or null
  WorkPoll poll;                         // of the thread that waits
};

// Walks a piece in slabs along dim 0.
struct SlabCursor {
  const UploadPiece* piece = nullptr;
  int64_t row_bytes = 0;
  int64_t rows_per_slab = 1;
  int64_t next_row = 0;

  int64_t slab_count() const { return (piece->box[0].size() + rows_per_slab - 1) / rows_per_slab; }
  bool done() const { return next_row >= piece->box[0].stop; }
  Box Take();
};

// Pieces of an upload that go through a ring slab by slab: in turns where they are of different workers; one after
// another where several are of one, which takes the rows of its shard in their order.
struct SessionTransfers::SlabSender {
  enum class Order : uint8_t { kInTurns, kOneAfterAnother };
  SlabSender(const std::vector<UploadPiece>& pieces, DType dtype, Order order = Order::kInTurns);
  int64_t ring_bytes() const { return static_cast<int64_t>(slabs) * slab_bytes; }
  // The pieces have been read when it returns; workers may still copy. An error is the first one.
  absl::Status Send(SessionTransfers& transfers, uint64_t request, HostMemory& ring, const SlabProgressPtr& progress);

  const int64_t element_bytes;
  const Order order;
  std::vector<SlabCursor> cursors;
  int64_t slab_bytes = kSlabBytes;
  size_t slabs = 0;
};

// Where a download goes. Without data the memory is made; the memory is null where the data is plain memory of the
// caller.
struct SessionTransfers::Landing {
  char* data = nullptr;
  std::shared_ptr<HostMemory> memory;
};

}  // namespace tessera
