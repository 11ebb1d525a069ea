#include "server/worker/rpc/await_coordinator.h"

#include <algorithm>

#include <spdlog/spdlog.h>

#include "schemas/link/exception.h"

namespace tessera {
namespace {

constexpr kj::Duration kFirstPause = 50 * kj::MILLISECONDS;
constexpr kj::Duration kLongestPause = 1 * kj::SECONDS;  // docs/limits.md: join_pause

kj::Promise<kj::Own<kj::AsyncIoStream>> Dial(Dialer& dialer, kj::Timer& timer, kj::TimePoint end, kj::Duration pause) {
  using Connected = kj::Promise<kj::Own<kj::AsyncIoStream>>;
  return dialer.Connect().then(
      [](kj::Own<kj::AsyncIoStream> stream) -> Connected { return kj::mv(stream); },
      [&dialer, &timer, end, pause](kj::Exception&& exception) -> Connected {
        const kj::TimePoint now = timer.now();
        if (!absl::IsUnavailable(FromException(exception)) || now >= end) return kj::mv(exception);
        if (pause == kFirstPause) {
          spdlog::info("no coordinator listens at {}; waiting up to {} s (--join-timeout)", ToText(dialer.address()),
                       (end - now) / kj::SECONDS);
        }
        return timer.afterDelay(std::min(pause, end - now)).then([&dialer, &timer, end, pause]() {
          return Dial(dialer, timer, end, std::min(2 * pause, kLongestPause));
        });
      });
}

}  // namespace

kj::Promise<kj::Own<kj::AsyncIoStream>> AwaitCoordinator(Dialer& dialer, kj::Timer& timer, double timeout_s) {
  return Dial(dialer, timer, timer.now() + static_cast<int64_t>(timeout_s * 1e6) * kj::MICROSECONDS, kFirstPause);
}

}  // namespace tessera
