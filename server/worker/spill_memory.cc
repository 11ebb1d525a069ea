#include "server/worker/spill_memory.h"

#include <algorithm>

#include <spdlog/spdlog.h>

namespace tessera {
namespace {

constexpr int64_t kPiecesOfSlab = kSpillSlabBytes / kSpillPieceBytes;

}  // namespace

SpillMemory::SpillMemory(Device& device, int64_t max_bytes) : device_(device) {
  pool_->pieces_left = max_bytes / kSpillPieceBytes;
}

// The last one is smaller where the bound says so. A host that gives none is asked no more.
void SpillMemory::TakeSlab(Pool& pool) const {
  const int64_t pieces = std::min(pool.pieces_left, kPiecesOfSlab);
  absl::StatusOr<std::shared_ptr<std::byte>> slab = device_.MakeStaging(pieces * kSpillPieceBytes, StagingPlace::kHost);
  if (!slab.ok()) {
    pool.is_refused = true;
    spdlog::warn("spill: the host gives no more memory: {}", std::string(slab.status().message()));
    return;
  }
  const auto first = static_cast<int64_t>(pool.slabs.size()) * kPiecesOfSlab;
  pool.slabs.push_back(*std::move(slab));
  pool.pieces_left -= pieces;
  for (int64_t piece = first; piece < first + pieces; ++piece) pool.free.insert(piece);
}

std::shared_ptr<const SpillMemory::Kept> SpillMemory::Create(uint64_t number, int64_t bytes) {
  const auto wanted = static_cast<size_t>((bytes + kSpillPieceBytes - 1) / kSpillPieceBytes);
  std::vector<Run> runs;
  std::vector<int64_t> pieces;
  {
    Pool& pool = *pool_;
    const std::lock_guard lock(pool.mutex);
    const auto may_come = static_cast<size_t>(pool.is_refused ? 0 : pool.pieces_left);
    if (pool.free.size() + may_come < wanted) return nullptr;
    while (pool.free.size() < wanted && pool.pieces_left > 0 && !pool.is_refused) TakeSlab(pool);
    if (pool.free.size() < wanted) return nullptr;
    int64_t left = bytes;
    while (pieces.size() < wanted) {
      const int64_t piece = *pool.free.begin();
      pool.free.erase(pool.free.begin());
      std::byte* const at =
          pool.slabs[static_cast<size_t>(piece / kPiecesOfSlab)].get() + piece % kPiecesOfSlab * kSpillPieceBytes;
      const int64_t count = std::min(left, kSpillPieceBytes);
      const bool goes_on = !pieces.empty() && pieces.back() + 1 == piece && piece % kPiecesOfSlab != 0;
      if (goes_on) {
        runs.back().bytes += count;
      } else {
        runs.push_back({at, count});
      }
      left -= count;
      pieces.push_back(piece);
    }
    pool.taken_pieces += static_cast<int64_t>(pieces.size());
  }
  std::shared_ptr<const Kept> made(new Kept(std::move(runs), std::move(pieces)), [pool = pool_](const Kept* gone) {
    {
      const std::lock_guard lock(pool->mutex);
      pool->free.insert(gone->pieces_.begin(), gone->pieces_.end());
      pool->taken_pieces -= static_cast<int64_t>(gone->pieces_.size());
    }
    delete gone;
  });
  const std::lock_guard lock(mutex_);
  kept_[number] = made;
  return made;
}

std::shared_ptr<const SpillMemory::Kept> SpillMemory::Find(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = kept_.find(number);
  return found == kept_.end() ? nullptr : found->second;
}

void SpillMemory::Forget(uint64_t number) {
  std::map<uint64_t, std::shared_ptr<const Kept>>::node_type gone;
  const std::lock_guard lock(mutex_);
  gone = kept_.extract(number);
}

int64_t SpillMemory::used_bytes() const {
  const std::lock_guard lock(pool_->mutex);
  return pool_->taken_pieces * kSpillPieceBytes;
}

}  // namespace tessera
