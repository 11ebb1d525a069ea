#pragma once

// PageToucher: makes the page tables of arenas ahead, in small pieces with pauses between them, so that an op
// that is the first to use a range doesn't pay for a page fault every 4 KiB (a first redistribution was 4
// times slower). Its thread has no lower priority: the kernel holds the lock of the process's memory map
// during a piece, and a holder that gets no core stops every thread of the worker that needs memory.
//
//   PageToucher pages;  pages.Add(arena.memory(), arena.bytes());

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

namespace tessera {

// docs/limits.md: max_touched_bytes. Page tables are 2 MiB for each GiB that is mapped.
inline constexpr int64_t kMaxTouchedBytes = int64_t{64} << 30;

class PageToucher {
 public:
  PageToucher();
  // Ends after the piece at hand.
  ~PageToucher();

  // The range stays mapped while this lives. Ranges are taken in the order in which they came; what is
  // beyond max_touched_bytes in all is left to the ops that use it.
  void Add(std::byte* memory, int64_t bytes);
  // Blocks until all that was added has been touched (tests).
  void Drain();

 private:
  struct Range {
    std::byte* memory = nullptr;
    int64_t bytes = 0;
  };
  void Loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Range> ranges_;
  int64_t added_bytes_ = 0;
  bool busy_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tessera
