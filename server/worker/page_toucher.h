#pragma once

// PageToucher: takes the pages of the own arena from the host, so that a worker serves at once whatever its memory is,
// and then makes the page tables of arenas ahead, in small pieces with pauses between them, so that an op that is the
// first to use a range doesn't pay for a page fault every 4 KiB (a first redistribution was 4 times slower). Its thread
// has no lower priority: the kernel holds the lock of the process's memory map during a piece, and a holder that gets
// no core stops every thread of the worker that needs memory; and a process that is killed is there until its last
// thread has had a core.
//
//   PageToucher pages(end_by_name);  pages.Reserve(arena);  pages.Add(arena);

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "server/device/shared_arena.h"

namespace tessera {

// docs/limits.md: max_touched_bytes. Page tables are 2 MiB for each GiB that is mapped.
inline constexpr int64_t kMaxTouchedBytes = int64_t{64} << 30;

class PageToucher {
 public:
  // `no_memory` is called on its thread, where the host has no pages left for what is to be reserved.
  using NoMemory = std::function<void(const absl::Status&)>;
  explicit PageToucher(NoMemory no_memory = nullptr, int64_t max_touched_bytes = kMaxTouchedBytes);
  // Ends after the piece at hand.
  ~PageToucher();

  // All pages of an own arena, from its start, before anything is touched.
  void Reserve(const std::shared_ptr<const SharedArena>& arena);
  // Arenas are taken in the order in which they came; pages beyond max_touched_bytes, of all arenas that there are when
  // one has its turn, are left to the ops that use them. An arena is shared in for a piece at a time: one that is gone
  // counts no more.
  void Add(const std::shared_ptr<const SharedArena>& arena);
  // The pause between two pieces that are touched. Each worker of a host touches the arenas of all: 64 of them on two
  // cores would take both for a minute, while clients wait for their first answers. So many arenas a core lengthen it.
  static std::chrono::microseconds PauseAmong(size_t arenas, int64_t cores);
  // Blocks until all that was added has been reserved and touched (tests).
  void Drain();

 private:
  struct Part {
    std::weak_ptr<const SharedArena> arena;
    int64_t bytes = 0;  // from its start
    int64_t done_bytes = 0;
    bool has_begun = false;
  };
  // The part that has its turn gets what is left of max_touched_bytes. Call with the mutex, without a share in any
  // arena.
  void Begin(Part& part);
  void Loop();
  const NoMemory no_memory_;
  const int64_t max_touched_bytes_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Part> to_reserve_;
  std::deque<Part> to_touch_;
  std::vector<Part> begun_;  // that count
  bool busy_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tessera
