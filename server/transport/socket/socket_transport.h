#pragma once

// SocketTransport: messages between workers of one host that don't map each other, over unix sockets.
//
// The socket is a file that its owner alone may open, in the workers' folder, so a stranger on the host reaches nothing
// (and has no key: stream/stream_transport.h). For workers of other hosts there are tls/ and ucx/.
//
//   auto transport = SocketTransport::Make(WorkerIndex(0), "/run/tessera/worker-17.messages");
//   (*transport)->Connect(WorkerIndex(1), address_of_1);

#include <memory>
#include <string>

#include "server/transport/stream/stream_transport.h"

namespace tessera {

class SocketTransport : public StreamTransport {
 public:
  // Listens at the path, whose file is made here (a socket that was there is removed) and ends with the transport.
  // Internal with the system's message when that fails.
  static absl::StatusOr<std::unique_ptr<SocketTransport>> Make(WorkerIndex self, const std::string& path);

 private:
  SocketTransport() = default;
};

}  // namespace tessera
