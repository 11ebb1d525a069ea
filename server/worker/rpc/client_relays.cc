#include "server/worker/rpc/client_relays.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "schemas/link/exception.h"
#include "schemas/types/address.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/worker/files/decoder.h"
#include "server/worker/rpc/file_limits.h"

namespace tessera {
namespace {

// The most bytes that an answer may have: room for them is taken before the worker is asked.
uint64_t MaxAnswer(uint16_t method, capnp::AnyPointer::Reader params) {
  constexpr uint16_t kGet = 4, kLookAtFile = 6, kDescribeFile = 9;  // schemas/worker.capnp, Transfer
  constexpr uint64_t kSmall = 256;
  switch (method) {
    case kGet: return kMaxTransferPart;
    case kLookAtFile: return std::min(params.getAs<wire::Transfer::LookAtFileParams>().getCount(), kMaxFilePart);
    case kDescribeFile: return kDecoderBufferBytes;
    default: return kSmall;
  }
}

// A transfer at another worker: passes on whatever is said to it, while there is room for the answer.
class RelayTransfer final : public capnp::Capability::Server {
 public:
  RelayTransfer(wire::Transfer::Client transfer, std::shared_ptr<DataConnection> connection,
                DataConnection::Visit visit)
      : transfer_(kj::mv(transfer)),
        connection_(std::move(connection)),
        visit_(std::move(visit)),
        over_(transfer_.whenOverRequest()
                  .send()
                  .then([this](auto&&) { visit_.reset(); }, [this](kj::Exception&&) { visit_.reset(); })
                  .eagerlyEvaluate(nullptr)) {}

  DispatchCallResult dispatchCall(uint64_t interface, uint16_t method,
                                  capnp::CallContext<capnp::AnyPointer, capnp::AnyPointer> context) override {
    // Memory of another host's client can't be lent by way of this one.
    const uint64_t most = MaxAnswer(method, context.getParams());
    auto passed = connection_->answers().Take(most).then([=, this](AnswerWindow::Room room) mutable {
      const auto params = context.getParams();
      auto request = transfer_.typelessRequest(interface, method, params.targetSize());
      request.set(params);
      context.releaseParams();
      return request.send().then([context, room = kj::mv(room)](capnp::Response<capnp::AnyPointer>&& answer) mutable {
        const capnp::MessageSize size = answer.targetSize();
        room.Shrink(size.wordCount * sizeof(capnp::word));
        context.initResults(size).set(answer);
      });
    });
    return {kj::mv(passed), false};
  }

 private:
  wire::Transfer::Client transfer_;
  const std::shared_ptr<DataConnection> connection_;
  std::optional<DataConnection::Visit> visit_;  // until the ticket is over
  kj::Promise<void> over_;
};

// Passes on what is said of tickets.
class RelayedServer final : public wire::BulkServer::Server {
 public:
  RelayedServer(wire::BulkServer::Client bulk, std::shared_ptr<DialedLine> line,
                std::shared_ptr<DataConnection> connection)
      : server_(kj::mv(bulk)), line_(std::move(line)), connection_(std::move(connection)) {}

  kj::Promise<void> transfer(TransferContext context) override {
    auto request = server_.transferRequest();
    request.setTicket(context.getParams().getTicket());
    request.setSecret(context.getParams().getSecret());
    return request.send().then([this, context](auto&& answer) mutable {
      context.getResults().setSession(answer.getSession());
      context.getResults().setTransfer(Pass(answer.getTransfer(), SessionId(answer.getSession())));
    });
  }
  kj::Promise<void> resume(ResumeContext context) override {
    auto request = server_.resumeRequest();
    request.setTicket(context.getParams().getTicket());
    request.setSecret(context.getParams().getSecret());
    return request.send().then([this, context](auto&& answer) mutable {
      context.getResults().setFirst(answer.getFirst());
      context.getResults().setSession(answer.getSession());
      context.getResults().setTransfer(Pass(answer.getTransfer(), SessionId(answer.getSession())));
    });
  }
  kj::Promise<void> arena(ArenaContext) override {
    return ToException(absl::PermissionDeniedError("arena: a relay passes on tickets alone"));
  }

 private:
  wire::Transfer::Client Pass(wire::Transfer::Client transfer, SessionId session) {
    auto visit = DataConnection::Enter(connection_, session);
    ThrowIfError(visit.status());
    capnp::Capability::Client passed = kj::heap<RelayTransfer>(kj::mv(transfer), connection_, *std::move(visit));
    return passed.castAs<wire::Transfer>();
  }

  wire::BulkServer::Client server_;
  std::shared_ptr<DialedLine> line_;
  const std::shared_ptr<DataConnection> connection_;
};

}  // namespace

void ClientRelays::Add(const PeerJoined& peer) {
  peers_[peer.worker] = Peer{peer.host == host_ ? peer.data_address : peer.remote_address};
}

absl::StatusOr<std::shared_ptr<DialedLine>> ClientRelays::LineTo(WorkerIndex peer) {
  auto found = peers_.find(peer);
  if (found == peers_.end()) return absl::NotFoundError(StrCat("relay: no worker ", peer.value, " is known here"));
  Peer& entry = found->second;
  if (entry.address.empty()) {
    return absl::FailedPreconditionError(
        StrCat("relay: worker ", peer.value, " is on another host and has no address for this (--data-listen)"));
  }
  if (entry.line == nullptr || entry.line->is_broken()) {
    TESSERA_ASSIGN_OR_RETURN(Address address, ParseAddress("relay", entry.address));
    TESSERA_ASSIGN_OR_RETURN(auto dialer, Dialer::Make("relay", std::move(address), DialedServer::kWorker, tls_, io_));
    entry.line = std::make_shared<DialedLine>(std::move(dialer));
  }
  return entry.line;
}

kj::Promise<wire::BulkServer::Client> ClientRelays::Reach(WorkerIndex peer,
                                                          std::shared_ptr<DataConnection> connection) {
  auto line = LineTo(peer);
  if (!line.ok()) return ToException(line.status());
  auto request = (*line)->Bootstrap<wire::BulkServer>().forRelayRequest();
  request.setPeerKey(peer_key_);
  return request.send().then(
      [line = *line, connection = std::move(connection)](auto&& answer) -> wire::BulkServer::Client {
        return kj::heap<RelayedServer>(answer.getServer(), line, connection);
      });
}

}  // namespace tessera
