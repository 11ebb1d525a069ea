#pragma once

// HttpLoop: /metrics, /healthz, /readyz and the page of a coordinator, on a thread with an event loop of its own.
// Nothing that a client of HTTP does is done on the coordinator's loop but the taking of a snapshot, at most one in
// kSnapshotAge.
//
//   HttpOptions options{.address = "127.0.0.1:9464"};           // or "tls://0.0.0.0:9464", with a certificate
//   TESSERA_ASSIGN_OR_RETURN(auto http, HttpLoop::Start(options, kj::getCurrentThreadExecutor(), take));
//
// Law: it reads, and changes nothing. Without TLS it listens on loopback alone, and asks nobody who they are. With TLS
// it tells whoever shows the token of a viewer or an admin (http_access.h), and everybody whether the pool is healthy
// and ready. It tells tenants' names and counts, and what sessions are called, never what tensors hold.

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include <kj/async.h>
#include <kj/time.h>

#include "absl/status/statusor.h"
#include "schemas/link/tls_files.h"
#include "server/coordinator/rpc/metrics_text.h"
#include "server/coordinator/tenants/token_table.h"

namespace tessera {

inline constexpr size_t kMaxHttpConnections = 64;  // docs/limits.md: max_http_connections, which the oldest leaves
inline constexpr kj::Duration kHttpConnectionTime = 10 * kj::SECONDS;  // docs/limits.md: http_connection_time
inline constexpr kj::Duration kPageEvery = 1 * kj::SECONDS;            // docs/limits.md: page_every
inline constexpr int kPageEvents =
    8;  // of one stream, which the browser then takes up again: docs/limits.md: page_events
inline constexpr kj::Duration kSnapshotAge = 100 * kj::MILLISECONDS;  // docs/limits.md: snapshot_age
inline constexpr kj::Duration kLoopTurnsWithin = 1 * kj::SECONDS;     // docs/limits.md: loop_turns_within

struct HttpOptions {
  std::string address;  // "127.0.0.1:9464", or "tls://host:port"
  TlsFiles tls;         // for the second one; read again when they change
};

// The part of an answer that the coordinator's loop knows.
struct HttpSnapshot {
  MetricsSnapshot metrics;
  std::shared_ptr<const TokenTable> readers;  // tokens of viewers and admins; null: there are none
};

class HttpLoop {
 public:
  // Called on the coordinator's loop.
  using TakeSnapshot = std::function<HttpSnapshot()>;

  // InvalidArgument for an address that is none, or neither of loopback nor of TLS; Unavailable where it can't listen;
  // what MakeTls says of the files.
  static absl::StatusOr<std::unique_ptr<HttpLoop>> Start(const HttpOptions& options, const kj::Executor& coordinator,
                                                         TakeSnapshot take);
  ~HttpLoop();
  // "127.0.0.1:9464"; a port that was 0 is the one that the system gave.
  const std::string& address() const { return address_; }

 private:
  class Loop;
  explicit HttpLoop(TakeSnapshot take) : take_(std::move(take)) {}
  void Run(const HttpOptions& options, const kj::Executor& coordinator, std::promise<absl::Status> started);

  const TakeSnapshot take_;
  std::string address_;                                  // from Start on
  kj::Own<kj::CrossThreadPromiseFulfiller<void>> stop_;  // likewise
  std::thread thread_;
};

}  // namespace tessera
