#pragma once

// TlsStream: a TLS session over a TCP socket. The handshake is part of the first reads and writes.

#include <memory>
#include <string>

#include "server/transport/stream/stream.h"
#include "server/transport/tls/context.h"

namespace tessera {

class TlsStream : public Stream {
 public:
  // The stream of a connection that came. Takes the descriptor. `name` is the other side's, for people.
  static std::unique_ptr<TlsStream> Accepted(SSL_CTX* context, int fd, std::string name);
  // The stream of a connection that is under way; the certificate has to name the host. `when_unreachable` says whether
  // another attempt may find what this one doesn't.
  static std::unique_ptr<TlsStream> Dialed(SSL_CTX* context, int fd, std::string name, std::string host,
                                           Next when_unreachable);
  ~TlsStream() override;

  int fd() const override { return fd_; }
  Moved Read(absl::Span<std::byte> to) override;
  Moved Write(absl::Span<const iovec> pieces) override;
  bool HasMore() const override { return SSL_has_pending(session_.get()) == 1; }
  const std::string& error() const override { return error_; }
  std::string Name() const override { return name_; }

 private:
  enum class Side : uint8_t { kListener, kDialer };
  TlsStream(TlsSession session, int fd, std::string name, std::string host, Side side, Next when_unreachable);
  static std::unique_ptr<TlsStream> Make(SSL_CTX* context, int fd, std::string name, std::string host, Side side,
                                         Next when_unreachable);
  static BIO_METHOD* Socket();
  static int WriteSocket(BIO* bio, const char* data, int bytes);
  static int ReadSocket(BIO* bio, char* data, int bytes);

  // Whether the socket is connected.
  Next Connected();
  // After a call of the library that didn't go on, `bytes` having passed before it.
  Moved Stop(int result, size_t bytes);
  Moved End(std::string error, Next next);
  std::string WhyFailed() const;

  const TlsSession session_;
  const int fd_;
  const std::string name_, host_;
  const Next when_unreachable_;
  bool is_connected_ = false;
  int system_error_ = 0;   // of the last call that failed; 0: the other side closed it
  Next end_ = Next::kNow;  // kEnded or kRefused when it is over
  std::string error_;
};

}  // namespace tessera
