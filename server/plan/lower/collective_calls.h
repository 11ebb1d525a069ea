#pragma once

// Which exchanges of a plan are one call of a collective library (NCCL): a pure function of the plan, so that all
// workers of a call say the same of it, and know it without asking.
//
//   all_gather %0 [S(0)] -> %1 [R]  on mesh(4), 2 rows each      AllGather of workers 0, 1, 2, 3
//   all_gather %0 [S(0), S(1)] -> %1 [R, S(1)]  on mesh(2,2)     two of them: workers 0, 2 and workers 1, 3
//
// Workers are ranks in the order of their numbers. An exchange splits into groups of workers that have to do with each
// other; a group is a call where each element that moves has its place, in the sender's memory and in the receiver's,
// as the call has it: in one piece, of equal size for all ranks, at multiples of that size. An exchange that is no call
// goes by messages of pairs.
//
// Sums are calls for integers of 32 and 64 bits alone, which wrap and have one answer in any order. The order of a
// float's sum is the plan's (law 4), and a library's is its own.

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "schemas/types/dtype.h"
#include "schemas/types/ids.h"
#include "server/plan/plan.h"

namespace tessera {

// Pieces of an exchange that are looked at, of all its workers together: an exchange with more goes by messages.
inline constexpr size_t kMaxCollectivePieces = 1 << 16;  // docs/limits.md: max_collective_pieces

enum class CallKind : uint8_t {
  kAllGather = 0,      // every rank gives one piece, and has all of them, by rank
  kBroadcast = 1,      // the root gives one piece to all others
  kReduceScatter = 2,  // every rank has the sum of one piece, by rank
};

// Bytes of a buffer: `at` from the parameter's offset on, and `by_rank` times the rank further.
struct CallMemory {
  int parameter = 0;
  int64_t at = 0;
  int64_t by_rank = 0;
  int64_t Of(size_t rank) const { return at + by_rank * static_cast<int64_t>(rank); }
  bool operator==(const CallMemory&) const = default;
};

struct CollectiveCall {
  CallKind kind = CallKind::kAllGather;
  std::vector<WorkerIndex> workers;  // by rank: sorted
  size_t root = 0;                   // of a broadcast
  DType dtype = DType::kF32;
  int64_t count = 0;  // elements of one piece
  CallMemory source;  // what a rank gives: of a reduce_scatter all pieces, else one
  // Where it has the result: of an all_gather all pieces, else one. A broadcast's root has it there, too, unless it
  // keeps nothing.
  CallMemory destination;
  bool root_keeps = true;

  // Whether a rank has something of its own to give, and a place for what it takes.
  bool gives(size_t rank) const { return kind != CallKind::kBroadcast || rank == root; }
  bool takes(size_t rank) const { return kind != CallKind::kBroadcast || rank != root || root_keeps; }
  int64_t piece_bytes() const { return count * SizeBytes(dtype); }
  bool operator==(const CollectiveCall&) const = default;
};

// Bytes that a rank takes from another one's memory, each once, as the plan counts them.
int64_t BytesTaken(const CollectiveCall& call, size_t from, size_t to);

// The calls of the phase's steps (`first` to before `end`), by group; empty where it is none. All groups of a phase
// with several steps are calls, of the same workers in each step; a phase with one has what groups are. Phases with
// anything but exchanges have none.
std::vector<CollectiveCall> CallsOfPhase(const Plan& plan, size_t first, size_t end);

// Whether all of a plan's workers have the library, and none maps another one's memory: so calls are made.
bool MayMakeCalls(absl::Span<const WorkerIndex> workers, absl::FunctionRef<bool(WorkerIndex)> has_library,
                  absl::FunctionRef<int32_t(WorkerIndex)> host_of);

// "AllGather".
std::string_view ToText(CallKind kind);

}  // namespace tessera
