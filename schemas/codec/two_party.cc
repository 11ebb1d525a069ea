#include "schemas/codec/two_party.h"

#include <sys/socket.h>

#include <memory>
#include <utility>

#include <capnp/message.h>
#include <kj/timer.h>
#include <spdlog/spdlog.h>

namespace tessera {
namespace {

constexpr kj::Duration kAcceptRetry = 100 * kj::MILLISECONDS;
constexpr unsigned kMaxDescriptorsPerMessage = 2;

// The dialed end.
struct ServedConnection {
  ServedConnection(kj::Own<kj::AsyncCapabilityStream> raw, capnp::Capability::Client bootstrap,
                   int64_t flow_limit_bytes, std::shared_ptr<GuestAllowance> allowance)
      : stream(MakeGuardedStream(kj::mv(raw), GuardMode::kReadWhenWritesEnded, std::move(allowance))),
        network(*stream, kMaxDescriptorsPerMessage, capnp::rpc::twoparty::Side::SERVER),
        rpc(capnp::makeRpcServer(network, kj::mv(bootstrap))) {
    rpc.setFlowLimit(static_cast<size_t>(flow_limit_bytes) / sizeof(capnp::word));
  }
  kj::Own<kj::AsyncCapabilityStream> stream;
  capnp::TwoPartyVatNetwork network;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> rpc;
};

}  // namespace

DialedConnection::DialedConnection(kj::Own<kj::AsyncCapabilityStream> stream)
    : stream_(MakeGuardedStream(kj::mv(stream))),
      network_(*stream_, kMaxDescriptorsPerMessage, capnp::rpc::twoparty::Side::CLIENT),
      rpc_(capnp::makeRpcClient(network_)) {}

DialedConnection::DialedConnection(kj::Own<kj::AsyncIoStream> stream)
    : DialedConnection(stream.downcast<kj::AsyncCapabilityStream>()) {}

capnp::Capability::Client DialedConnection::BootstrapCapability() {
  capnp::MallocMessageBuilder message(4);
  auto id = message.getRoot<capnp::rpc::twoparty::VatId>();
  id.setSide(capnp::rpc::twoparty::Side::SERVER);
  return rpc_.bootstrap(id);
}

Acceptor::Acceptor(kj::Timer& timer, const AcceptOptions& options, MakeBootstrap make_bootstrap)
    : timer_(timer), options_(options), make_bootstrap_(std::move(make_bootstrap)), tasks_(*this) {}

kj::Promise<void> Acceptor::Run(kj::ConnectionReceiver& receiver) {
  return kj::evalNow([&receiver]() { return receiver.accept(); })  // which may throw at once
      .then([this](kj::Own<kj::AsyncIoStream> stream) -> kj::Promise<void> {
        if (admitted_ >= options_.max_connections) {
          spdlog::warn("refusing a connection: {} are open (max_connections)", admitted_);
        } else {
          Serve(stream.downcast<kj::AsyncCapabilityStream>());
        }
        return kj::READY_NOW;
      })
      .catch_([this](kj::Exception&& exception) {
        // Out of descriptors: the connection waits in the backlog until some are free again.
        spdlog::warn("can't accept a connection: {}", exception.getDescription().cStr());
        return timer_.afterDelay(kAcceptRetry);
      })
      .then([this, &receiver]() { return Run(receiver); });
}

// What the acceptor knows of a connection. It goes with the connection.
struct Acceptor::Connection {
  Connection(Acceptor& acceptor, pid_t pid) : acceptor(acceptor), pid(pid) {
    auto pair = kj::newPromiseAndFulfiller<void>();
    left = kj::mv(pair.promise);
    leave = kj::mv(pair.fulfiller);
  }
  ~Connection() {
    if (allowance->is_guest) {
      acceptor.guests_.erase(place);
    } else {
      --acceptor.admitted_;
    }
  }

  Acceptor& acceptor;
  const pid_t pid;
  std::shared_ptr<GuestAllowance> allowance = std::make_shared<GuestAllowance>();
  std::list<Connection*>::iterator place;  // among the guests
  kj::Promise<void> deadline = nullptr;    // of a guest
  kj::Promise<void> left = nullptr;
  kj::Own<kj::PromiseFulfiller<void>> leave;
};

void Acceptor::Admission::operator()() const {
  const std::shared_ptr<Connection> connection = connection_.lock();
  if (connection == nullptr || !connection->allowance->is_guest) return;
  connection->allowance->is_guest = false;
  connection->acceptor.guests_.erase(connection->place);
  ++connection->acceptor.admitted_;
}

void Acceptor::Admission::Dismiss() const {
  const std::shared_ptr<Connection> connection = connection_.lock();
  if (connection == nullptr || connection->allowance->is_guest) return;
  --connection->acceptor.admitted_;
  connection->acceptor.Welcome(*connection);
}

// As a guest, for a while.
void Acceptor::Welcome(Connection& connection) {
  *connection.allowance = GuestAllowance{};
  connection.place = guests_.insert(guests_.end(), &connection);
  connection.deadline =
      timer_.afterDelay(options_.handshake_timeout_ms * kj::MILLISECONDS)
          .then([this, &connection]() {
            if (!connection.allowance->is_guest) return;
            spdlog::warn("closing the connection of pid {}: nothing shown in {} ms (handshake_timeout)", connection.pid,
                         options_.handshake_timeout_ms);
            connection.leave->fulfill();
          })
          .eagerlyEvaluate(nullptr);
  if (guests_.size() <= options_.max_guests) return;
  Connection& first = *guests_.front();
  if (!first.leave->isWaiting()) return;  // it goes already
  spdlog::warn("closing the connection of pid {}: nothing shown, and {} came since (max_waiting_guests)", first.pid,
               options_.max_guests);
  first.leave->fulfill();
}

void Acceptor::Serve(kj::Own<kj::AsyncCapabilityStream> stream) {
  struct ucred credentials = {};
  kj::uint length = sizeof(credentials);
  stream->getsockopt(SOL_SOCKET, SO_PEERCRED, &credentials, &length);
  const pid_t pid = credentials.pid;
  auto connection = std::make_shared<Connection>(*this, pid);
  Welcome(*connection);
  auto served = kj::heap<ServedConnection>(kj::mv(stream), make_bootstrap_(pid, Admission(connection)),
                                           options_.flow_limit_bytes, connection->allowance);
  auto gone = served->network.onDisconnect().exclusiveJoin(kj::mv(connection->left));
  tasks_.add(gone.then([]() {},
                       [pid](kj::Exception&& exception) {
                         spdlog::warn("connection of pid {} ended: {}", pid, exception.getDescription().cStr());
                       })
                 .attach(kj::mv(served), kj::mv(connection)));
}

void Acceptor::taskFailed(kj::Exception&& exception) {
  spdlog::warn("connection failed: {}", exception.getDescription().cStr());
}

kj::Promise<void> WhenPipeCloses(kj::LowLevelAsyncIoProvider& provider, int fd) {
  if (fd < 0) return kj::NEVER_DONE;
  auto stream = provider.wrapInputFd(fd);
  auto buffer = kj::heapArray<kj::byte>(64);
  auto promise = stream->tryRead(buffer.begin(), 1, buffer.size()).ignoreResult();
  return promise.attach(kj::mv(stream), kj::mv(buffer));
}

}  // namespace tessera
