#include "server/worker/rpc/relay.h"

#include <utility>

#include "schemas/codec/exception.h"
#include "schemas/types/address.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// Passes on what is said of tickets.
class RelayGate final : public wire::DataGate::Server {
 public:
  RelayGate(wire::DataGate::Client gate, std::shared_ptr<DialedLine> line, Acceptor::Admit admit)
      : gate_(kj::mv(gate)), line_(std::move(line)), admit_(std::move(admit)) {}

  kj::Promise<void> transfer(TransferContext context) override {
    auto request = gate_.transferRequest();
    request.setTicket(context.getParams().getTicket());
    request.setSecret(context.getParams().getSecret());
    return request.send().then([admit = admit_, context](auto&& answer) mutable {
      admit();
      context.getResults().setTransfer(answer.getTransfer());
    });
  }
  kj::Promise<void> resume(ResumeContext context) override {
    auto request = gate_.resumeRequest();
    request.setTicket(context.getParams().getTicket());
    request.setSecret(context.getParams().getSecret());
    return request.send().then([admit = admit_, context](auto&& answer) mutable {
      admit();
      context.getResults().setFirst(answer.getFirst());
      context.getResults().setTransfer(answer.getTransfer());
    });
  }
  kj::Promise<void> arena(ArenaContext) override {
    return ToException(absl::PermissionDeniedError("arena: a relay passes on tickets alone"));
  }

 private:
  wire::DataGate::Client gate_;
  std::shared_ptr<DialedLine> line_;
  Acceptor::Admit admit_;
};

}  // namespace

void Relays::Add(const PeerJoined& peer) {
  peers_[peer.worker] = Peer{peer.host == host_ ? peer.data_address : peer.remote_address};
}

absl::StatusOr<std::shared_ptr<DialedLine>> Relays::LineTo(WorkerIndex peer) {
  auto found = peers_.find(peer);
  if (found == peers_.end()) return absl::NotFoundError(StrCat("relay: no worker ", peer.value, " is known here"));
  Peer& entry = found->second;
  if (entry.address.empty()) {
    return absl::FailedPreconditionError(
        StrCat("relay: worker ", peer.value, " is on another host and has no address for this (--data-listen)"));
  }
  if (entry.line == nullptr || entry.line->is_broken()) {
    TESSERA_ASSIGN_OR_RETURN(Address address, ParseAddress("relay", entry.address));
    TESSERA_ASSIGN_OR_RETURN(auto dialer, Dialer::Make("relay", std::move(address), tls_, io_));
    entry.line = std::make_shared<DialedLine>(std::move(dialer));
  }
  return entry.line;
}

kj::Promise<wire::DataGate::Client> Relays::Reach(WorkerIndex peer, Acceptor::Admit admit) {
  auto line = LineTo(peer);
  if (!line.ok()) return ToException(line.status());
  auto request = (*line)->Bootstrap<wire::DataGate>().forRelayRequest();
  request.setPeerKey(peer_key_);
  return request.send().then([line = *line, admit = std::move(admit)](auto&& answer) -> wire::DataGate::Client {
    return kj::heap<RelayGate>(answer.getGate(), line, admit);
  });
}

}  // namespace tessera
