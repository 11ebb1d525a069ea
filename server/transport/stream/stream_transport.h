#pragma once

// StreamTransport: messages over the connections of a Network. SocketTransport and TlsTransport are this with a network
// each.
//
// A peer that connects shows the receiver's random key, which the transport gives away with its address alone; one that
// doesn't is closed before anything it says is acted on.
//
// A message of up to max_eager_bytes is sent at once. A larger one is announced, and sent when its receive is posted:
// its bytes go from the sender's buffer to the stream, and from there to the receiver's, and memory for messages that
// nobody waits for is bounded. One thread does all of it and sleeps on epoll.
//
// A connection that breaks fails what was under way on it, with Unavailable that says so, and is made again at once;
// messages of later instructions pass. A peer that is stopped is waited for: the coordinator says when it is dead.

#include <memory>
#include <string>

#include "server/transport/stream/stream.h"
#include "server/transport/transport.h"

namespace tessera {

inline constexpr size_t kMaxEagerBytes = 32 << 10;  // docs/limits.md: max_eager_bytes

class StreamEngine;  // engine.h

class StreamTransport : public MessageTransport {
 public:
  // Ends everything that is pending with Cancelled, then returns.
  ~StreamTransport() override;

  std::string Address() const override;
  absl::Status Connect(WorkerIndex peer, std::string_view address) override;
  void Send(WorkerIndex peer, MessageTag tag, absl::Span<const std::byte> bytes, Done done) override;
  void Receive(WorkerIndex peer, MessageTag tag, absl::Span<std::byte> bytes, Done done) override;
  void MarkDead(WorkerIndex peer) override;

 protected:
  StreamTransport();
  // Once, before anything else.
  absl::Status Start(WorkerIndex self, std::unique_ptr<Network> network);

 private:
  std::unique_ptr<StreamEngine> engine_;
};

}  // namespace tessera
