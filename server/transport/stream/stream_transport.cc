#include "server/transport/stream/stream_transport.h"

#include <utility>

#include "server/transport/stream/engine.h"

namespace tessera {

StreamTransport::StreamTransport() = default;
StreamTransport::~StreamTransport() = default;

absl::Status StreamTransport::Start(WorkerIndex self, std::unique_ptr<Network> network) {
  engine_ = std::make_unique<StreamEngine>(self, std::move(network));
  return engine_->Start();
}

std::string StreamTransport::Address() const { return engine_->Address(); }

absl::Status StreamTransport::Connect(WorkerIndex peer, std::string_view address) {
  return engine_->Connect(peer, address);
}

void StreamTransport::Send(WorkerIndex peer, MessageTag tag, absl::Span<const std::byte> bytes, Done done) {
  engine_->PostSend(peer, tag, bytes, std::move(done));
}

void StreamTransport::Receive(WorkerIndex peer, MessageTag tag, absl::Span<std::byte> bytes, Done done) {
  engine_->PostReceive(peer, tag, bytes, std::move(done));
}

void StreamTransport::MarkDead(WorkerIndex peer) { engine_->PostMarkDead(peer); }

}  // namespace tessera
