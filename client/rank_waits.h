#pragma once

// Times of the waits for other ranks (rank_lane.h, rank_mailbox.h), in nanoseconds of SteadyNs.

#include <chrono>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "client/wait.h"

namespace tessera {

inline constexpr int64_t kRankSliceNs = int64_t{kWaitPollMs} * 1'000'000;  // between two looks around, while it waits
inline constexpr int64_t kForeverNs = std::numeric_limits<int64_t>::max() / 2;

// A time-out of a call in nanoseconds, such that a sum with SteadyNs doesn't overflow.
inline int64_t TimeoutNs(int64_t timeout_us) {
  constexpr int64_t kMostUs = kForeverNs / 2000;
  return (timeout_us < kMostUs ? timeout_us : kMostUs) * 1000;
}

inline std::chrono::steady_clock::time_point TimeOf(int64_t ns) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(ns));
}

// The poll of a thread that nobody interrupts, and of one whose interpreter may.
inline absl::Status NeverInterrupted() { return absl::OkStatus(); }
inline absl::Status PollScope() {
  WaitScope scope;
  return scope.Poll();
}

}  // namespace tessera
