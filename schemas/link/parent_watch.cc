#include "schemas/link/parent_watch.h"

#include <poll.h>
#include <sys/stat.h>

#include <spdlog/spdlog.h>

#include "schemas/link/two_party.h"

namespace tessera {
namespace {

constexpr auto kLook = 100 * kj::MILLISECONDS;

bool HasParent(int fd) {
  pollfd pipe{fd, POLLIN, 0};
  return poll(&pipe, 1, 0) >= 0 && (pipe.revents & POLLHUP) == 0;
}

// Whether another process can still open the FIFO.
bool HasName(int fd) {
  struct stat found {};
  return fstat(fd, &found) == 0 && found.st_nlink > 0;
}

// Whether another parent comes before the deadline.
kj::Promise<bool> AwaitNextParent(kj::Timer& timer, int fd, kj::TimePoint deadline) {
  if (HasParent(fd)) return true;
  if (!HasName(fd) || timer.now() >= deadline) return false;
  return timer.afterDelay(kLook).then([&timer, fd, deadline]() { return AwaitNextParent(timer, fd, deadline); });
}

}  // namespace

kj::Promise<void> WhenParentEnds(kj::LowLevelAsyncIoProvider& provider, kj::Timer& timer, int fd, double outlive_s) {
  return WhenPipeCloses(provider, fd).then([&provider, &timer, fd, outlive_s]() -> kj::Promise<void> {
    if (outlive_s <= 0 || !HasName(fd)) return kj::READY_NOW;
    spdlog::warn(
        "the process that started this one is gone; this one goes on, and ends in {} s unless another one "
        "takes it over (--outlive-parent)",
        outlive_s);
    const kj::TimePoint deadline = timer.now() + static_cast<int64_t>(outlive_s * 1e6) * kj::MICROSECONDS;
    return AwaitNextParent(timer, fd, deadline)
        .then([&provider, &timer, fd, outlive_s](bool has_come) -> kj::Promise<void> {
          if (!has_come) {
            spdlog::warn("nobody has taken this process over: it ends");
            return kj::READY_NOW;
          }
          spdlog::info("another process has taken this one over");
          return WhenParentEnds(provider, timer, fd, outlive_s);
        });
  });
}

}  // namespace tessera
