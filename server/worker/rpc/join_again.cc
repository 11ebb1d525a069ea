#include "server/worker/rpc/join_again.h"

#include <utility>

#include <kj/timer.h>

#include "absl/status/status.h"
#include "schemas/link/exception.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr auto kFirstPause = 10 * kj::MILLISECONDS;
constexpr auto kMaxPause = 200 * kj::MILLISECONDS;

// One try. Null: the process is to end.
kj::Maybe<Line> Dial(const JoinAgainParts& parts) {
  kj::WaitScope& scope = parts.io.waitScope;
  auto stream = AwaitUnless(parts.stopped, parts.dialer.Connect(), scope);
  if (stream == nullptr) return nullptr;
  auto connection = kj::heap<DialedConnection>(parts.dialer.kind(), kj::mv(KJ_ASSERT_NONNULL(stream)));
  auto answered = AwaitUnless(parts.stopped, parts.join(*connection), scope);
  if (answered == nullptr) return nullptr;
  JoinAnswer& joined = KJ_ASSERT_NONNULL(answered);
  auto linked = AwaitUnless(parts.stopped, parts.dialer.ConnectLink(joined.getLinkKey()), scope);
  if (linked == nullptr) return nullptr;
  return Line{kj::mv(connection), kj::mv(joined), kj::mv(KJ_ASSERT_NONNULL(linked))};
}

}  // namespace

kj::Maybe<Line> JoinAgain(const JoinAgainParts& parts) {
  auto& timer = parts.io.provider->getTimer();
  const auto give_up = timer.now() + static_cast<int64_t>(parts.outlive_s * 1e6) * kj::MICROSECONDS;
  for (auto pause = kFirstPause;; pause = kj::min(2 * pause, kMaxPause)) {
    kj::Maybe<Line> line;
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&]() { line = Dial(parts); })) {
      // Nobody listens, or the one that listened has ended meanwhile. A coordinator's refusal is another thing.
      if (!absl::IsUnavailable(FromException(*exception))) kj::throwFatalException(kj::mv(*exception));
      if (timer.now() >= give_up) {
        ThrowIfError(absl::DeadlineExceededError(
            StrCat("no coordinator has come back at ", parts.coordinator, " in ", parts.outlive_s, " s (--outlive)")));
      }
    } else {
      return line;
    }
    auto paused = timer.afterDelay(pause).then([]() { return true; });
    if (AwaitUnless(parts.stopped, kj::mv(paused), parts.io.waitScope) == nullptr) return nullptr;
  }
}

}  // namespace tessera
