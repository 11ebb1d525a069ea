#pragma once

// ThreadCpuClock: how much of an item's time its thread had a core for. Lanes, and other processes, share cores: wall
// time counts what a thread was kept from, and a neighbour's load would become the op's cost.
//
// The kernel's clock costs 0.2 us to read, so short items are not measured: below kShortItemNs all of the wall time
// counts, since who loses a core loses it for longer. For the others the clock is read when they end; its reading when
// they began is reckoned from the last one.
//
//   clock.Wake();                                      // the thread slept: what it used since doesn't count
//   int64_t busy_ns = clock.BusyNs(began_ns, ended_ns);   // of the item that has just ended

#include <algorithm>
#include <cstdint>

#include "schemas/host/monotonic_clock.h"
#include "schemas/host/thread_clock.h"

namespace tessera {

class ThreadCpuClock {
 public:
  static constexpr int64_t kShortItemNs = 20'000;

  void Wake() { Read(MonotonicNs()); }

  // Never more than the wall time.
  int64_t BusyNs(int64_t began_ns, int64_t ended_ns) {
    const int64_t wall_ns = ended_ns - began_ns;
    if (wall_ns < kShortItemNs) return wall_ns;
    const int64_t cpu_then_ns = cpu_ns_ + (began_ns - read_ns_);  // no more than the wall time in between
    Read(ended_ns);
    return std::clamp(cpu_ns_ - cpu_then_ns, int64_t{0}, wall_ns);
  }

 private:
  void Read(int64_t now_ns) {
    cpu_ns_ = ThreadCpuNs();
    read_ns_ = now_ns;
  }

  int64_t cpu_ns_ = 0;
  int64_t read_ns_ = 0;  // when
};

}  // namespace tessera
