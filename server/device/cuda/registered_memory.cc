#include "server/device/cuda/registered_memory.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "schemas/host/monotonic_clock.h"
#include "schemas/types/str_cat.h"

namespace tessera::cuda {
namespace {

// How often idle memory is looked for at least.
constexpr int64_t kLooksPerIdle = 4;
// How often removed memory is looked at that a transfer still uses.
constexpr int64_t kAskNs = 5'000'000;

int64_t PieceBytes(int64_t bytes, int64_t at) { return std::min(kRegisteredPieceBytes, bytes - at); }

}  // namespace

RegisteredMemory::RegisteredMemory(const Gpu& gpu, Options options)
    : gpu_(gpu),
      options_(std::move(options)),
      max_bytes_(sysconf(_SC_PHYS_PAGES) / kRegisteredHostParts * sysconf(_SC_PAGESIZE)) {}

RegisteredMemory::~RegisteredMemory() {
  {
    std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void RegisteredMemory::Add(std::byte* base, int64_t bytes, std::shared_ptr<void> keeper) {
  auto memory = std::make_shared<Memory>();
  memory->base = base;
  memory->bytes = bytes;
  memory->keeper = std::move(keeper);
  memory->used_ns = MonotonicNs();
  std::lock_guard lock(mutex_);
  if (!memory_.try_emplace(base, std::move(memory)).second) return;
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  changed_.notify_all();
}

void RegisteredMemory::Remove(const std::byte* base) {
  std::lock_guard lock(mutex_);
  const auto found = memory_.find(base);
  if (found == memory_.end()) return;
  removed_.push_back(std::move(found->second));
  memory_.erase(found);
  changed_.notify_all();
}

RegisteredMemory::Reached RegisteredMemory::Find(const void* at) {
  const auto* const first = static_cast<const std::byte*>(at);
  std::lock_guard lock(mutex_);
  auto found = memory_.upper_bound(first);
  if (found == memory_.begin()) return {};
  const MemoryPointer& memory = std::prev(found)->second;
  const int64_t offset = first - memory->base;
  if (offset >= memory->registered_bytes) return {};
  memory->used_ns = MonotonicNs();
  return {.use = memory,
          .bytes = PieceBytes(memory->bytes, offset / kRegisteredPieceBytes * kRegisteredPieceBytes) -
                   offset % kRegisteredPieceBytes};
}

void RegisteredMemory::Run() {
  gpu_.Enter().IgnoreError();
  for (;;) {
    std::vector<MemoryPointer> leaving;
    MemoryPointer unfinished;
    {
      std::unique_lock lock(mutex_);
      leaving = TakeLeaving();
      unfinished = FirstUnfinished();
      if (leaving.empty() && unfinished == nullptr) {
        if (is_stopping_ && memory_.empty() && removed_.empty()) return;
        AwaitChange(lock);
        continue;
      }
    }
    options_.in_turn([&] {
      for (const MemoryPointer& memory : leaving) LetGo(*memory);
      if (unfinished != nullptr) RegisterPiece(*unfinished);
    });
  }
}

void RegisteredMemory::AwaitChange(std::unique_lock<std::mutex>& lock) {
  if (memory_.empty() && removed_.empty()) return changed_.wait(lock);
  const int64_t look_ns = options_.idle_ns / kLooksPerIdle;
  changed_.wait_for(lock, std::chrono::nanoseconds(removed_.empty() ? look_ns : std::min(look_ns, kAskNs)));
}

std::vector<RegisteredMemory::MemoryPointer> RegisteredMemory::TakeLeaving() {
  const int64_t now_ns = MonotonicNs();
  std::erase_if(memory_, [&](const auto& entry) {
    const bool leaves = is_stopping_ || entry.second->is_refused || now_ns - entry.second->used_ns > options_.idle_ns;
    if (leaves) removed_.push_back(entry.second);
    return leaves;
  });
  // Nobody finds it any more: a use that has ended doesn't begin again.
  const auto unused = std::partition(removed_.begin(), removed_.end(),
                                     [](const MemoryPointer& memory) { return memory.use_count() > 1; });
  std::vector<MemoryPointer> leaving(std::make_move_iterator(unused), std::make_move_iterator(removed_.end()));
  removed_.erase(unused, removed_.end());
  return leaving;
}

RegisteredMemory::MemoryPointer RegisteredMemory::FirstUnfinished() {
  if (is_stopping_) return nullptr;
  const auto found = std::find_if(memory_.begin(), memory_.end(), [](const auto& entry) {
    return !entry.second->is_refused && entry.second->registered_bytes < entry.second->bytes;
  });
  return found == memory_.end() ? nullptr : found->second;
}

void RegisteredMemory::RegisterPiece(Memory& memory) {
  const int64_t at = memory.registered_bytes, bytes = PieceBytes(memory.bytes, at);
  absl::Status status;
  if (bytes_ + bytes > max_bytes_) {
    status = absl::ResourceExhaustedError(StrCat(bytes, " bytes beside ", bytes_, " of ", max_bytes_,
                                                 " that may be registered (max_gpu_registered_bytes)"));
  } else {
    status = gpu_.driver->Check(
        StrCat("cuMemHostRegister of ", bytes, " bytes"),
        gpu_.driver->MemHostRegister(memory.base + at, static_cast<size_t>(bytes), CU_MEMHOSTREGISTER_PORTABLE));
  }
  if (status.ok()) {
    bytes_ += bytes;
    memory.registered_bytes = at + bytes;
    return;
  }
  memory.is_refused = true;
  if (!std::exchange(has_refused_, true)) options_.refused(status);
}

void RegisteredMemory::LetGo(const Memory& memory) {
  for (int64_t at = 0; at < memory.registered_bytes; at += kRegisteredPieceBytes) {
    gpu_.driver->MemHostUnregister(memory.base + at);
    bytes_ -= PieceBytes(memory.bytes, at);
  }
}

}  // namespace tessera::cuda
