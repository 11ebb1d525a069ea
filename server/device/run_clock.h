#pragma once

// RunClock: what a stream of a device has done since its last report, as RunTimes. Used by one thread at a time.

#include <cstdint>
#include <utility>

#include "schemas/types/run_times.h"

namespace tessera {

class RunClock {
 public:
  // `busy_ns`: of that time, while it had a core.
  void Worked(int64_t began_ns, int64_t ended_ns, int64_t busy_ns) {
    Passed(began_ns);
    Passed(ended_ns);
    times_.work_ns += ended_ns - began_ns;
    times_.busy_ns += busy_ns;
  }
  // Something that is no work of the device's own began, or ended: a message.
  void Passed(int64_t now_ns) {
    if (times_.started_ns == 0) times_.started_ns = now_ns;
    times_.ended_ns = now_ns;
  }
  // A report takes them.
  RunTimes Take() { return std::exchange(times_, {}); }

 private:
  RunTimes times_;
};

}  // namespace tessera
