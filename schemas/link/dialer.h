#pragma once

// Dialer: how a server is reached, by unix socket or by TLS. Each connection begins as one of two: of calls, with Cap'n
// Proto's RPC, or a link, which says so with kLinkMagic and a key that an answer to a call gave (two_party.h).
//
//   TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Dialer> dialer,
//                            Dialer::Make("connect", address, DialedServer::kCoordinator, tls_files, io));
//   auto stream = dialer->Connect().wait(io.waitScope);           // then DialedConnection(kj::mv(stream), ...)
//   auto link = dialer->ConnectLink(key).wait(io.waitScope);

#include <cstdint>
#include <memory>
#include <string>

#include <kj/async-io.h>

#include "absl/status/statusor.h"
#include "schemas/link/link_stream.h"
#include "schemas/link/stream_kind.h"
#include "schemas/link/tls.h"
#include "schemas/types/address.h"

namespace tessera {

// The bytes with which a link begins, the key behind them: no segment table, so nothing else is taken for it.
inline constexpr char kLinkMagic[9] = "TSRLINK1";
inline constexpr size_t kLinkMagicBytes = 8;

// A half-open TCP connection ends after this: no answer to what was sent, or to a keep-alive.
inline constexpr int kTcpTimeoutMs = 20'000;  // docs/limits.md: tcp_timeout
// Small messages leave at once, and a peer that is gone without a word is found out. On other sockets: nothing.
void TuneTcp(kj::AsyncIoStream& stream);

// A connected unix socket; Unavailable when nobody listens. `what` opens the message.
absl::StatusOr<kj::AutoCloseFd> ConnectUnixSocket(std::string_view what, const std::string& path);

// Whom the address is to belong to. A coordinator is shown tokens, so a worker's certificate is refused there; one
// whose subject has neither unit of `tessera certs` may be anybody's (certificate_units.h).
enum class DialedServer : uint8_t { kCoordinator, kWorker };

class Dialer {
 public:
  // `what` opens messages. The files are read now, where the address is TLS's.
  static absl::StatusOr<std::unique_ptr<Dialer>> Make(std::string_view what, Address address, DialedServer server,
                                                      const TlsFiles& files, kj::AsyncIoContext& io);

  // Unavailable: nobody listens. PermissionDenied: another user's process serves the unix socket. Unauthenticated: the
  // server's certificate is not for this host, has expired, is signed by nobody who is trusted, or is a worker's where
  // a coordinator is dialed; nothing has been sent to that server. As kj exceptions.
  kj::Promise<kj::Own<kj::AsyncIoStream>> Connect();
  kj::Promise<kj::Own<LinkStream>> ConnectLink(uint64_t key);

  StreamKind kind() const { return address_.is_unix() ? StreamKind::kUnixSocket : StreamKind::kBytes; }
  const Address& address() const { return address_; }

 private:
  Dialer(std::string what, Address address, DialedServer server, kj::Own<kj::TlsContext> tls, kj::AsyncIoContext& io)
      : what_(std::move(what)), address_(std::move(address)), server_(server), tls_(kj::mv(tls)), io_(io) {}
  kj::Promise<kj::Own<kj::AsyncIoStream>> ConnectUnix();
  kj::Promise<kj::Own<kj::AsyncIoStream>> ConnectTls();
  absl::Status NoServer(std::string_view why) const;
  absl::Status CheckUnit(const kj::PeerIdentity& server) const;

  std::string what_;
  Address address_;
  DialedServer server_;
  kj::Own<kj::TlsContext> tls_;
  kj::AsyncIoContext& io_;
};

}  // namespace tessera
