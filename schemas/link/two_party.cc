#include "schemas/link/two_party.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>

#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include <capnp/message.h>
#include <kj/timer.h>
#include <spdlog/spdlog.h>

#include "schemas/link/dialer.h"
#include "schemas/link/refusals.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr kj::Duration kAcceptRetry = 100 * kj::MILLISECONDS;
constexpr unsigned kMaxDescriptorsPerMessage = 2;
constexpr int kMaxGuestLooks = 32;  // at guests of which one is to go

// The dialed end.
struct ServedConnection {
  ServedConnection(kj::Own<kj::AsyncIoStream> raw, GuardOptions guard, capnp::Capability::Client bootstrap,
                   int64_t flow_limit_bytes, std::shared_ptr<AnswerWindow> window)
      : answers(std::move(window)),
        stream(MakeGuardedStream(kj::mv(raw), kj::mv(guard))),
        network(*stream, kMaxDescriptorsPerMessage, capnp::rpc::twoparty::Side::SERVER),
        rpc(capnp::makeRpcServer(network, kj::mv(bootstrap))) {
    rpc.setFlowLimit(static_cast<size_t>(flow_limit_bytes) / sizeof(capnp::word));
    answers->SetQueue([this]() { return network.getCurrentQueueSize(); });
  }
  ~ServedConnection() { answers->Close(); }
  KJ_DISALLOW_COPY(ServedConnection);

  const std::shared_ptr<AnswerWindow> answers;
  kj::Own<kj::AsyncCapabilityStream> stream;
  capnp::TwoPartyVatNetwork network;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> rpc;
};

// As the kernel says it.
PeerName NameOf(kj::AsyncIoStream& stream) {
  sockaddr_storage address{};
  kj::uint length = sizeof(address);
  stream.getpeername(reinterpret_cast<sockaddr*>(&address), &length);
  if (address.ss_family != AF_INET && address.ss_family != AF_INET6) {
    struct ucred credentials = {};
    kj::uint size = sizeof(credentials);
    stream.getsockopt(SOL_SOCKET, SO_PEERCRED, &credentials, &size);
    return {credentials.pid, int64_t{credentials.uid}, StrCat("pid ", credentials.pid),
            StrCat("uid ", credentials.uid)};
  }
  char host[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
  getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof(host), port, sizeof(port),
              NI_NUMERICHOST | NI_NUMERICSERV);
  std::string counted = host;
  if (address.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    constexpr size_t kNetworkBytes = 8;
    if (!IN6_IS_ADDR_V4MAPPED(&six)) counted.assign(reinterpret_cast<const char*>(&six), kNetworkBytes);
  }
  return {0, -1, StrCat(std::string_view(host), ":", std::string_view(port)), std::move(counted)};
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
      tasks_(*this) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  const auto quarter = static_cast<size_t>(std::max<rlim_t>(1, limit.rlim_cur / 4));
  if (quarter >= options_.max_guests) return;
  spdlog::warn("the process may have {} descriptors (ulimit -n): {} guests wait at a time, not {} (max_waiting_guests)",
               limit.rlim_cur, quarter, options_.max_guests);
  options_.max_guests = quarter;
}

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

// How much has come from the other side, as the kernel says it; nobody knows it of a unix socket. A connection's end
// counts as one byte.
std::optional<uint64_t> BytesReceived(int descriptor) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (descriptor < 0 || getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return std::nullopt;
  return info.tcpi_bytes_received;
}
bool HasSpoken(int descriptor) { return BytesReceived(descriptor).value_or(0) > 0; }
bool HasLeftSilently(int descriptor) { return BytesReceived(descriptor).value_or(UINT64_MAX) <= 1; }

StreamKind KindOf(const Acceptor::Port& port) {
  return port.tls == nullptr ? StreamKind::kUnixSocket : StreamKind::kBytes;
}

}  // namespace

// The acceptor's record of a connection. It goes with the connection.
struct Acceptor::Connection {
  Connection(Acceptor& acceptor, const Port& port, PeerName peer, int descriptor)
      : acceptor(acceptor), port(port), peer(std::move(peer)), descriptor(descriptor) {
    auto pair = kj::newPromiseAndFulfiller<void>();
    left = kj::mv(pair.promise);
    leave = kj::mv(pair.fulfiller);
  }
  ~Connection() {
    if (allowance->is_guest) {
      acceptor.RemoveGuest(*this);
    } else {
      --acceptor.admitted_;
    }
  }

  Acceptor& acceptor;
  StreamKind kind() const { return KindOf(port); }

  const Port& port;
  const PeerName peer;
  const int descriptor;    // of its socket, which it doesn't own; -1: none
  kj::AutoCloseFd second;  // of the same socket while TLS begins: it outlives a stream for which that fails
  std::shared_ptr<GuestAllowance> allowance = std::make_shared<GuestAllowance>();
  const std::shared_ptr<AnswerWindow> answers = std::make_shared<AnswerWindow>();
  std::list<Connection*>::iterator place;  // among the guests
  kj::Promise<void> deadline = nullptr;    // of a guest
  kj::Promise<void> left = nullptr;
  kj::Own<kj::PromiseFulfiller<void>> leave;
};

void Acceptor::Admission::operator()() const {
  const std::shared_ptr<Connection> connection = connection_.lock();
  if (connection == nullptr || !connection->allowance->is_guest) return;
  connection->allowance->is_guest = false;
  connection->acceptor.RemoveGuest(*connection);
  ++connection->acceptor.admitted_;
}

std::shared_ptr<AnswerWindow> Acceptor::Admission::answers() const {
  const std::shared_ptr<Connection> connection = connection_.lock();
  return connection == nullptr ? nullptr : connection->answers;
}

void Acceptor::Admission::Dismiss(Stay stay) const {
  const std::shared_ptr<Connection> connection = connection_.lock();
  if (connection == nullptr || connection->allowance->is_guest) return;
  --connection->acceptor.admitted_;
  connection->acceptor.Welcome(*connection, stay);
}

void Acceptor::RemoveGuest(Connection& connection) {
  const auto same = guests_.find(connection.peer.address);
  same->second.erase(connection.place);
  if (same->second.empty()) guests_.erase(same);
  --guest_count_;
}

// As a guest.
void Acceptor::Welcome(Connection& connection, Admission::Stay stay) {
  *connection.allowance = GuestAllowance{};
  std::list<Connection*>& same = guests_[connection.peer.address];
  connection.place = same.insert(same.end(), &connection);
  ++guest_count_;
  connection.deadline = nullptr;
  if (stay == Admission::Stay::kForAWhile) {
    connection.deadline =
        timer_.afterDelay(options_.handshake_timeout_ms * kj::MILLISECONDS)
            .then([this, &connection]() {
              if (!connection.allowance->is_guest) return;
              LogRefusal(connection.peer.text,
                         StrCat("nothing shown in ", options_.handshake_timeout_ms, " ms (handshake_timeout)"));
              connection.leave->fulfill();
            })
            .eagerlyEvaluate(nullptr);
  }
  if (guest_count_ <= options_.max_guests) return;
  const auto most = std::max_element(guests_.begin(), guests_.end(),
                                     [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  // Guests that have said something go behind those that have not.
  std::list<Connection*>& same_address = most->second;
  for (int looks = 0; looks < kMaxGuestLooks && HasSpoken(same_address.front()->descriptor); ++looks) {
    same_address.splice(same_address.end(), same_address, same_address.begin());
  }
  const auto going = std::find_if(same_address.begin(), same_address.end(),
                                  [](Connection* guest) { return guest->leave->isWaiting(); });
  if (going == same_address.end()) return;  // all of them go already
  Connection& first = **going;
  LogRefusal(first.peer.text, StrCat("nothing shown, and ", options_.max_guests, " came since (max_waiting_guests)"));
  first.leave->fulfill();
}

void Acceptor::Serve(const Port& port, kj::Own<kj::AsyncIoStream> stream) {
  int descriptor = -1;
  KJ_IF_MAYBE (fd, stream->getFd()) {
    descriptor = *fd;
  }
  auto connection = std::make_shared<Connection>(*this, port, NameOf(*stream), descriptor);
  Welcome(*connection, Admission::Stay::kForAWhile);
  kj::Promise<void> served = nullptr;
  KJ_IF_MAYBE (context, port.tls) {
    TuneTcp(*stream);
    if (descriptor >= 0) connection->second = kj::AutoCloseFd(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    served = context->wrapServer(kj::mv(stream)).then([this, connection](kj::Own<kj::AsyncIoStream> opened) {
      connection->second = nullptr;
      return ServeBegun(connection, kj::mv(opened));
    });
  } else {
    served = ServeBegun(connection, kj::mv(stream));
  }
  auto said = [connection](kj::Exception&& exception) {
    // Load balancers and kubelets look every few seconds whether somebody listens.
    if (HasLeftSilently(connection->second.get())) return;
    LogRefusal(connection->peer.text, StrCat("its connection ended: ", exception.getDescription().cStr()));
  };
  tasks_.add(served.exclusiveJoin(kj::mv(connection->left)).then([]() {}, kj::mv(said)).attach(kj::mv(connection)));
}

kj::Promise<void> Acceptor::ServeBegun(std::shared_ptr<Connection> connection, kj::Own<kj::AsyncIoStream> stream) {
  auto begun = kj::heapArray<kj::byte>(kLinkMagicBytes);
  // A peer that leaves while bytes of TLS wait for it resets the connection.
  auto first = stream->tryRead(begun.begin(), 1, begun.size()).catch_([](kj::Exception&& exception) -> size_t {
    if (exception.getType() != kj::Exception::Type::DISCONNECTED) kj::throwFatalException(kj::mv(exception));
    return 0;
  });
  return first.then(
      [this, connection, stream = kj::mv(stream), begun = kj::mv(begun)](size_t count) mutable -> kj::Promise<void> {
        if (count == 0) return kj::READY_NOW;  // it has left without a word, as HasLeftSilently
        const size_t left = begun.size() - count;
        kj::Promise<size_t> rest = left == 0 ? size_t{0} : stream->tryRead(begun.begin() + count, left, left);
        return rest.then([this, connection = kj::mv(connection), stream = kj::mv(stream), begun = kj::mv(begun),
                          count](size_t more) mutable -> kj::Promise<void> {
          count += more;
          const bool is_link = count == begun.size() && std::memcmp(begun.begin(), kLinkMagic, count) == 0;
          if (is_link && take_link_) return ServeLink(connection, kj::mv(stream));
          return ServeCalls(connection, kj::mv(stream), kj::heapArray<kj::byte>(begun.slice(0, count)));
        });
      });
}

kj::Promise<void> Acceptor::ServeCalls(std::shared_ptr<Connection> connection, kj::Own<kj::AsyncIoStream> stream,
                                       kj::Array<kj::byte> begun) {
  auto served = kj::heap<ServedConnection>(
      kj::mv(stream),
      GuardOptions{connection->kind(), GuardMode::kReadWhenWritesEnded, connection->allowance, kj::mv(begun),
                   [answers = connection->answers]() { answers->Written(); }},
      connection->port.make_bootstrap(connection->peer, Admission(connection)), options_.flow_limit_bytes,
      connection->answers);
  auto gone = served->network.onDisconnect();
  return gone.attach(kj::mv(served));
}

// The taker of the key has the stream from here on; the connection's place is that of the calls that the key came by.
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
