#pragma once

// Counters: how workers of one host know of each other's progress. Every worker has a page of shared
// memory in front of its arena; per stream one monotone counter, `ordinal << 12 | phase`.
//
//   CounterValue(Ordinal(7), 2): phase 2 of instruction 7 is done;  DoneValue(Ordinal(7)): all of it.
//
// A worker publishes with release order, then rings the bells of every peer that says it watches counters.
// Waiting spins briefly, then sleeps on the own bell (a futex), never on a peer's memory.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "schemas/types/ids.h"
#include "schemas/types/streams.h"

namespace tessera {

inline constexpr int kPhaseBits = 12;
inline constexpr uint64_t kMaxPhases = (1u << kPhaseBits) - 2;  // docs/limits.md: max_phases
inline constexpr int64_t kCounterPageBytes = 4096;

constexpr uint64_t CounterValue(Ordinal ordinal, uint64_t phase) { return ordinal.value << kPhaseBits | phase; }
constexpr uint64_t DoneValue(Ordinal ordinal) { return ordinal.value << kPhaseBits | ((1u << kPhaseBits) - 1); }

// How the threads of a lane (schemas/types/streams.h) are woken.
struct LaneBell {
  std::atomic<uint32_t> doorbell;  // futex word: any change means "look again"
  std::atomic<uint32_t> sleeping;  // threads of the lane that sleep, or are about to
  std::atomic<uint32_t> watching;  // of them, those that wait for a counter
};

// Lies at the start of a worker's shared memory. All zero is the initial state.
struct CounterPage {
  std::atomic<uint64_t> counters[kStreamCount];
  alignas(64) LaneBell bells[kLaneCount];
  LaneBell& bell(Lane lane) { return bells[static_cast<size_t>(lane)]; }
};
static_assert(sizeof(std::atomic<uint64_t>[kStreamCount]) <= 64, "the counters are one cache line");
static_assert(sizeof(CounterPage) <= kCounterPageBytes);

struct CounterWait {
  WorkerIndex worker;
  StreamId stream = StreamId::kCompute;
  uint64_t value = 0;
  bool operator==(const CounterWait&) const = default;
};

// A wait in a device's queue. A peer's pages are numbered as they come; the wait is for the page that was mapped when
// it was enqueued. A peer that starts again begins at 0, and may itself wait for the one that waits here.
struct PageWait : CounterWait {
  uint32_t page = 0;
};

}  // namespace tessera
