#include "server/device/cuda/staging_pool.h"

#include <algorithm>
#include <bit>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera::cuda {
namespace {

constexpr int64_t kLeastBlockBytes = 64 << 10;

}  // namespace

StagingPool::~StagingPool() {
  if (free_.empty()) return;
  gpu_.Enter().IgnoreError();
  for (const auto& [bytes, block] : free_) gpu_.driver->MemFreeHost(block);
}

absl::StatusOr<std::shared_ptr<std::byte>> StagingPool::Take(int64_t bytes) {
  std::byte* block = nullptr;
  int64_t size = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(bytes, kLeastBlockBytes))));
  {
    std::lock_guard lock(mutex_);
    if (const auto found = free_.lower_bound(bytes); found != free_.end()) {
      size = found->first;
      block = found->second;
      free_.erase(found);
    }
  }
  if (block == nullptr) {
    TESSERA_RETURN_IF_ERROR(gpu_.Enter());
    void* made = nullptr;
    TESSERA_RETURN_IF_ERROR(
        gpu_.driver->Check(StrCat("cuMemHostAlloc of ", size, " bytes for messages"),
                           gpu_.driver->MemHostAlloc(&made, static_cast<size_t>(size), CU_MEMHOSTALLOC_PORTABLE)));
    block = static_cast<std::byte*>(made);
  }
  return std::shared_ptr<std::byte>(block, [pool = shared_from_this(), size](std::byte* back) {
    std::lock_guard lock(pool->mutex_);
    pool->free_.emplace(size, back);
  });
}

}  // namespace tessera::cuda
