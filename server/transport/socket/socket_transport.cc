#include "server/transport/socket/socket_transport.h"

#include <utility>

#include "schemas/types/status_macros.h"
#include "server/transport/socket/engine.h"

namespace tessera {

SocketTransport::SocketTransport(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
SocketTransport::~SocketTransport() = default;

absl::StatusOr<std::unique_ptr<SocketTransport>> SocketTransport::Make(WorkerIndex self, const std::string& path) {
  auto engine = std::make_unique<Engine>(self);
  TESSERA_RETURN_IF_ERROR(engine->Start(path));
  return std::unique_ptr<SocketTransport>(new SocketTransport(std::move(engine)));
}

std::string SocketTransport::Address() const { return engine_->Address(); }

absl::Status SocketTransport::Connect(WorkerIndex peer, std::string_view address) {
  return engine_->Connect(peer, address);
}

void SocketTransport::Send(WorkerIndex peer, MessageTag tag, absl::Span<const std::byte> bytes, Done done) {
  engine_->PostSend(peer, tag, bytes, std::move(done));
}

void SocketTransport::Receive(WorkerIndex peer, MessageTag tag, absl::Span<std::byte> bytes, Done done) {
  engine_->PostReceive(peer, tag, bytes, std::move(done));
}

void SocketTransport::MarkDead(WorkerIndex peer) { engine_->PostMarkDead(peer); }

}  // namespace tessera
