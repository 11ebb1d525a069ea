#pragma once

// Two processes that do their halves of a job at the same time, for limits measured beside the system:
// the parent and a forked child, one per core, on shared memory. The time of a repetition is from the
// start of the first to the end of the last.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace tessera::bench {

// Zero-filled memory that both processes see, its pages touched. Ends the process when there is none.
std::byte* SharedBytes(size_t bytes);

// Runs `half(0)` here and `half(1)` in a child, `repetitions` times after one that isn't timed; the time
// of each in seconds. `prepare` runs in each process before the first repetition.
std::vector<double> MeasureSeconds(int repetitions, const std::function<void(int)>& prepare,
                                   const std::function<void(int)>& half);

}  // namespace tessera::bench
