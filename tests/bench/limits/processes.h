#pragma once

// Processes that do their parts of a job at the same time, for limits measured beside the system: the
// parent and forked children on shared memory, not bound to cores, as workers aren't. The time of a
// repetition is from the start of the first part to the end of the last.
//
// Or children that are asked each time, as a service's workers are: they sleep until a byte comes over a
// unix socket, do their parts, and answer with a byte. The time is that of the parent, who does no part:
// from the question to the last answer. It asks them itself, or asks one process that asks them, as a
// client asks a coordinator.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace tessera::bench {

// Zero-filled memory that all processes see, its pages touched. Ends the process when there is none.
std::byte* SharedBytes(size_t bytes);

// A part of a job, as it sees itself and the others.
class Team {
 public:
  virtual ~Team() = default;
  virtual int self() const = 0;
  virtual int size() const = 0;
  // Returns when all have called it: shared counters, no call into the kernel but yields.
  virtual void Meet() = 0;
};

enum class Asked : uint8_t { kNever, kDirectly, kThroughOne };

struct Job {
  int processes = 2;
  int repetitions = 11;
  // Runs in each process before the first repetition; may be empty.
  std::function<void(Team&)> prepare;
  std::function<void(Team&)> run;
  Asked asked = Asked::kNever;
};

// Seconds of each repetition, after two that aren't timed.
std::vector<double> MeasureSeconds(const Job& job);

// Ends the process, saying what was wrong, unless `right`.
void CheckValues(bool right, const char* what);

}  // namespace tessera::bench
