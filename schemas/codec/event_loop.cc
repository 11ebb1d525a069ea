#include "schemas/codec/event_loop.h"

#include <sched.h>
#include <time.h>

#include <kj/async-unix.h>

namespace tessera {
namespace {

int64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

void RunLoop(kj::Promise<void> until, kj::AsyncIoContext& io) {
  int64_t polls_until_ns = 0;
  while (!until.poll(io.waitScope)) {
    if (NowNs() < polls_until_ns) {
      sched_yield();
      continue;
    }
    // A wake-up by another thread is for the loop's next turn, which asks for it again.
    if (io.unixEventPort.wait()) io.unixEventPort.wake();
    polls_until_ns = NowNs() + kLoopPollNs;
  }
  until.wait(io.waitScope);
}

}  // namespace tessera
