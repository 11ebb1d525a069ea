#pragma once

// Sleeping on a lane's bell of the own counter page, and waking others on theirs (counters.h).
//
// Law: a sleeper says that it sleeps, then looks once more, then sleeps on the doorbell it saw before it
// looked; a publisher stores, then asks whether the other sleeps. All four accesses are sequentially
// consistent, so at least one of the two sees the other, and no wake-up is lost.

#include <atomic>
#include <cstdint>

#include "server/device/counters.h"

namespace tessera {

// Blocks while the word has this value, until it is rung; may return early. Works across processes.
void FutexWait(std::atomic<uint32_t>& word, uint32_t value);
void FutexWakeAll(std::atomic<uint32_t>& word);

// There is something to do for the lane: changes its doorbell, and wakes its threads that sleep.
void Ring(LaneBell& bell);
// A counter has changed: rings where a thread sleeps that waits for one. The others look by themselves, or needn't.
void RingWatchers(CounterPage& page);

// One turn of a spinning wait.
void SpinPause();

}  // namespace tessera
