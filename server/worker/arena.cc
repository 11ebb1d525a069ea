#include "server/worker/arena.h"

#include <utility>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {

ArenaTable::ArenaTable(WorkerIndex self, const SharedArena& own) : self_(self), own_(own) {}

absl::Status ArenaTable::CheckPeer(WorkerIndex peer) const {
  if (peer.value < 0 || peer.value >= kMaxWorkers || peer == self_) {
    return absl::InvalidArgumentError(StrCat("worker ", self_.value, ": worker ", peer.value, " is not a peer"));
  }
  return absl::OkStatus();
}

absl::Status ArenaTable::MapPeer(WorkerIndex peer, SharedArena arena) {
  TESSERA_RETURN_IF_ERROR(CheckPeer(peer));
  const size_t index = static_cast<size_t>(peer.value);
  if (arena_of_worker_.size() <= index) arena_of_worker_.resize(index + 1, -1);
  arena_of_worker_[index] = static_cast<int32_t>(arenas_.size());
  arenas_.push_back(std::move(arena));
  return absl::OkStatus();
}

absl::Status ArenaTable::UnmapPeer(WorkerIndex peer) {
  TESSERA_RETURN_IF_ERROR(CheckPeer(peer));
  const size_t index = static_cast<size_t>(peer.value);
  if (index < arena_of_worker_.size()) arena_of_worker_[index] = -1;
  return absl::OkStatus();
}

const SharedArena* ArenaTable::Find(WorkerIndex worker) const {
  if (worker == self_) return &own_;
  const size_t index = static_cast<size_t>(worker.value);
  if (worker.value < 0 || index >= arena_of_worker_.size() || arena_of_worker_[index] < 0) return nullptr;
  return &arenas_[static_cast<size_t>(arena_of_worker_[index])];
}

std::byte* ArenaTable::MemoryOf(WorkerIndex worker) const {
  const SharedArena* arena = Find(worker);
  return arena == nullptr ? nullptr : arena->memory();
}

bool ArenaTable::Contains(WorkerIndex worker, int64_t offset_bytes, int64_t bytes) const {
  const SharedArena* arena = Find(worker);
  return arena != nullptr && offset_bytes >= 0 && bytes >= 0 && offset_bytes <= arena->bytes() &&
         bytes <= arena->bytes() - offset_bytes;
}

CounterPage* ArenaTable::CountersOf(WorkerIndex worker) const {
  const SharedArena* arena = Find(worker);
  return arena == nullptr ? nullptr : arena->counters();
}

}  // namespace tessera
