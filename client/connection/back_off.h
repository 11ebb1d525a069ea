#pragma once

// BackOff: the pauses between tries to connect again. Each is twice the one before, up to a longest one, less a random
// part, so that many who lost the same server don't come back at once.
//
//   BackOff pauses;  pauses.Next()  // 10 to 20 ms;  pauses.Next()  // 20 to 40 ms; ... 1 to 2 s

#include <algorithm>
#include <cstdint>
#include <random>

#include <kj/time.h>
#include <kj/units.h>

namespace tessera {

class BackOff {
 public:
  kj::Duration Next() {
    const int64_t most_us = pause_ / kj::MICROSECONDS;
    pause_ = std::min(2 * pause_, kLongest);
    return std::uniform_int_distribution<int64_t>(most_us / 2, most_us)(random_) * kj::MICROSECONDS;
  }
  // The attempt has come off.
  void Reset() { pause_ = kFirst; }

 private:
  static constexpr kj::Duration kFirst = 20 * kj::MILLISECONDS;  // docs/limits.md: reconnect_pause
  static constexpr kj::Duration kLongest = 2 * kj::SECONDS;
  kj::Duration pause_ = kFirst;
  std::minstd_rand random_{std::random_device()()};
};

}  // namespace tessera
