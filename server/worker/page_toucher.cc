#include "server/worker/page_toucher.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace tessera {
namespace {

// Between two pieces a thread can be stopped, and others get at the process's memory map: small enough that who waits
// for the map's lock hardly notices.
constexpr int64_t kPieceBytes = int64_t{256} << 10;
constexpr std::chrono::microseconds kPause{500};
// Holds nothing that others wait for, so it needs no pause. A quarter of a millisecond of a core.
constexpr int64_t kReservedPieceBytes = int64_t{1} << 20;
constexpr int kLowestPriority = 19;

#ifndef MADV_POPULATE_WRITE
constexpr int kPopulateWrite = 23;  // Linux 5.14; an older one refuses it
#else
constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#endif

}  // namespace

PageToucher::PageToucher(NoMemory no_memory, int64_t max_touched_bytes)
    : no_memory_(std::move(no_memory)),
      max_touched_bytes_(max_touched_bytes),
      reserving_([this] { ReservePages(); }),
      touching_([this] { MakePageTables(); }) {}

PageToucher::~PageToucher() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  reserving_.join();
  touching_.join();
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
  changed_.wait(lock, [this] { return to_reserve_.empty() && to_touch_.empty() && !reserves_ && !touches_; });
}

void PageToucher::ReservePages() {
  // Of this thread alone. SCHED_IDLE would get next to nothing of a host that others keep busy.
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kLowestPriority);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !to_reserve_.empty(); });
    if (stopping_) return;
    Part& next = to_reserve_.front();
    std::shared_ptr<const SharedArena> arena = next.arena.lock();
    const int64_t at = next.done_bytes;
    const int64_t bytes = std::min(next.bytes - at, kReservedPieceBytes);
    next.done_bytes += bytes;
    if (arena == nullptr || next.done_bytes == next.bytes) to_reserve_.pop_front();
    reserves_ = true;
    lock.unlock();
    absl::Status reserved;
    if (arena != nullptr) reserved = arena->Reserve(at, bytes);
    if (!reserved.ok() && no_memory_) no_memory_(reserved);
    arena = nullptr;  // it may be the last share: unmapped without the lock
    lock.lock();
    reserves_ = false;
    if (!reserved.ok()) to_reserve_.clear();
    if (to_reserve_.empty()) changed_.notify_all();
  }
}

void PageToucher::Begin(Part& part) {
  part.has_begun = true;
  std::erase_if(begun_, [](const Part& other) { return other.arena.expired(); });
  int64_t left = max_touched_bytes_;
  for (const Part& other : begun_) left -= other.bytes;
  part.bytes = std::min(part.bytes, std::max<int64_t>(left, 0));
  if (part.bytes > 0) begun_.push_back(part);
}

void PageToucher::MakePageTables() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || (to_reserve_.empty() && !reserves_ && !to_touch_.empty()); });
    if (stopping_) return;
    Part& next = to_touch_.front();
    if (!next.has_begun) Begin(next);
    std::shared_ptr<const SharedArena> arena = next.arena.lock();
    const int64_t at = next.done_bytes;
    const int64_t bytes = std::min(next.bytes - at, kPieceBytes);
    next.done_bytes += bytes;
    if (arena == nullptr || next.done_bytes == next.bytes) to_touch_.pop_front();
    touches_ = true;
    lock.unlock();
    const bool touched = arena == nullptr || bytes == 0 ||
                         madvise(arena->memory() + at, static_cast<size_t>(bytes), kPopulateWrite) == 0;
    arena = nullptr;
    lock.lock();
    changed_.wait_for(lock, kPause, [this] { return stopping_; });
    touches_ = false;
    if (!touched) to_touch_.clear();  // the kernel can't, or the host has no memory for page tables
    if (to_touch_.empty()) changed_.notify_all();
  }
}

}  // namespace tessera
