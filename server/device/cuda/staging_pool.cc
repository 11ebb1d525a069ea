#include "server/device/cuda/staging_pool.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera::cuda {
namespace {

constexpr int64_t kLeastBlockBytes = 64 << 10;

int64_t BlockBytes(int64_t bytes) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(bytes, kLeastBlockBytes))));
}

}  // namespace

StagingPool::~StagingPool() {
  if (host_.empty()) return;
  gpu_.Enter().IgnoreError();
  for (const auto& [bytes, block] : host_) gpu_.driver->MemFreeHost(block);
}

absl::StatusOr<std::shared_ptr<std::byte>> StagingPool::Take(int64_t bytes, StagingPlace place) {
  return place == StagingPlace::kHost ? TakeHost(bytes) : TakeDevice(bytes);
}

void StagingPool::FreeLarge() {
  std::vector<std::shared_ptr<DeviceMemory>> large;
  std::lock_guard lock(mutex_);
  has_large_ = false;
  std::swap(large, large_);
}

absl::StatusOr<std::shared_ptr<std::byte>> StagingPool::TakeHost(int64_t bytes) {
  std::byte* block = nullptr;
  int64_t size = BlockBytes(bytes);
  {
    std::lock_guard lock(mutex_);
    if (const auto found = host_.lower_bound(bytes); found != host_.end()) {
      size = found->first;
      block = found->second;
      host_.erase(found);
    }
  }
  if (block == nullptr) {
    TESSERA_RETURN_IF_ERROR(gpu_.Enter());
    void* made = nullptr;
    TESSERA_RETURN_IF_ERROR(
        gpu_.driver->Check(StrCat("cuMemHostAlloc of ", size, " bytes for messages"),
                           gpu_.driver->MemHostAlloc(&made, static_cast<size_t>(size), CU_MEMHOSTALLOC_PORTABLE)));
    block = static_cast<std::byte*>(made);
    std::lock_guard lock(mutex_);
    pinned_.emplace(block, size);
  }
  return std::shared_ptr<std::byte>(block, [pool = shared_from_this(), size](std::byte* back) {
    std::lock_guard lock(pool->mutex_);
    pool->host_.emplace(size, back);
  });
}

bool StagingPool::IsPinned(const void* memory, int64_t bytes) const {
  const auto* const first = static_cast<const std::byte*>(memory);
  std::lock_guard lock(mutex_);
  auto block = pinned_.upper_bound(first);
  if (block == pinned_.begin()) return false;
  --block;
  return first + bytes <= block->first + block->second;
}

absl::StatusOr<std::shared_ptr<std::byte>> StagingPool::TakeDevice(int64_t bytes) {
  std::shared_ptr<DeviceMemory> block;
  {
    std::lock_guard lock(mutex_);
    if (const auto found = device_.lower_bound(bytes); found != device_.end()) {
      block = std::move(found->second);
      device_.erase(found);
    }
  }
  if (block == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(block, MakeMemory(gpu_, BlockBytes(bytes), Sharing::kPrivate));
  }
  std::byte* const at = block->data();
  return std::shared_ptr<std::byte>(at, [pool = shared_from_this(), block = std::move(block)](std::byte*) mutable {
    std::lock_guard lock(pool->mutex_);
    const int64_t size = block->bytes();
    if (size > kMaxKeptDeviceBytes) {
      pool->has_large_ = true;
      return pool->large_.push_back(std::move(block));
    }
    pool->device_.emplace(size, std::move(block));
  });
}

}  // namespace tessera::cuda
