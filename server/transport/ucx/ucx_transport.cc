#include "server/transport/ucx/ucx_transport.h"

#include <utility>

#include "schemas/types/status_macros.h"
#include "server/transport/ucx/engine.h"

namespace tessera {

UcxTransport::UcxTransport(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
UcxTransport::~UcxTransport() = default;

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Make(WorkerIndex self, const UcxOptions& options) {
  auto engine = std::make_unique<Engine>(self);
  TESSERA_RETURN_IF_ERROR(engine->Start(options));
  return std::unique_ptr<UcxTransport>(new UcxTransport(std::move(engine)));
}

std::string UcxTransport::Address() const { return engine_->Address(); }

absl::Status UcxTransport::Connect(WorkerIndex peer, std::string_view address) {
  return engine_->Connect(peer, address);
}

void UcxTransport::Send(WorkerIndex peer, MessageTag tag, absl::Span<const std::byte> bytes, Done done) {
  engine_->PostSend(peer, tag, bytes, std::move(done));
}

void UcxTransport::Receive(WorkerIndex peer, MessageTag tag, absl::Span<std::byte> bytes, Done done) {
  engine_->PostReceive(peer, tag, bytes, std::move(done));
}

void UcxTransport::MarkDead(WorkerIndex peer) {
  engine_->Post([engine = engine_.get(), peer] { engine->LosePeer(peer, "dead"); });
}

}  // namespace tessera
