#include "server/worker/page_toucher.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace tessera {
namespace {

// Between two pieces the thread can be stopped, others get its core, and the process's memory map, whose lock the
// kernel holds while it makes page tables. A piece is some 60 us of a core where pages are taken, and 20 where they are
// mapped.
constexpr int64_t kPieceBytes = int64_t{256} << 10;
constexpr std::chrono::microseconds kPause{250};
constexpr int64_t kArenasPerCore = 2;  // that are touched at full speed

#ifndef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = 23;  // Linux 5.14; an older one refuses it
#else
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#endif

int64_t Cores() {
  static const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  return cores;
}

}  // namespace

std::chrono::microseconds PageToucher::PauseAmong(size_t arenas, int64_t cores) {
  return kPause * std::max<int64_t>(1, static_cast<int64_t>(arenas) / (kArenasPerCore * cores));
}

PageToucher::PageToucher(NoMemory no_memory, int64_t max_touched_bytes)
    : no_memory_(std::move(no_memory)), max_touched_bytes_(max_touched_bytes), thread_([this] { Loop(); }) {}

PageToucher::~PageToucher() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void PageToucher::Reserve(const std::shared_ptr<const SharedArena>& arena) {
  {
    std::lock_guard lock(mutex_);
    to_reserve_.push_back({arena, arena->bytes()});
  }
  changed_.notify_all();
}

void PageToucher::Add(const std::shared_ptr<const SharedArena>& arena) {
  {
    std::lock_guard lock(mutex_);
    to_touch_.push_back({arena, arena->bytes()});
  }
  changed_.notify_all();
}

void PageToucher::Drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return to_reserve_.empty() && to_touch_.empty() && !busy_; });
}

void PageToucher::Begin(Part& part) {
  part.has_begun = true;
  std::erase_if(begun_, [](const Part& other) { return other.arena.expired(); });
  int64_t left = max_touched_bytes_;
  for (const Part& other : begun_) left -= other.bytes;
  part.bytes = std::min(part.bytes, std::max<int64_t>(left, 0));
  if (part.bytes > 0) begun_.push_back(part);
}

void PageToucher::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !to_reserve_.empty() || !to_touch_.empty(); });
    if (stopping_) return;
    const bool reserves = !to_reserve_.empty();
    std::deque<Part>& parts = reserves ? to_reserve_ : to_touch_;
    Part& next = parts.front();
    if (!reserves && !next.has_begun) Begin(next);
    std::shared_ptr<const SharedArena> arena = next.arena.lock();
    const int64_t at = next.done_bytes;
    const int64_t bytes = std::min(next.bytes - at, kPieceBytes);
    next.done_bytes += bytes;
    if (arena == nullptr || next.done_bytes == next.bytes) parts.pop_front();
    busy_ = true;
    lock.unlock();
    absl::Status reserved;
    bool touched = true;
    if (arena != nullptr && reserves) {
      reserved = arena->Reserve(at, bytes);
      if (!reserved.ok() && no_memory_) no_memory_(reserved);
    } else if (arena != nullptr && bytes > 0) {
      touched = madvise(arena->memory() + at, static_cast<size_t>(bytes), kPopulateWrite) == 0;
    }
    arena = nullptr;  // it may be the last share: unmapped without the lock
    lock.lock();
    changed_.wait_for(lock, reserves ? kPause : PauseAmong(begun_.size() + to_touch_.size(), Cores()),
                      [this] { return stopping_; });
    busy_ = false;
    if (!reserved.ok()) to_reserve_.clear();
    if (!touched) to_touch_.clear();  // the kernel can't, or the host has no memory for page tables
    changed_.notify_all();
  }
}

}  // namespace tessera
