// A link, on any bytes: however they are cut into writes, it gives the same messages and ends once, with the same
// reason, and what it gives is as many messages as the framing says.

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <capnp/serialize.h>
#include <kj/async-io.h>
#include <kj/async-unix.h>

#include "schemas/link/message_link.h"
#include "schemas/link/stream_guard.h"
#include "schemas/session.capnp.h"
#include "schemas/types/status_macros.h"
#include "tests/support/link_pair.h"

namespace tessera {
namespace {

constexpr size_t kMaxBytes = 16 << 10;  // what the socket takes at once

struct Seen {
  std::vector<size_t> words;  // of each message
  int ends = 0;
  std::string why;
  bool operator==(const Seen&) const = default;
};

Seen ReadIn(kj::AsyncIoContext& io, const uint8_t* data, size_t size, size_t piece) {
  Seen seen;
  LinkPair pair = MakeLinkPair();
  MessageLink link(MakeSocketStream(io.unixEventPort, kj::mv(pair.near)));
  link.Start({[&seen](capnp::MessageReader& message) -> kj::Maybe<kj::Promise<void>> {
                const auto root = message.getRoot<wire::ToCoordinator>();
                seen.words.push_back(root.totalSize().wordCount);
                if (root.isBatch()) seen.words.push_back(root.getBatch().getRecords().size());
                return nullptr;
              },
              [&seen](absl::Status status) {
                ++seen.ends;
                seen.why = status.ToString();
              },
              nullptr});
  for (size_t at = 0; at < size; at += piece) {
    const size_t count = std::min(piece, size - at);
    TESSERA_CHECK(send(pair.far.get(), data + at, count, MSG_NOSIGNAL) == static_cast<ssize_t>(count) || seen.ends > 0);
    io.waitScope.poll();
  }
  pair.far = nullptr;
  for (int turn = 0; turn < 1000 && seen.ends == 0; ++turn) io.waitScope.poll();
  TESSERA_CHECK(seen.ends == 1);
  link.Stop();
  return seen;
}

// How many messages there are before the framing ends or breaks.
size_t CountWhole(const uint8_t* data, size_t size) {
  std::vector<capnp::word> words(size / sizeof(capnp::word));
  if (!words.empty()) std::memcpy(static_cast<void*>(words.data()), data, words.size() * sizeof(capnp::word));
  kj::ArrayPtr<const capnp::word> rest(words.data(), words.size());
  size_t count = 0;
  while (rest.size() > 0) {
    const size_t expected = capnp::expectedSizeInWordsFromPrefix(rest);
    if (expected > rest.size()) break;
    ++count;
    rest = rest.slice(expected, rest.size());
  }
  return count;
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;  // NOLINT: the function's name is fixed, the global namespace with it
  static kj::AsyncIoContext& io = *new kj::AsyncIoContext(kj::setupAsyncIo());
  size = std::min(size, kMaxBytes);
  const Seen whole = ReadIn(io, data, size, std::max<size_t>(size, 1));
  TESSERA_CHECK(whole.words.size() <= 2 * CountWhole(data, size));
  if (whole.why == "OK") TESSERA_CHECK(whole.words.size() >= CountWhole(data, size));
  // A rule that is broken in the same write as whole messages hides those before it.
  if (whole.why == "OK") TESSERA_CHECK(ReadIn(io, data, size, 61) == whole);
  TESSERA_CHECK(ReadIn(io, data, size, 8).ends == whole.ends);
  return 0;
}
