#pragma once

// Stream: the bytes of one connection, without blocking. Network: where connections come from. They are the seam
// between the engine (engine.h), which knows messages, and what carries bytes: unix sockets (socket/) or TLS over TCP
// (tls/). One thread uses a network and all of its streams.

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "schemas/types/ids.h"

namespace tessera {

// When a stream goes on.
enum class Next : uint8_t {
  kNow,
  kReadable,  // when its descriptor can be read
  kWritable,  // when it can be written
  kEnded,     // never: error() says why
  kRefused,   // never, and another connection to the same place would end in the same way
};

struct Moved {
  size_t bytes = 0;  // 0 only where the stream doesn't go on now
  Next next = Next::kNow;
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual int fd() const = 0;
  // Reads the bytes that are there, up to all of `to`. The end comes without bytes.
  virtual Moved Read(absl::Span<std::byte> to) = 0;
  // Writes pieces one after another. Bytes that were not taken come again, in as long pieces, perhaps with more behind
  // them.
  virtual Moved Write(absl::Span<const iovec> pieces) = 0;
  // Whether it has bytes that its descriptor doesn't tell of.
  virtual bool HasMore() const { return false; }
  // Why it ended.
  virtual const std::string& error() const = 0;
  // The other side, for people.
  virtual std::string Name() const = 0;
};

// A peer's address: its key, and where its network finds it.
struct PeerAddress {
  uint64_t key = 0;
  std::string where;
};

struct Dialed {
  std::unique_ptr<Stream> stream;  // null: there is none
  std::string error;               // why
  Next next = Next::kNow;          // then kEnded: perhaps later; kRefused: nobody is there
};

class Network {
 public:
  virtual ~Network() = default;
  // A listening descriptor, which is the caller's. Called once, first.
  virtual absl::StatusOr<int> Listen() = 0;
  // The address that peers give to ParseAddress.
  virtual std::string AddressOf(uint64_t key) const = 0;
  virtual std::optional<PeerAddress> ParseAddress(std::string_view address) const = 0;
  // Takes an accepted descriptor.
  virtual std::unique_ptr<Stream> Accept(int fd) = 0;
  // Doesn't block: the connection may be under way.
  virtual Dialed Dial(const std::string& where) = 0;
  // How many connections may wait to say who they are.
  virtual size_t max_guests() const = 0;
  // How long a dialed one waits for the other side's greeting; none: as long as it takes.
  virtual std::optional<int64_t> answer_timeout_ms() const = 0;
  // A guest, or the connection of a peer that is not ready yet, ends for the reason.
  virtual void Note(std::string_view who, std::string_view reason) = 0;
};

}  // namespace tessera
