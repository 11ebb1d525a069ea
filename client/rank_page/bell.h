#pragma once

// Bells of ranks in mapped memory: how a rank sleeps until another one has written something that it looks for.
//
//   AwaitBell({line.bell, line.sleepers}, patience, [&] { return has_come(); }, until_ns);     // the one that waits
//   write(); RingIfAsleep({line.bell, line.sleepers});                                         // the other one
//
// A rank that waits looks some times, gives its core away in turns (Linger), then sleeps on the bell. The writer looks
// whether anybody sleeps behind a full fence, and the sleeper looks for the news behind one: one of them sees the
// other.

#include <atomic>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "schemas/host/linger.h"

namespace tessera {

// Both are words of the mapped memory, zeros at first.
struct Bell {
  std::atomic<uint32_t>& rung;
  std::atomic<uint32_t>& sleepers;
};

// How long the ranks of a group wait awake.
struct Patience {
  int looks = 1;          // before the first yield
  int64_t linger_ns = 0;  // 0: yields take turns among too many ranks
};
// The patience of a group of so many ranks. `has_strangers`: some are in other sessions of processes (setsid), which
// the kernel schedules in groups of their own, so that a yield doesn't find them.
Patience PatienceOf(int64_t ranks, bool has_strangers);

// Until `done` holds, or the time.
void AwaitBell(Bell bell, Patience patience, Linger& linger, absl::FunctionRef<bool()> done, int64_t until_ns);
// Wakes all that sleep on it, after a write.
void RingIfAsleep(Bell bell);
// The same of a writer that has several bells: behind one FenceBeforeBells.
void FenceBeforeBells();
void RingIfSeenAsleep(Bell bell);
// Wakes all that sleep on it, also those that look for nothing that was written.
void Ring(std::atomic<uint32_t>& rung);

// The host's steady clock.
int64_t SteadyNs();

}  // namespace tessera
