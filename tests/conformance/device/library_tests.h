#pragma once

// Parts of the tests of libraries that a GPU worker loads: settings, warnings, calls that wait for streams, hazards.
//
// FindHazards: the hazards that the emulated driver finds where one stream writes memory, another one works on it, and
// the first writes it again, each behind a wait for the other; or where a wait is left out.
//
//   driver.Seed(seed);
//   OneGpu gpu;
//   FindHazards(gpu, {copy, [&] { gpu.device().EnqueueRun(StreamId::kCompute, work); }, copy, 13}, LeftOut::kNothing)
//       .empty();

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "tests/conformance/device/device_arrays.h"

namespace tessera::testing {

// A variable of the environment, which is read when a device is made, and as it opens the library.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Setting() { unsetenv(name_); }

 private:
  const char* const name_;
};

struct Warnings {
  cuda::CudaDeviceOptions Options() {
    return {.warn = [this](const absl::Status& why) { texts.emplace_back(why.message()); }};
  }
  std::vector<std::string> texts;
};

// Work on the compute stream that may wait for all streams is enqueued when none stands still: `enqueue` does so while
// the exchange stream stands at a call of the host, and the work is reported after that call, without an error. The
// driver or its library hears nothing of this function until then.
void ExpectAwaitsStreams(OneGpu& gpu, const std::function<void()>& enqueue, const char* function = "");

// Work on the compute stream, in the batch lane, for which the library makes something by this function: while the call
// takes its time, ops of the light lane are run: one that wants a clear worker, and one of the host.
void ExpectHoldsUpNoLightOp(OneGpu& gpu, const char* function, const std::function<void()>& enqueue);

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
