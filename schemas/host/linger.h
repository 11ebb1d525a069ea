#pragma once

// Linger: how a thread waits that will soon be told something. It stays runnable and gives its core away, over and over
// (sched_yield), for kLingerNs; then it is time to sleep. To wake a thread that sleeps on a halted core takes 40 us in
// a virtual machine, and 15 us of the one that wakes it; to find one that yields takes neither. A thread that has work
// loses next to nothing to it. A yield that comes back late ends it: somebody needs the core. If news was there by
// then, it may have waited for that long, and the thread doesn't linger for a while: it sleeps, and is preferred when
// it wakes. The while grows fourfold each time, until lingering has gone well again.
//
//   for (linger.Begin(); !arrived() && linger.Yield();) {}
//   if (arrived()) linger.Arrived(); else sleep();

#include <cstdint>

namespace tessera {

inline constexpr int64_t kLingerNs = 1'000'000;         // docs/limits.md: linger
inline constexpr int64_t kLateYieldNs = 1'000'000;      // docs/limits.md: late_yield
inline constexpr int64_t kNoLingerNs = 5'000'000;       // docs/limits.md: no_linger
inline constexpr int64_t kMaxNoLingerNs = 200'000'000;  // the same

// The slot-th, in turns, of the cores that this process may use: a home for a thread. kNoHome when that can't be told.
inline constexpr int kNoHome = -1;
int HomeCore(int slot);

class Linger {
 public:
  // With a home, the thread goes there when it begins to linger: those who yield stay where they are, and two workers
  // on one core would take turns while another one has nothing to do. It isn't bound: the kernel moves a thread that
  // runs long.
  explicit Linger(int home_core = kNoHome) : home_core_(home_core) {}

  // From now on, for so long.
  void Begin(int64_t linger_ns = kLingerNs);
  // False when it is over; else others had a turn.
  bool Yield();
  // News has come: to be called at once.
  void Arrived();

 private:
  const int home_core_;
  int64_t end_ns_ = 0;
  int64_t late_ns_ = 0;  // when the last yield came back, if that was late
  int64_t busy_until_ns_ = 0;
  int64_t no_linger_ns_ = kNoLingerNs;  // after the next news that came late
  int went_well_ = 0;                   // begun since the last one
};

}  // namespace tessera
