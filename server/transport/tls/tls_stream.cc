#include "server/transport/tls/tls_stream.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/transport/tls/host_addresses.h"

namespace tessera {
namespace {

constexpr size_t kRecordBytes = 16 << 10;    // the most that TLS encrypts as one
constexpr size_t kBytesPerCall = 512 << 10;  // before other connections have their turn

// Sets the host that the session asks for and checks.
bool SetHost(SSL* session, const std::string& host) {
  X509_VERIFY_PARAM* const check = SSL_get0_param(session);
  X509_VERIFY_PARAM_set_hostflags(check, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
  if (IsNumericHost(host)) return X509_VERIFY_PARAM_set1_ip_asc(check, host.c_str()) == 1;
  return X509_VERIFY_PARAM_set1_host(check, host.data(), host.size()) == 1 &&
         SSL_set_tlsext_host_name(session, host.c_str()) == 1;
}

bool IsForNow(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

// ---- the socket below it, which raises no signal

int TlsStream::WriteSocket(BIO* bio, const char* data, int bytes) {
  auto& self = *static_cast<TlsStream*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const ssize_t sent = send(self.fd_, data, static_cast<size_t>(bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) self.system_error_ = errno;
  if (sent < 0 && (IsForNow(errno) || errno == ENOBUFS || errno == ENOMEM)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int TlsStream::ReadSocket(BIO* bio, char* data, int bytes) {
  auto& self = *static_cast<TlsStream*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const ssize_t count = recv(self.fd_, data, static_cast<size_t>(bytes), MSG_DONTWAIT);
  if (count <= 0) self.system_error_ = count < 0 ? errno : 0;
  if (count < 0 && IsForNow(errno)) BIO_set_retry_read(bio);
  return static_cast<int>(count);
}

BIO_METHOD* TlsStream::Socket() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tessera socket");
    TESSERA_CHECK(made != nullptr);
    BIO_meth_set_write(made, &WriteSocket);
    BIO_meth_set_read(made, &ReadSocket);
    BIO_meth_set_ctrl(made, [](BIO*, int command, long, void*) -> long { return command == BIO_CTRL_FLUSH ? 1 : 0; });
    BIO_meth_set_create(made, [](BIO* bio) {
      BIO_set_init(bio, 1);
      return 1;
    });
    return made;
  }();
  return method;
}

TlsStream::TlsStream(TlsSession session, int fd, std::string name, std::string host, Side side, Next when_unreachable)
    : session_(std::move(session)),
      fd_(fd),
      name_(std::move(name)),
      host_(std::move(host)),
      when_unreachable_(when_unreachable),
      is_connected_(side == Side::kListener) {}

TlsStream::~TlsStream() {
  // A peer that an alert tells why reads it before the connection is reset.
  shutdown(fd_, SHUT_WR);
  char rest[4096];
  (void)!recv(fd_, rest, sizeof(rest), MSG_DONTWAIT);
  close(fd_);
}

std::unique_ptr<TlsStream> TlsStream::Make(SSL_CTX* context, int fd, std::string name, std::string host, Side side,
                                           Next when_unreachable) {
  TlsSession session(SSL_new(context));
  BIO* const socket = session == nullptr ? nullptr : BIO_new(Socket());
  if (socket == nullptr || (side == Side::kDialer && !SetHost(session.get(), host))) {
    ERR_clear_error();
    BIO_free(socket);
    close(fd);
    return nullptr;
  }
  SSL_set_bio(session.get(), socket, socket);
  side == Side::kDialer ? SSL_set_connect_state(session.get()) : SSL_set_accept_state(session.get());
  std::unique_ptr<TlsStream> made(
      new TlsStream(std::move(session), fd, std::move(name), std::move(host), side, when_unreachable));
  BIO_set_data(socket, made.get());
  return made;
}

std::unique_ptr<TlsStream> TlsStream::Accepted(SSL_CTX* context, int fd, std::string name) {
  return Make(context, fd, std::move(name), "", Side::kListener, Next::kEnded);
}

std::unique_ptr<TlsStream> TlsStream::Dialed(SSL_CTX* context, int fd, std::string name, std::string host,
                                             Next when_unreachable) {
  return Make(context, fd, std::move(name), std::move(host), Side::kDialer, when_unreachable);
}

// ---- what passes

Next TlsStream::Connected() {
  if (end_ != Next::kNow) return end_;
  if (is_connected_) return Next::kNow;
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return End(std::strerror(error), error == ECONNREFUSED ? when_unreachable_ : Next::kEnded).next;
  sockaddr_storage address{};
  length = sizeof(address);
  if (getpeername(fd_, reinterpret_cast<sockaddr*>(&address), &length) != 0) return Next::kWritable;
  is_connected_ = true;
  return Next::kNow;
}

Moved TlsStream::Read(absl::Span<std::byte> to) {
  if (const Next next = Connected(); next != Next::kNow) return {0, next};
  const size_t wanted = std::min(to.size(), kBytesPerCall);
  size_t done = 0;
  ERR_clear_error();
  while (done < wanted) {
    size_t count = 0;
    const int result = SSL_read_ex(session_.get(), to.data() + done, wanted - done, &count);
    if (result != 1) return Stop(result, done);
    done += count;
  }
  return {done, Next::kNow};
}

Moved TlsStream::Write(absl::Span<const iovec> pieces) {
  if (const Next next = Connected(); next != Next::kNow) return {0, next};
  std::array<std::byte, kRecordBytes> gathered;
  size_t done = 0, piece = 0, begin = 0;  // what is next: so far into that piece
  ERR_clear_error();
  while (piece < pieces.size() && done < kBytesPerCall) {
    // Short pieces share a record.
    const std::byte* data = static_cast<const std::byte*>(pieces[piece].iov_base) + begin;
    size_t bytes = pieces[piece].iov_len - begin;
    if (bytes < kRecordBytes && piece + 1 < pieces.size()) {
      bytes = 0;
      for (size_t i = piece, from = begin; i < pieces.size() && bytes < kRecordBytes; ++i, from = 0) {
        const size_t part = std::min(pieces[i].iov_len - from, kRecordBytes - bytes);
        std::memcpy(gathered.data() + bytes, static_cast<const std::byte*>(pieces[i].iov_base) + from, part);
        bytes += part;
      }
      data = gathered.data();
    }
    size_t count = 0;
    const int result = SSL_write_ex(session_.get(), data, bytes, &count);
    if (result != 1) return Stop(result, done);
    done += count;
    for (begin += count; piece < pieces.size() && begin >= pieces[piece].iov_len; ++piece)
      begin -= pieces[piece].iov_len;
  }
  return {done, Next::kNow};
}

Moved TlsStream::Stop(int result, size_t bytes) {
  switch (SSL_get_error(session_.get(), result)) {
    case SSL_ERROR_WANT_READ: return {bytes, Next::kReadable};
    case SSL_ERROR_WANT_WRITE: return {bytes, Next::kWritable};
    case SSL_ERROR_ZERO_RETURN: End("the other side closed it", Next::kEnded); break;
    case SSL_ERROR_SSL: End(WhyFailed(), Next::kRefused); break;
    default: End(system_error_ == 0 ? "the other side closed it" : std::strerror(system_error_), Next::kEnded);
  }
  // Bytes that came before are told first.
  return bytes > 0 ? Moved{bytes, Next::kNow} : Moved{0, end_};
}

Moved TlsStream::End(std::string error, Next next) {
  error_ = std::move(error);
  end_ = next;
  return {0, next};
}

std::string TlsStream::WhyFailed() const {
  const unsigned long code = ERR_peek_error();
  const std::string reason = TakeTlsError();
  const long verdict = SSL_get_verify_result(session_.get());
  if (verdict == X509_V_ERR_APPLICATION_VERIFICATION) {
    return "its certificate is refused: its organizational unit is not tessera-worker";
  }
  if (verdict != X509_V_OK) {
    const std::string what = X509_verify_cert_error_string(verdict);
    const bool is_of_host = verdict == X509_V_ERR_HOSTNAME_MISMATCH || verdict == X509_V_ERR_IP_ADDRESS_MISMATCH;
    return StrCat("its certificate is refused: ", what, is_of_host ? StrCat(", it is not for ", host_) : "");
  }
  const bool is_alert = ERR_GET_REASON(code) > SSL_AD_REASON_OFFSET;
  return StrCat(is_alert ? "the other side refused it: " : "TLS: ",
                reason.empty() ? "an error without a name" : reason);
}

}  // namespace tessera
