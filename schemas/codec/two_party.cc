#include "schemas/codec/two_party.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <utility>

#include <capnp/message.h>
#include <kj/timer.h>
#include <spdlog/spdlog.h>

#include "schemas/codec/dialer.h"
#include "schemas/codec/refusals.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr kj::Duration kAcceptRetry = 100 * kj::MILLISECONDS;
constexpr unsigned kMaxDescriptorsPerMessage = 2;

// The dialed end.
struct ServedConnection {
  ServedConnection(kj::Own<kj::AsyncIoStream> raw, GuardOptions guard, capnp::Capability::Client bootstrap,
                   int64_t flow_limit_bytes)
      : stream(MakeGuardedStream(kj::mv(raw), kj::mv(guard))),
        network(*stream, kMaxDescriptorsPerMessage, capnp::rpc::twoparty::Side::SERVER),
        rpc(capnp::makeRpcServer(network, kj::mv(bootstrap))) {
    rpc.setFlowLimit(static_cast<size_t>(flow_limit_bytes) / sizeof(capnp::word));
  }
  kj::Own<kj::AsyncCapabilityStream> stream;
  capnp::TwoPartyVatNetwork network;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> rpc;
};

// As the kernel says it.
PeerName NameOf(kj::AsyncIoStream& stream, StreamKind kind) {
  if (kind == StreamKind::kUnixSocket) {
    struct ucred credentials = {};
    kj::uint length = sizeof(credentials);
    stream.getsockopt(SOL_SOCKET, SO_PEERCRED, &credentials, &length);
    return {credentials.pid, StrCat("pid ", credentials.pid)};
  }
  sockaddr_storage address{};
  kj::uint length = sizeof(address);
  stream.getpeername(reinterpret_cast<sockaddr*>(&address), &length);
  char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
  getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof(host), port, sizeof(port),
              NI_NUMERICHOST | NI_NUMERICSERV);
  return {0, StrCat(std::string_view(host), ":", std::string_view(port))};
}

}  // namespace

DialedConnection::DialedConnection(StreamKind kind, kj::Own<kj::AsyncIoStream> stream)
    : stream_(MakeGuardedStream(kj::mv(stream), {.kind = kind})),
      network_(*stream_, kMaxDescriptorsPerMessage, capnp::rpc::twoparty::Side::CLIENT),
      rpc_(capnp::makeRpcClient(network_)) {}

capnp::Capability::Client DialedConnection::BootstrapCapability() {
  capnp::MallocMessageBuilder message(4);
  auto id = message.getRoot<capnp::rpc::twoparty::VatId>();
  id.setSide(capnp::rpc::twoparty::Side::SERVER);
  return rpc_.bootstrap(id);
}

Acceptor::Acceptor(kj::AsyncIoContext& io, const AcceptOptions& options, TakeLink take_link)
    : timer_(io.provider->getTimer()),
      events_(io.unixEventPort),
      options_(options),
      take_link_(std::move(take_link)),
      tasks_(*this) {}

kj::Promise<void> Acceptor::Run(const Port& port) {
  return kj::evalNow([&port]() { return port.receiver.accept(); })  // which may throw at once
      .then([this, &port](kj::Own<kj::AsyncIoStream> stream) -> kj::Promise<void> {
        if (admitted_ >= options_.max_connections) {
          LogRefusal("a connection", StrCat(admitted_, " are open (max_connections)"));
        } else {
          Serve(port, kj::mv(stream));
        }
        return kj::READY_NOW;
      })
      .catch_([this](kj::Exception&& exception) {
        // Out of descriptors: the connection waits in the backlog until some are free again.
        spdlog::warn("can't accept a connection: {}", exception.getDescription().cStr());
        return timer_.afterDelay(kAcceptRetry);
      })
      .then([this, &port]() { return Run(port); });
}

namespace {

StreamKind KindOf(const Acceptor::Port& port) {
  return port.tls == nullptr ? StreamKind::kUnixSocket : StreamKind::kBytes;
}

}  // namespace

// What the acceptor knows of a connection. It goes with the connection.
struct Acceptor::Connection {
  Connection(Acceptor& acceptor, const Port& port, PeerName peer)
      : acceptor(acceptor), port(port), peer(std::move(peer)) {
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
  StreamKind kind() const { return KindOf(port); }

  const Port& port;
  const PeerName peer;
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
            LogRefusal(connection.peer.text,
                       StrCat("nothing shown in ", options_.handshake_timeout_ms, " ms (handshake_timeout)"));
            connection.leave->fulfill();
          })
          .eagerlyEvaluate(nullptr);
  if (guests_.size() <= options_.max_guests) return;
  Connection& first = *guests_.front();
  if (!first.leave->isWaiting()) return;  // it goes already
  LogRefusal(first.peer.text, StrCat("nothing shown, and ", options_.max_guests, " came since (max_waiting_guests)"));
  first.leave->fulfill();
}

void Acceptor::Serve(const Port& port, kj::Own<kj::AsyncIoStream> stream) {
  auto connection = std::make_shared<Connection>(*this, port, NameOf(*stream, KindOf(port)));
  Welcome(*connection);
  kj::Promise<void> served = nullptr;
  KJ_IF_MAYBE (context, port.tls) {
    TuneTcp(*stream);
    served = context->wrapServer(kj::mv(stream)).then([this, connection](kj::Own<kj::AsyncIoStream> opened) {
      return ServeBegun(connection, kj::mv(opened));
    });
  } else {
    served = ServeBegun(connection, kj::mv(stream));
  }
  // The text goes with the connection, which the one who reads it may outlive.
  auto said = [peer = connection->peer.text](kj::Exception&& exception) {
    LogRefusal(peer, StrCat("its connection ended: ", exception.getDescription().cStr()));
  };
  tasks_.add(served.exclusiveJoin(kj::mv(connection->left)).then([]() {}, kj::mv(said)).attach(kj::mv(connection)));
}

kj::Promise<void> Acceptor::ServeBegun(std::shared_ptr<Connection> connection, kj::Own<kj::AsyncIoStream> stream) {
  auto begun = kj::heapArray<kj::byte>(kLinkMagicBytes);
  auto reading = stream->tryRead(begun.begin(), begun.size(), begun.size());
  return reading.then(
      [this, connection, stream = kj::mv(stream), begun = kj::mv(begun)](size_t count) mutable -> kj::Promise<void> {
        const bool is_link = count == begun.size() && std::memcmp(begun.begin(), kLinkMagic, count) == 0;
        if (is_link && take_link_) return ServeLink(connection, kj::mv(stream));
        return ServeCalls(connection, kj::mv(stream), kj::heapArray<kj::byte>(begun.slice(0, count)));
      });
}

kj::Promise<void> Acceptor::ServeCalls(std::shared_ptr<Connection> connection, kj::Own<kj::AsyncIoStream> stream,
                                       kj::Array<kj::byte> begun) {
  auto served = kj::heap<ServedConnection>(
      kj::mv(stream),
      GuardOptions{connection->kind(), GuardMode::kReadWhenWritesEnded, connection->allowance, kj::mv(begun)},
      connection->port.make_bootstrap(connection->peer, Admission(connection)), options_.flow_limit_bytes);
  auto gone = served->network.onDisconnect();
  return gone.attach(kj::mv(served));
}

// Who gave the key has the stream from here on; the connection's place is that of the calls that the key came by.
kj::Promise<void> Acceptor::ServeLink(std::shared_ptr<Connection> connection, kj::Own<kj::AsyncIoStream> stream) {
  auto key = std::make_unique<uint64_t>();
  auto reading = stream->tryRead(key.get(), sizeof(*key), sizeof(*key));
  return reading.then([this, connection, stream = kj::mv(stream), key = std::move(key)](size_t count) mutable {
    if (count == sizeof(*key) && take_link_(*key, MakeLinkStream(events_, connection->kind(), kj::mv(stream)))) return;
    LogRefusal(connection->peer.text, "nobody gave the key of its link");
  });
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
