#include "server/worker/rpc/bulk_server.h"

#include <utility>

#include <kj/io.h>

#include "schemas/host/descriptor.h"
#include "schemas/link/exception.h"
#include "schemas/link/refusals.h"
#include "schemas/types/str_cat.h"
#include "server/worker/rpc/transfer_server.h"

namespace tessera {
namespace {

kj::AutoCloseFd Taken(OwnedFd& fd) {
  if (fd.get() < 0) ThrowIfError(absl::ResourceExhaustedError("arena: no descriptor is left"));
  return kj::AutoCloseFd(fd.Release());
}

class BulkServerImpl final : public wire::BulkServer::Server {
 public:
  BulkServerImpl(const BulkParts& parts, ClientHost host, std::shared_ptr<DataConnection> connection)
      : parts_(parts),
        kept_(std::make_shared<KeptMemory>(parts.device, parts.attached)),
        host_(host),
        connection_(std::move(connection)) {}
  ~BulkServerImpl() {
    if (!called_) LogRefusal(StrCat("worker ", self()), "a data connection ended without a call");
  }

  kj::Promise<void> arena(ArenaContext context) override {
    called_ = true;
    auto params = context.getParams();
    if (host_ == ClientHost::kOther) Require(absl::PermissionDeniedError("arena: it is for workers of the host"));
    Require(CheckKey("arena", params.getPeerKey()));
    if (params.getIndex() != self()) {
      Require(absl::NotFoundError(StrCat("arena: this is worker ", self(), ", not ", params.getIndex())));
    }
    connection_->EnterAsPeer();
    ArenaDescriptors arena = parts_.tickets.arena().CopyDescriptors();
    context.getResults().setMemory(LendDescriptor<wire::SharedMemory>(Taken(arena.memory)));
    context.getResults().setBytes(arena.memory_bytes);
    context.getResults().setCounters(LendDescriptor<wire::SharedMemory>(Taken(arena.counters)));
    return kj::READY_NOW;
  }
  kj::Promise<void> transfer(TransferContext context) override {
    called_ = true;
    auto params = context.getParams();
    auto ticket = parts_.tickets.Redeem(TicketId(params.getTicket()), params.getSecret());
    Require(ticket.status());
    context.getResults().setSession((*ticket)->window.session.value);
    context.getResults().setTransfer(Serve(*std::move(ticket)));
    return kj::READY_NOW;
  }
  kj::Promise<void> resume(ResumeContext context) override {
    called_ = true;
    auto params = context.getParams();
    if (host_ == ClientHost::kOwn) {
      Require(absl::FailedPreconditionError("resume: a client of this host takes a new ticket"));
    }
    auto ticket = parts_.tickets.Resume(TicketId(params.getTicket()), params.getSecret());
    Require(ticket.status());
    context.getResults().setSession((*ticket)->window.session.value);
    context.getResults().setFirst(static_cast<uint64_t>((*ticket)->shards[0].covered_elements));
    context.getResults().setTransfer(Serve(*std::move(ticket)));
    return kj::READY_NOW;
  }
  // The client that asks stays a guest until the other worker has taken a ticket.
  kj::Promise<void> relay(RelayContext context) override {
    called_ = true;
    const WorkerIndex wanted(context.getParams().getIndex());
    if (wanted == parts_.tickets.self()) {  // the client knows the door, and not whose it is
      context.getResults().setServer(thisCap());
      return kj::READY_NOW;
    }
    if (parts_.relays == nullptr) {
      Require(absl::UnimplementedError(StrCat("relay: worker ", self(), " passes nothing on")));
    }
    return parts_.relays->Reach(wanted, connection_).then([context](wire::BulkServer::Client bulk) mutable {
      context.getResults().setServer(kj::mv(bulk));
    });
  }
  kj::Promise<void> forRelay(ForRelayContext context) override {
    called_ = true;
    Require(CheckKey("relay", context.getParams().getPeerKey()));
    connection_->EnterAsPeer();
    auto bulk = kj::heap<BulkServerImpl>(parts_, ClientHost::kOther, connection_);
    bulk->called_ = true;
    context.getResults().setServer(kj::mv(bulk));
    return kj::READY_NOW;
  }

 private:
  int32_t self() const { return parts_.tickets.self().value; }
  void Require(const absl::Status& status) const {
    if (!status.ok()) LogRefusal(StrCat("a client of worker ", self()), StdView(status.message()));
    ThrowIfError(status);
  }
  absl::Status CheckKey(std::string_view call, uint64_t key) const {
    if (key == parts_.peer_key) return absl::OkStatus();
    return absl::PermissionDeniedError(StrCat(call, ": the key is wrong"));
  }
  wire::Transfer::Client Serve(TicketTable::TicketPointer ticket) {
    auto visit = DataConnection::Enter(connection_, ticket->window.session);
    if (!visit.ok()) parts_.tickets.End(ticket, visit.status());  // its session hears of it
    Require(visit.status());
    return kj::heap<TransferServer>(parts_, kept_, host_, std::move(ticket), connection_, *std::move(visit));
  }

  const BulkParts parts_;
  const std::shared_ptr<KeptMemory> kept_;
  const ClientHost host_;
  const std::shared_ptr<DataConnection> connection_;
  bool called_ = false;
};

}  // namespace

wire::BulkServer::Client MakeBulkServer(const BulkParts& parts, ClientHost host, DataConnection::Door door) {
  return kj::heap<BulkServerImpl>(parts, host,
                                  std::make_shared<DataConnection>(std::move(door), parts.places.connections));
}

}  // namespace tessera
