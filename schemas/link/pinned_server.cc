#include "schemas/link/pinned_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>
#include <vector>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "absl/strings/str_join.h"
#include "schemas/link/authority.h"
#include "schemas/link/openssl_pieces.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr size_t kMaxShownBytes = 200;

using Context = std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>>;
using Connection = std::unique_ptr<SSL, Freed<SSL_free>>;
using Store = std::unique_ptr<X509_STORE, Freed<X509_STORE_free>>;
using Check = std::unique_ptr<X509_STORE_CTX, Freed<X509_STORE_CTX_free>>;
using Found = std::unique_ptr<addrinfo, Freed<freeaddrinfo>>;

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string LibraryError() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* const reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "the connection ended" : reason;
}

// Connects and sets the time in which later reads and writes are to be over. 0 or errno.
int Connect(int fd, const addrinfo& to, int timeout_ms) {
  const int flags = fcntl(fd, F_GETFL);
  fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  if (connect(fd, to.ai_addr, to.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return errno;
    pollfd ready{fd, POLLOUT, 0};
    if (poll(&ready, 1, timeout_ms) <= 0) return ETIMEDOUT;
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return error;
  }
  fcntl(fd, F_SETFL, flags);
  const timeval timeout{timeout_ms / 1000, timeout_ms % 1000 * 1000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  return 0;
}

std::string OwnAddress(int fd) {
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  char text[NI_MAXHOST] = "";
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0) return "";
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&own), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) !=
      0) {
    return "";
  }
  return text;
}

// The certificate of the pin among those that the server has shown; null where it is none of them.
X509* FindPinned(STACK_OF(X509) * shown, const std::string& pin) {
  for (int i = 0; i < sk_X509_num(shown); ++i) {
    if (PinOf(*sk_X509_value(shown, i)) == pin) return sk_X509_value(shown, i);
  }
  return nullptr;
}

absl::Status NoPinned(const std::string& where, STACK_OF(X509) * shown, const std::string& pin) {
  std::vector<std::string> authorities;
  for (int i = 0; i < sk_X509_num(shown); ++i) {
    if (X509_check_ca(sk_X509_value(shown, i)) != 0) authorities.push_back(PinOf(*sk_X509_value(shown, i)));
  }
  const std::string which =
      authorities.empty()
          ? "the server shows no CA at all: put the CA's certificate behind the server's own in its --tls-cert"
          : StrCat("the server's CA has the pin ", absl::StrJoin(authorities, ", "),
                   "; take that for --ca-pin if this is the server that you mean");
  return absl::UnauthenticatedError(StrCat(where, ": TLS: no CA of the pin ", pin, "; ", which));
}

// Whether the CA has signed the server's certificate, for this host and for now.
absl::Status CheckServer(const std::string& where, const Address& address, X509* ca, X509* server,
                         STACK_OF(X509) * shown) {
  const Store store(X509_STORE_new());
  const Check check(X509_STORE_CTX_new());
  if (store == nullptr || check == nullptr || X509_STORE_add_cert(store.get(), ca) != 1 ||
      X509_STORE_CTX_init(check.get(), store.get(), server, shown) != 1 ||
      X509_STORE_CTX_set_default(check.get(), "ssl_server") != 1) {
    return absl::InternalError(StrCat(where, ": TLS: ", LibraryError()));
  }
  X509_VERIFY_PARAM* const wanted = X509_STORE_CTX_get0_param(check.get());
  if (X509_VERIFY_PARAM_set1_ip_asc(wanted, address.host.c_str()) != 1) {
    X509_VERIFY_PARAM_set1_host(wanted, address.host.c_str(), address.host.size());
  }
  ERR_clear_error();
  if (X509_verify_cert(check.get()) == 1) return absl::OkStatus();
  const int error = X509_STORE_CTX_get_error(check.get());
  std::string why = StrCat("the server's certificate is refused: ", X509_verify_cert_error_string(error));
  if (error == X509_V_ERR_CERT_NOT_YET_VALID || error == X509_V_ERR_CERT_HAS_EXPIRED) {
    StrAppend(&why, "; by this machine's clock it is ", DateText(std::time(nullptr)),
              ": set the clock if that is not so");
  }
  if (error == X509_V_ERR_HOSTNAME_MISMATCH || error == X509_V_ERR_IP_ADDRESS_MISMATCH) {
    StrAppend(&why, ", it is not for ", address.host, "; dial the server by a name that its certificate has");
  }
  return absl::UnauthenticatedError(StrCat(where, ": TLS: ", why));
}

absl::StatusOr<PinnedServer> Look(const std::string& where, const Address& address, const std::string& pin, int fd) {
  const Context context(SSL_CTX_new(TLS_client_method()));
  const Connection connection(context == nullptr ? nullptr : SSL_new(context.get()));
  if (connection == nullptr || SSL_set_fd(connection.get(), fd) != 1) {
    return absl::InternalError(StrCat(where, ": TLS: ", LibraryError()));
  }
  // Checked below, when it is known which CA is meant.
  SSL_set_verify(connection.get(), SSL_VERIFY_NONE, nullptr);
  SSL_set_min_proto_version(connection.get(), TLS1_2_VERSION);
  SSL_set_tlsext_host_name(connection.get(), address.host.c_str());
  ERR_clear_error();
  errno = 0;
  if (SSL_connect(connection.get()) != 1) {
    const bool is_late = errno == EAGAIN || errno == EWOULDBLOCK;
    const std::string why = is_late ? "it says nothing" : LibraryError();
    return absl::UnavailableError(StrCat(where, ": no TLS handshake: ", why));
  }
  STACK_OF(X509)* const shown = SSL_get_peer_cert_chain(connection.get());
  X509* const server = SSL_get0_peer_certificate(connection.get());
  if (shown == nullptr || server == nullptr) {
    return absl::UnauthenticatedError(StrCat(where, ": TLS: the server shows no certificate"));
  }
  X509* const ca = FindPinned(shown, pin);
  if (ca == nullptr) return NoPinned(where, shown, pin);
  TESSERA_RETURN_IF_ERROR(CheckServer(where, address, ca, server, shown));
  const Bio out(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(out.get(), ca) != 1) return absl::InternalError(StrCat(where, ": TLS: ", LibraryError()));
  char* text = nullptr;
  const long bytes = BIO_get_mem_data(out.get(), &text);
  SSL_shutdown(connection.get());
  return PinnedServer{std::string(text, static_cast<size_t>(bytes)), OwnAddress(fd)};
}

}  // namespace

absl::StatusOr<PinnedServer> FindPinnedServer(std::string_view what, const Address& address, const std::string& pin,
                                              double timeout_s) {
  if (address.is_unix()) {
    return absl::InvalidArgumentError(StrCat(what, ": ", ToText(address), ": a pin is for addresses of TLS"));
  }
  if (!IsPin(pin)) {
    return absl::InvalidArgumentError(StrCat(what, ": --ca-pin \"", Printable(pin, 80),
                                             "\" is none: sha256: and 64 digits in hex, as `tessera up` prints it"));
  }
  const std::string where = StrCat(what, ": ", Printable(ToText(address), kMaxShownBytes));
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* listed = nullptr;
  const int failed = getaddrinfo(address.host.c_str(), StrCat(address.port).c_str(), &hints, &listed);
  const Found found(listed);
  if (failed != 0) return absl::UnavailableError(StrCat(where, ": ", gai_strerror(failed)));
  absl::Status last;
  for (const addrinfo* to = found.get(); to != nullptr; to = to->ai_next) {
    const Socket socket(::socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int error = socket.get() < 0 ? errno : Connect(socket.get(), *to, static_cast<int>(timeout_s * 1e3));
    if (error != 0) {
      last = absl::UnavailableError(StrCat(where, ": no server: ", std::strerror(error)));
      continue;
    }
    auto seen = Look(where, address, pin, socket.get());
    if (seen.ok() || !absl::IsUnavailable(seen.status())) return seen;
    last = seen.status();
  }
  return last;
}

}  // namespace tessera
