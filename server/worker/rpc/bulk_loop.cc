#include "server/worker/rpc/bulk_loop.h"

#include <optional>
#include <utility>

#include <kj/async-io.h>
#include <spdlog/spdlog.h>

#include "schemas/host/descriptor.h"
#include "schemas/link/exception.h"
#include "schemas/link/two_party.h"
#include "schemas/types/address.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/worker/rpc/bulk_server.h"
#include "server/worker/rpc/spill_jobs.h"

namespace tessera {
namespace {

// Where clients of other hosts bring and fetch bytes.
struct RemoteDoor {
  kj::Own<kj::ConnectionReceiver> receiver;
  kj::Own<kj::TlsContext> tls;
  std::string address;  // as it is told; empty: there is none
};

absl::StatusOr<RemoteDoor> OpenRemoteDoor(const BulkOptions& options, kj::AsyncIoContext& io) {
  RemoteDoor door;
  if (options.data_listen.empty()) return door;
  const std::string what = StrCat("--data-listen ", options.data_listen);
  TESSERA_ASSIGN_OR_RETURN(Address address, ParseAddress(what, options.data_listen));
  if (address.is_unix()) return absl::InvalidArgumentError(StrCat(what, ": it is tls://host:port"));
  TESSERA_ASSIGN_OR_RETURN(door.tls, MakeTls(what, options.tls, TlsSide::kServer));
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&]() {
                 door.receiver =
                     io.provider->getNetwork().parseAddress(HostAndPort(address)).wait(io.waitScope)->listen();
               })) {
    return absl::UnavailableError(
        StrCat("can't listen on ", options.data_listen, ": ", exception->getDescription().cStr()));
  }
  address.port = static_cast<int>(door.receiver->getPort());
  if (!options.data_advertise.empty()) {
    const bool has_port = options.data_advertise.find(':') != std::string::npos;
    const std::string told = StrCat("tls://", options.data_advertise, has_port ? "" : StrCat(":", address.port));
    TESSERA_ASSIGN_OR_RETURN(address, ParseAddress("--data-advertise", told));
  }
  door.address = ToText(address);
  return door;
}

}  // namespace

// The thread's own parts.
class BulkLoop::Loop {
 public:
  explicit Loop(const BulkOptions& options)
      : options_(options),
        io_(kj::setupAsyncIo()),
        decoder_(options.files->decoder),
        threads_(timer(), options.file_timeout) {}

  absl::Status Listen() {
    KJ_IF_MAYBE (exception, kj::runCatchingExceptions([this]() {
                   auto& network = io_.provider->getNetwork();
                   receiver_ = network.parseAddress(options_.data_address.c_str()).wait(io_.waitScope)->listen();
                 })) {
      return FromException(*exception);
    }
    TESSERA_ASSIGN_OR_RETURN(remote_, OpenRemoteDoor(options_, io_));
    return absl::OkStatus();
  }
  const std::string& remote_address() const { return remote_.address; }

  void Serve(const Worker& worker) {
    tickets_ = &worker.tickets;
    relays_.emplace(io_, options_.tls, options_.host_id, worker.peer_key);
    parts_.emplace(BulkParts{worker.tickets, worker.device, threads_, places_, decoder_, attached_, *options_.files,
                             worker.peer_key, &*relays_});
    spills_.emplace(*parts_);
    acceptor_.emplace(io_, AcceptOptions{});
    on_host_.emplace(Acceptor::Port{*receiver_, GateFor(ClientHost::kOwn)});
    accepting_ = acceptor_->Run(*on_host_);
    if (!remote_.address.empty()) {
      from_elsewhere_.emplace(Acceptor::Port{*remote_.receiver, GateFor(ClientHost::kOther), *remote_.tls});
      accepting_ = accepting_.exclusiveJoin(acceptor_->Run(*from_elsewhere_));
    }
    accepting_ =
        accepting_.eagerlyEvaluate([this](kj::Exception&& exception) { options_.failed(FromException(exception)); });
  }
  void Renew() {
    if (remote_.address.empty()) return;
    auto made = MakeTls(StrCat("--data-listen ", options_.data_listen), options_.tls, TlsSide::kServer);
    if (!made.ok()) {
      spdlog::warn("the new certificate is not taken: {}", std::string(made.status().message()));
      return;
    }
    // Handshakes that are under way end with the one that they began with.
    former_tls_ = kj::mv(remote_.tls);
    remote_.tls = *std::move(made);
    from_elsewhere_->tls = *remote_.tls;
  }
  ClientRelays& relays() { return *relays_; }
  TicketTable& tickets() { return *tickets_; }
  SpillJobs& spills() { return *spills_; }

  void RunForever() {
    io_.waitScope.setBusyPollInterval(kTurnsBetweenLooks);
    kj::Promise<void>(kj::NEVER_DONE).wait(io_.waitScope);
  }

 private:
  kj::Timer& timer() { return io_.provider->getTimer(); }
  Acceptor::MakeBootstrap GateFor(ClientHost host) {
    return [this, host](const PeerName&, const Acceptor::Admission& admission) {
      using Stay = Acceptor::Admission::Stay;
      return MakeBulkServer(
          *parts_, host,
          {admission, [admission]() { admission.Dismiss(Stay::kWhileThereIsRoom); }, admission.answers()});
    };
  }

  const BulkOptions& options_;
  kj::AsyncIoContext io_;
  kj::Own<kj::ConnectionReceiver> receiver_;
  RemoteDoor remote_;
  kj::Own<kj::TlsContext> former_tls_;
  Decoder decoder_;
  DataPlaces places_{MaxDescriptors()};  // what the threads still hold has some
  DataThreads threads_;
  AttachedMemory attached_{AttachedMemory::HostLimits()};
  TicketTable* tickets_ = nullptr;  // from Serve on, as all that follows
  std::optional<ClientRelays> relays_;
  std::optional<BulkParts> parts_;
  std::optional<SpillJobs> spills_;
  std::optional<Acceptor> acceptor_;
  std::optional<Acceptor::Port> on_host_, from_elsewhere_;
  kj::Promise<void> accepting_ = nullptr;
};

absl::StatusOr<BulkLoop*> BulkLoop::Start(const BulkOptions& options) {
  std::unique_ptr<BulkLoop> bulk(new BulkLoop(options));
  Started started;
  std::future<absl::Status> status = started.get_future();
  bulk->thread_ =
      std::thread([bulk = bulk.get(), started = std::move(started)]() mutable { bulk->Run(std::move(started)); });
  absl::Status found = status.get();
  if (found.ok()) return bulk.release();
  bulk->thread_.join();
  return found;
}

void BulkLoop::Run(Started started) {
  Loop loop(options_);
  absl::Status status = loop.Listen();
  const bool listens = status.ok();
  remote_address_ = loop.remote_address();
  executor_ = kj::getCurrentThreadExecutor().addRef();
  loop_ = &loop;
  started.set_value(std::move(status));
  if (listens) loop.RunForever();
}

kj::Promise<void> BulkLoop::Serve(const Worker& worker) {
  return executor_->executeAsync([this, worker]() { loop_->Serve(worker); });
}
void BulkLoop::Renew() {
  executor_->executeSync([this]() { loop_->Renew(); });
}
kj::Promise<void> BulkLoop::AddPeer(const PeerJoined& peer) {
  return executor_->executeAsync([this, peer]() { loop_->relays().Add(peer); });
}
kj::Promise<void> BulkLoop::RemovePeer(WorkerIndex peer) {
  return executor_->executeAsync([this, peer]() { loop_->relays().Remove(peer); });
}
kj::Promise<void> BulkLoop::Spill(TicketId ticket) {
  return executor_->executeAsync([this, ticket]() { loop_->spills().Begin(ticket); });
}
kj::Promise<void> BulkLoop::ForgetSpilled(uint64_t file) {
  return executor_->executeAsync([this, file]() { loop_->spills().Forget(file); });
}
kj::Promise<void> BulkLoop::CloseTicket(TicketId ticket) {
  return executor_->executeAsync([this, ticket]() { loop_->tickets().Close(ticket); });
}

}  // namespace tessera
