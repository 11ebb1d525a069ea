#pragma once

// RunTimes: when a worker's part of an op ran, by a monotonic clock in nanoseconds: that of the worker's host, or of
// the coordinator's once that has converted it.
//
//   {.started_ns = 100, .ended_ns = 160, .work_ns = 45, .busy_ns = 30}
//   // it waited 15 ns for peers in between, and was kept from its core for 15 more

#include <cstdint>

namespace tessera {

struct RunTimes {
  int64_t started_ns = 0;  // its first work began: earlier waits are not in it
  int64_t ended_ns = 0;
  int64_t work_ns = 0;  // of the time between; the rest it waited, for peers or for messages
  int64_t busy_ns = 0;  // of work_ns, while it had a core, or the GPU: what it costs
  // Whether it had anything to do.
  bool has_run() const { return ended_ns != 0; }
  bool operator==(const RunTimes&) const = default;
};

}  // namespace tessera
