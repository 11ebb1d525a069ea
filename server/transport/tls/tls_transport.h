#pragma once

// TlsTransport: messages between workers of different hosts over TCP, encrypted and authenticated by TLS 1.2 or 1.3.
//
// Both sides show a certificate that the same CA has signed, for the unit "tessera-worker", and that has not expired;
// the side that connects checks the host that it connected to against the other's subjectAltName, and shows the
// receiver's random key (stream/stream_transport.h). A peer that doesn't is closed: with a line in the log, at most one
// a second, and counted. `tessera certs` makes such certificates. Handshakes don't hold up messages of others; one that
// is not over in reconnect_timeout is given up, and max_tls_guests of them are under way at most.
//
//   TlsOptions options{.listen_host = "10.0.0.7", .certificate = "worker.crt", .key = "worker.key", .ca = "ca.crt"};
//   auto transport = TlsTransport::Make(WorkerIndex(0), options);
//   (*transport)->Address();   // "tls 10.0.0.7 40123 1f00c9..."

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "server/transport/stream/stream_transport.h"

namespace tessera {

inline constexpr int64_t kTlsStallTimeoutMs = 30'000;  // docs/limits.md: message_stall_timeout

struct TlsOptions {
  std::string listen_host;           // a name or a number of this host; "0.0.0.0" and "::" for all of its addresses
  int port = 0;                      // 0: any that is free
  std::string advertise_host;        // by which others reach it; empty: listen_host
  std::string certificate, key, ca;  // PEM files
  // A connection on which the other host's kernel says nothing for so long counts as broken.
  int64_t stall_timeout_ms = kTlsStallTimeoutMs;
};

// "node7", "node7:4000", "[fd00::7]:4000", "fd00::7" as host and port, 0 where there is none. InvalidArgument.
absl::StatusOr<std::pair<std::string, int>> ParseHostAndPort(std::string_view text);

class TlsTransport : public StreamTransport {
 public:
  // InvalidArgument names the option and the file that can't be used; Internal with the system's message where it
  // can't listen.
  static absl::StatusOr<std::unique_ptr<TlsTransport>> Make(WorkerIndex self, const TlsOptions& options);

  // The files of certificate and key have changed: connections that are made from now on show the new one. The errors
  // of Make, and the old ones stay. Any thread's call.
  absl::Status Renew();

  // Connections that ended before they were a peer's, and attempts to reach a peer that failed.
  uint64_t refused() const { return *refused_; }

 private:
  class Identity;
  TlsTransport() = default;
  std::shared_ptr<Identity> identity_;
  std::shared_ptr<std::atomic<uint64_t>> refused_ = std::make_shared<std::atomic<uint64_t>>(0);
};

}  // namespace tessera
