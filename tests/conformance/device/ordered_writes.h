#pragma once

// FindHazards: the hazards that the emulated driver finds where one stream writes memory, another one works on it, and the
// first writes it again, each behind a wait for the other; or where a wait is left out.
//
//   driver.Seed(seed);
//   OneGpu gpu;
//   FindHazards(gpu, {copy, [&] { gpu.device().EnqueueRun(StreamId::kCompute, work); }, copy, 13}, LeftOut::kNothing)
//       .empty();

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/conformance/device/device_arrays.h"

namespace tessera::testing {

enum class LeftOut : uint8_t { kNothing, kReadersWait, kWritersWait };

struct OrderedWrites {
  CopyWork before;             // on the exchange stream
  std::function<void()> read;  // enqueues the work on the compute stream
  CopyWork after;              // on the exchange stream
  // Calls of the driver that are queued when all is enqueued: the copies, the work's, two signals and two reports; and
  // three to a wait, as the other stream records an event, and the host looks before it.
  int queued = 13;
};

// All is enqueued before anything runs. The work has run once before that: what is made once is made.
std::vector<std::string> FindHazards(OneGpu& gpu, const OrderedWrites& writes, LeftOut left_out);

}  // namespace tessera::testing
