#pragma once

// DeviceShare: how much of the devices a tenant with a device_share had of late, as a leaky bucket. It fills with the
// device time of the tenant's work, summed over workers, and leaks the share of what all workers have. A tenant whose
// bucket holds more than the share of kWindowUs waits, also when nobody else has work.
//
// The law: let s be the share, n the number of workers, and o the device time of the ops that were under way when the
// bucket was full. The tenant has at most s * n * (T + kWindowUs) + o of any time T.
//
//   DeviceShare share;
//   share.Add(now_us, 700'000 * kTicksPerUs, {.permille = 250, .workers = 2});
//   share.IsOver(now_us, {.permille = 250, .workers = 2});             // true: 500,000 us are a quarter of 2 s
//   share.IsOver(now_us + 400'000, {.permille = 250, .workers = 2});   // false
//
// Values; no clock. Times are integers, so that a replay agrees to the bit.

#include <algorithm>
#include <cstdint>

#include "server/coordinator/fair_turns.h"

namespace tessera {

class DeviceShare {
 public:
  static constexpr int64_t kWindowUs = 1'000'000;  // docs/limits.md: kShareWindowUs

  struct Rate {
    int64_t permille = 0;
    int64_t workers = 0;
  };
  // A negative cost corrects an earlier one.
  void Add(int64_t now_us, int64_t ticks, const Rate& rate) {
    level_ticks_ = std::max<int64_t>(0, Level(now_us, rate) + ticks);
    at_us_ = now_us;
  }
  bool IsOver(int64_t now_us, const Rate& rate) const { return Level(now_us, rate) > TicksOf(kWindowUs, rate); }

 private:
  friend class Snapshot;
  static constexpr int64_t kMaxPassedUs = int64_t{100} * 1'000'000;  // what passes at once, so that products fit

  static int64_t TicksOf(int64_t us, const Rate& rate) {
    return us * kTicksPerUs / 1000 * rate.permille * rate.workers;
  }
  int64_t Level(int64_t now_us, const Rate& rate) const {
    int64_t level = level_ticks_;
    for (int64_t left_us = std::max<int64_t>(0, now_us - at_us_); left_us > 0 && level > 0; left_us -= kMaxPassedUs) {
      level -= TicksOf(std::min(left_us, kMaxPassedUs), rate);
    }
    return std::max<int64_t>(0, level);
  }

  int64_t level_ticks_ = 0;
  int64_t at_us_ = 0;
};

}  // namespace tessera
