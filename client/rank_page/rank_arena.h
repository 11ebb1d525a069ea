#pragma once

// RankArena: memory of the ranks of a group that all of them have mapped, a part for each. Others read and write a
// rank's tensors there where they lie, so a collective copies nothing into the page (rank_page.h).
//
//   std::byte* data = arena->Allocate(64 << 20);
//   arena->OffsetOf(data, 64 << 20);            // 0: where it begins in the own part
//   peers: arena->At(rank, 0, 64 << 20);        // the same bytes
//
// The file is sparse: memory is taken as it is allocated, lowest places first, and kept for the next ones when it is
// free. Allocate and Free may be called from any thread, At from one at a time.
//
// Damage: At looks whether a range that another rank says is in that rank's part, so such a rank spoils what lies in
// the arena of its own group, and nothing else.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

class RankArena {
 public:
  static constexpr int64_t kPartBytes = int64_t{8} << 30;  // docs/limits.md: rank_arena
  static constexpr int64_t kNowhere = -1;

  // A sealed, sparse memfd for so many ranks; the descriptor is the caller's.
  static absl::StatusOr<int> MakeFile(int64_t ranks);
  // The descriptor stays the caller's. InvalidArgument for any other file.
  static absl::StatusOr<std::shared_ptr<RankArena>> Open(int fd, int64_t rank, int64_t ranks);
  ~RankArena();
  RankArena(const RankArena&) = delete;
  RankArena& operator=(const RankArena&) = delete;

  // Begins at a multiple of 4 KiB. Null where the part is full, or the host has no memory.
  std::byte* Allocate(int64_t bytes);
  void Free(std::byte* data);
  // The offset of a range that lies in the own part as a whole, else kNowhere.
  int64_t OffsetOf(const void* data, int64_t bytes) const;
  // Null for a range that isn't in the rank's part.
  std::byte* At(int64_t rank, int64_t offset, int64_t bytes);

 private:
  RankArena(int fd, int64_t rank, int64_t ranks, std::byte* own);
  std::byte* Map(int64_t rank) const;

  const int fd_;
  const int64_t rank_;
  std::vector<std::byte*> parts_;  // null: not mapped yet
  std::mutex mutex_;
  std::map<int64_t, int64_t> free_, taken_;  // offset -> bytes
  int64_t reserved_ = 0;                     // bytes from the beginning for which there is memory
};

}  // namespace tessera
