#include "server/worker/page_toucher.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>

namespace tessera {
namespace {

// Between two pieces the thread can be stopped, and others get at the process's memory map. The kernel
// holds the map's lock during one: small enough to be over within one turn on a core.
constexpr int64_t kPieceBytes = int64_t{1} << 20;
constexpr std::chrono::milliseconds kPause{1};

#ifndef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = 23;  // Linux 5.14; an older one refuses it
#else
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#endif

}  // namespace

PageToucher::PageToucher(int64_t max_touched_bytes)
    : max_touched_bytes_(max_touched_bytes), thread_([this] { Loop(); }) {}

PageToucher::~PageToucher() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void PageToucher::Add(const std::shared_ptr<const SharedArena>& arena) {
  {
    std::lock_guard lock(mutex_);
    std::erase_if(added_, [](const Part& part) { return part.arena.expired(); });
    int64_t left = max_touched_bytes_;
    for (const Part& part : added_) left -= part.bytes;
    const Part part{arena, std::min(arena->bytes(), left)};
    if (part.bytes <= 0) return;
    added_.push_back(part);
    to_touch_.push_back(part);
  }
  changed_.notify_all();
}

void PageToucher::Drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return to_touch_.empty() && !busy_; });
}

void PageToucher::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !to_touch_.empty(); });
    if (stopping_) return;
    Part& next = to_touch_.front();
    std::shared_ptr<const SharedArena> arena = next.arena.lock();
    const int64_t at = next.touched_bytes;
    const int64_t bytes = std::min(next.bytes - at, kPieceBytes);
    next.touched_bytes += bytes;
    if (arena == nullptr || next.touched_bytes == next.bytes) to_touch_.pop_front();
    busy_ = true;
    lock.unlock();
    const bool touched =
        arena == nullptr || madvise(arena->memory() + at, static_cast<size_t>(bytes), kPopulateWrite) == 0;
    arena = nullptr;  // it may be the last share: unmapped without the lock
    lock.lock();
    changed_.wait_for(lock, kPause, [this] { return stopping_; });
    busy_ = false;
    if (!touched) to_touch_.clear();  // the kernel can't, or the host has no memory for page tables
    changed_.notify_all();
  }
}

}  // namespace tessera
