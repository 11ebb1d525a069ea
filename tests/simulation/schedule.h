#pragma once

// Schedule: a clock that jumps from event to event. Events of one time happen in the order in which they were planned.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

namespace tessera {

class Schedule {
 public:
  int64_t now_us() const { return now_us_; }
  void At(int64_t us, std::function<void()> happen) { events_.emplace(std::max(us, now_us_), std::move(happen)); }
  void In(int64_t us, std::function<void()> happen) { At(now_us_ + us, std::move(happen)); }
  bool empty() const { return events_.empty(); }
  // The next one.
  void Step() {
    auto next = events_.extract(events_.begin());
    now_us_ = next.key();
    next.mapped()();
  }

 private:
  int64_t now_us_ = 0;
  std::multimap<int64_t, std::function<void()>> events_;
};

}  // namespace tessera
