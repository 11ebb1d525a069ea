#pragma once

// Counters: how workers of one host know of each other's progress. Every worker has a page of shared
// memory in front of its arena; per stream one monotone counter, `ordinal << 12 | phase`.
//
//   CounterValue(Ordinal(7), 2): phase 2 of instruction 7 is done;  DoneValue(Ordinal(7)): all of it.
//
// A worker publishes with release order, then rings the doorbell of every peer that says it sleeps.
// Waiting spins briefly, then sleeps on the own doorbell (a futex), never on a peer's memory.

#include <atomic>
#include <cstdint>

#include "schemas/types/ids.h"

namespace tessera {

// Nothing on kProbe waits for anything: what ends there shows that the device works.
enum class StreamId : uint8_t { kCompute = 0, kExchange = 1, kProbe = 2, kIo = 3 };
inline constexpr int kStreamCount = 4;
inline constexpr int kPhaseBits = 12;
inline constexpr uint64_t kMaxPhases = (1u << kPhaseBits) - 2;  // docs/limits.md: max_phases
inline constexpr int64_t kCounterPageBytes = 4096;

constexpr uint64_t CounterValue(Ordinal ordinal, uint64_t phase) { return ordinal.value << kPhaseBits | phase; }
constexpr uint64_t DoneValue(Ordinal ordinal) { return ordinal.value << kPhaseBits | ((1u << kPhaseBits) - 1); }

// Lies at the start of a worker's shared memory. All zero is the initial state.
struct CounterPage {
  std::atomic<uint64_t> counters[kStreamCount];
  alignas(64) std::atomic<uint32_t> doorbell;  // futex word: any change means "look again"
  std::atomic<uint32_t> sleeping;              // 1 while the owner sleeps or is about to
};
static_assert(sizeof(CounterPage) <= kCounterPageBytes);

struct CounterWait {
  WorkerIndex worker;
  StreamId stream = StreamId::kCompute;
  uint64_t value = 0;
  bool operator==(const CounterWait&) const = default;
};

}  // namespace tessera
