#pragma once

// LinkStream: the bytes under a MessageLink. Bytes that it can write or read at once it does; else it says when to come
// again. Behind it is a socket's descriptor (unix sockets: nothing is copied on the way), or any stream of KJ (TLS).

#include <sys/uio.h>

#include <cstddef>

#include <kj/async-io.h>
#include <kj/async-unix.h>

#include "absl/types/span.h"
#include "schemas/link/stream_kind.h"

namespace tessera {

class LinkStream {
 public:
  enum class Reading : unsigned char { kBytes, kNothing, kEnded };
  struct Read {
    Reading what;
    size_t bytes = 0;
  };
  virtual ~LinkStream() noexcept(false) = default;

  // Reads the bytes that are there, up to so many, without waiting.
  virtual Read TryRead(std::byte* to, size_t room) = 0;
  // After TryRead gave kNothing, or less than there was room for.
  virtual kj::Promise<void> WhenReadable() = 0;
  // How many of the pieces' bytes it took. To a side that is gone: all of them, since the reading side says so.
  virtual size_t TryWrite(absl::Span<const iovec> pieces) = 0;
  // After TryWrite took less than all. One call at a time.
  virtual kj::Promise<void> WhenWritable() = 0;
  // Whether other threads than the loop's may call TryWrite, and a message of up to this size is then taken whole or
  // not at all; 0: they may not.
  virtual size_t max_whole_bytes() const = 0;
};

// Over a connected unix socket or TCP. Throws a kj exception when the process has no descriptor left.
kj::Own<LinkStream> MakeSocketStream(kj::UnixEventPort& port, kj::AutoCloseFd fd);
// Over a stream that KJ has opened.
kj::Own<LinkStream> MakeLinkStream(kj::UnixEventPort& port, StreamKind kind, kj::Own<kj::AsyncIoStream> stream);

}  // namespace tessera
