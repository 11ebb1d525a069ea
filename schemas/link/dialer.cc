#include "schemas/link/dialer.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "schemas/host/descriptor.h"
#include "schemas/link/certificate_units.h"
#include "schemas/link/exception.h"
#include "schemas/link/server_identity.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr size_t kMaxShownBytes = 200;

void SetOption(kj::AsyncIoStream& stream, int level, int option, int value) {
  KJ_IF_MAYBE (exception,
               kj::runCatchingExceptions([&]() { stream.setsockopt(level, option, &value, sizeof(value)); })) {
    (void)exception;  // of a socket without the option
  }
}

}  // namespace

absl::StatusOr<kj::AutoCloseFd> ConnectUnixSocket(std::string_view what, const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(StrCat(what, ": the path unix:", Printable(path, kMaxShownBytes), " has ",
                                             path.size(), " bytes, the limit is ", sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  kj::AutoCloseFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return absl::ResourceExhaustedError(StrCat(what, ": socket: ", std::strerror(errno)));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::UnavailableError(
        StrCat(what, ": no server at unix:", Printable(path, kMaxShownBytes), ": ", std::strerror(errno)));
  }
  return fd;
}

void TuneTcp(kj::AsyncIoStream& stream) {
  sockaddr_storage own{};
  kj::uint length = sizeof(own);
  stream.getsockname(reinterpret_cast<sockaddr*>(&own), &length);
  if (own.ss_family != AF_INET && own.ss_family != AF_INET6) return;
  constexpr int kSeconds = kTcpTimeoutMs / 1000;
  SetOption(stream, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(stream, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(stream, IPPROTO_TCP, TCP_KEEPIDLE, kSeconds / 2);
  SetOption(stream, IPPROTO_TCP, TCP_KEEPINTVL, kSeconds / 4);
  SetOption(stream, IPPROTO_TCP, TCP_KEEPCNT, 2);
  SetOption(stream, IPPROTO_TCP, TCP_USER_TIMEOUT, kTcpTimeoutMs);
}

absl::StatusOr<std::unique_ptr<Dialer>> Dialer::Make(std::string_view what, Address address, DialedServer server,
                                                     const TlsFiles& files, kj::AsyncIoContext& io) {
  kj::Own<kj::TlsContext> tls;
  if (!address.is_unix()) {
    TESSERA_ASSIGN_OR_RETURN(tls, MakeTls(what, files, TlsSide::kClient));
  }
  return std::unique_ptr<Dialer>(new Dialer(std::string(what), std::move(address), server, kj::mv(tls), io));
}

absl::Status Dialer::NoServer(std::string_view why) const {
  return absl::UnavailableError(
      StrCat(what_, ": no server at ", Printable(ToText(address_), kMaxShownBytes), ": ", why));
}

kj::Promise<kj::Own<kj::AsyncIoStream>> Dialer::Connect() { return address_.is_unix() ? ConnectUnix() : ConnectTls(); }

kj::Promise<kj::Own<kj::AsyncIoStream>> Dialer::ConnectUnix() {
  return kj::evalNow([this]() -> kj::Own<kj::AsyncIoStream> {
    auto connected = ConnectUnixSocket(what_, address_.socket_path);
    ThrowIfError(connected.status());
    ThrowIfError(CheckServer(what_, connected->get(), address_.socket_path));
    return io_.lowLevelProvider->wrapUnixSocketFd(kj::mv(*connected));
  });
}

absl::Status Dialer::CheckUnit(const kj::PeerIdentity& server) const {
  if (server_ != DialedServer::kCoordinator) return absl::OkStatus();
  const auto& shown = kj::downcast<const kj::TlsPeerIdentity>(server);
  if (!IsOfUnit(shown, kWorkerUnit) || IsOfUnit(shown, kServerUnit)) return absl::OkStatus();
  return absl::UnauthenticatedError(StrCat(what_, ": ", Printable(ToText(address_), kMaxShownBytes),
                                           ": TLS: a coordinator's certificate is expected (", "organizational unit ",
                                           kServerUnit, "), and this one is a worker's (", kWorkerUnit,
                                           "); dial an address of --listen or --listen-workers"));
}

kj::Promise<kj::Own<kj::AsyncIoStream>> Dialer::ConnectTls() {
  return kj::evalNow([this]() { return io_.provider->getNetwork().parseAddress(HostAndPort(address_)); })
      .then([](kj::Own<kj::NetworkAddress> address) {
        auto connecting = address->connectAuthenticated();
        return connecting.attach(kj::mv(address));
      })
      .catch_([this](kj::Exception&& exception) -> kj::AuthenticatedStream {
        kj::throwFatalException(ToException(NoServer(exception.getDescription().cStr())));
      })
      .then([this](kj::AuthenticatedStream connected) {
        TuneTcp(*connected.stream);
        return tls_->wrapClient(kj::mv(connected), address_.host);
      })
      .then([this](kj::AuthenticatedStream opened) {
        ThrowIfError(CheckUnit(*opened.peerIdentity));
        return kj::mv(opened.stream);
      })
      .catch_([this](kj::Exception&& exception) -> kj::Own<kj::AsyncIoStream> {
        const absl::Status status = FromException(exception);
        if (exception.getType() == kj::Exception::Type::DISCONNECTED || status.code() != absl::StatusCode::kInternal) {
          kj::throwFatalException(kj::mv(exception));
        }
        kj::throwFatalException(ToException(absl::UnauthenticatedError(StrCat(
            what_, ": ", Printable(ToText(address_), kMaxShownBytes), ": TLS: ", exception.getDescription().cStr()))));
      });
}

kj::Promise<kj::Own<LinkStream>> Dialer::ConnectLink(uint64_t key) {
  return Connect().then([this, key](kj::Own<kj::AsyncIoStream> stream) -> kj::Promise<kj::Own<LinkStream>> {
    auto begin = kj::heapArray<kj::byte>(kLinkMagicBytes + sizeof(key));
    std::memcpy(begin.begin(), kLinkMagic, kLinkMagicBytes);
    std::memcpy(begin.begin() + kLinkMagicBytes, &key, sizeof(key));
    auto written = stream->write(begin.begin(), begin.size()).attach(kj::mv(begin));
    return written.then([this, stream = kj::mv(stream)]() mutable -> kj::Own<LinkStream> {
      return MakeLinkStream(io_.unixEventPort, kind(), kj::mv(stream));
    });
  });
}

}  // namespace tessera
