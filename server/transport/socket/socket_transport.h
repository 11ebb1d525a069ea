#pragma once

// SocketTransport: messages between workers of one host that don't map each other, over unix sockets.
//
// The socket is a file that its owner alone may open, in the workers' folder. Who connects shows the receiver's random
// key, which the transport gives away with its address alone; whoever doesn't is closed before anything it says is
// acted on. So a stranger on the host reaches nothing. For workers of other hosts there is ucx/.
//
// A message of up to max_eager_bytes is sent at once. A larger one is announced, and sent when its receive is posted:
// its bytes go from the sender's buffer to the socket, and from there to the receiver's, and memory for messages that
// nobody waits for is bounded. One thread does all of it and sleeps on epoll.
//
// A connection that breaks fails what was under way on it, with Unavailable that says so, and is made again at once;
// messages of later instructions pass. A peer that is stopped is waited for: the coordinator says when it is dead.
//
//   auto transport = SocketTransport::Make(WorkerIndex(0), "/run/tessera/worker-17.messages");
//   (*transport)->Connect(WorkerIndex(1), address_of_1);

#include <memory>
#include <string>

#include "server/transport/transport.h"

namespace tessera {

inline constexpr size_t kMaxEagerBytes = 32 << 10;  // docs/limits.md: max_eager_bytes

class SocketTransport : public MessageTransport {
 public:
  // Listens at the path, whose file is made here (a socket that was there is removed) and ends with the transport.
  // Internal with the system's message when that fails.
  static absl::StatusOr<std::unique_ptr<SocketTransport>> Make(WorkerIndex self, const std::string& path);
  // Ends everything that is pending with Cancelled, then returns.
  ~SocketTransport() override;

  std::string Address() const override;
  absl::Status Connect(WorkerIndex peer, std::string_view address) override;
  void Send(WorkerIndex peer, MessageTag tag, absl::Span<const std::byte> bytes, Done done) override;
  void Receive(WorkerIndex peer, MessageTag tag, absl::Span<std::byte> bytes, Done done) override;
  void MarkDead(WorkerIndex peer) override;

  class Engine;  // engine.h

 private:
  explicit SocketTransport(std::unique_ptr<Engine> engine);
  std::unique_ptr<Engine> engine_;
};

}  // namespace tessera
