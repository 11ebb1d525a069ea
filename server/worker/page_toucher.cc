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

PageToucher::PageToucher() : thread_([this] { Loop(); }) {}

PageToucher::~PageToucher() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void PageToucher::Add(std::byte* memory, int64_t bytes) {
  {
    std::lock_guard lock(mutex_);
    bytes = std::min(bytes, kMaxTouchedBytes - added_bytes_);
    if (bytes <= 0) return;
    added_bytes_ += bytes;
    ranges_.push_back({memory, bytes});
  }
  changed_.notify_all();
}

void PageToucher::Drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ranges_.empty() && !busy_; });
}

void PageToucher::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !ranges_.empty(); });
    if (stopping_) return;
    Range& next = ranges_.front();
    const Range piece{next.memory, std::min(next.bytes, kPieceBytes)};
    next.memory += piece.bytes;
    next.bytes -= piece.bytes;
    if (next.bytes == 0) ranges_.pop_front();
    busy_ = true;
    lock.unlock();
    const bool touched = madvise(piece.memory, static_cast<size_t>(piece.bytes), kPopulateWrite) == 0;
    lock.lock();
    changed_.wait_for(lock, kPause, [this] { return stopping_; });
    busy_ = false;
    if (!touched) ranges_.clear();  // the kernel can't, or the host has no memory for page tables
    changed_.notify_all();
  }
}

}  // namespace tessera
