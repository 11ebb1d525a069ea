#pragma once

// MemoryMap: which byte ranges of which workers' arenas are taken. Symmetric: a range lies at the same
// offset on all workers of a group, at the lowest offset that is free on all of them.
//
// Free space is kept per class of workers with the same history (at first all of them are one class);
// a request for some of a class splits it, and the parts share what they have in common. A request costs about the
// logarithm of the number of holes for each class that it touches. Where the classes' holes lie apart, the search
// for a place goes by those that it has to pass. Not thread-safe. Pure bookkeeping: no memory is touched.
//
//   map.AddWorker(WorkerIndex(0), 1 << 20);
//   *map.Allocate({WorkerIndex(0)}, 1000, "zeros") == 0;   the next one gets 1024

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schemas/types/ids.h"
#include "server/coordinator/free_ranges.h"

namespace tessera {

class MemoryMap {
 public:
  explicit MemoryMap(int64_t alignment_bytes) : alignment_bytes_(alignment_bytes) {}

  // An arena, all free. A worker that comes back is added anew: its former ranges are forgotten.
  void AddWorker(WorkerIndex worker, int64_t bytes);
  void RemoveWorker(WorkerIndex worker);

  // ResourceExhausted `op: does not fit: 12582912 bytes wanted on each of 4 workers; worker 2 has
  // 1048576 free of 16777,216`. NotFound when a worker is not in the map. 0 bytes take no space.
  // `from`: not below it.
  absl::StatusOr<int64_t> Allocate(absl::Span<const WorkerIndex> workers, int64_t bytes, std::string_view op,
                                   int64_t from = 0);
  // Where Allocate would find room, not below `from`.
  std::optional<int64_t> FirstFit(absl::Span<const WorkerIndex> workers, int64_t bytes, int64_t from) const;
  // The most bytes that Allocate would find room for; 0 when a worker is not in the map.
  int64_t LargestFit(absl::Span<const WorkerIndex> workers) const;
  // The same after these requests, one after another, which change nothing here; absent when one of them doesn't fit.
  // A request for some workers of a class counts as one for all of them.
  struct Request {
    absl::Span<const WorkerIndex> workers;
    int64_t bytes = 0;
  };
  std::optional<int64_t> LargestFitAfter(absl::Span<const Request> requests,
                                         absl::Span<const WorkerIndex> workers) const;
  // Ranges of a map that is built anew, as Allocate gave them; then MergeClasses, once. Workers that are not in the map
  // are passed over.
  void Restore(absl::Span<const WorkerIndex> workers, int64_t offset, int64_t bytes);
  void MergeClasses();
  // The same group, offset and size that Allocate was asked for. Workers that left are passed over.
  void Free(absl::Span<const WorkerIndex> workers, int64_t offset, int64_t bytes);

  bool Knows(WorkerIndex worker) const { return class_of_.contains(worker); }
  // The bytes that a request of so many takes.
  int64_t RoundUp(int64_t bytes) const;
  int64_t TotalBytes(WorkerIndex worker) const;
  int64_t UsedBytes(WorkerIndex worker) const;
  int class_count() const { return static_cast<int>(classes_.size()); }

 private:
  struct Class {
    std::vector<WorkerIndex> workers;  // sorted
    int64_t bytes = 0;
    FreeRanges free;
  };
  // Makes `workers` a union of whole classes and returns them.
  absl::StatusOr<std::vector<Class*>> Isolate(absl::Span<const WorkerIndex> workers);
  // The classes that the workers are of; empty when a worker is not in the map.
  std::vector<Class*> ClassesOf(absl::Span<const WorkerIndex> workers) const;
  void MergeEqual(const std::vector<Class*>& touched);

  int64_t alignment_bytes_;
  std::vector<std::unique_ptr<Class>> classes_;
  absl::flat_hash_map<WorkerIndex, Class*> class_of_;
};

}  // namespace tessera
