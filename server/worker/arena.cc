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

absl::Status ArenaTable::MapPeer(WorkerIndex peer, std::shared_ptr<const SharedArena> arena) {
  TESSERA_RETURN_IF_ERROR(CheckPeer(peer));
  const size_t index = static_cast<size_t>(peer.value);
  if (peers_.size() <= index) peers_.resize(index + 1);
  peers_[index] = std::move(arena);
  return absl::OkStatus();
}

std::shared_ptr<const SharedArena> ArenaTable::UnmapPeer(WorkerIndex peer) {
  const size_t index = static_cast<size_t>(peer.value);
  return peer.value < 0 || index >= peers_.size() ? nullptr : std::exchange(peers_[index], nullptr);
}

const SharedArena* ArenaTable::Find(WorkerIndex worker) const {
  if (worker == self_) return &own_;
  const size_t index = static_cast<size_t>(worker.value);
  return worker.value < 0 || index >= peers_.size() ? nullptr : peers_[index].get();
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
