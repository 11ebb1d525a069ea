#pragma once

// Two ends of a Cap'n Proto connection over a guarded unix socket: what dials, what is dialed, and who
// accepts. Descriptors may travel with messages.

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <list>
#include <memory>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include "schemas/codec/stream_guard.h"

namespace tessera {

// The dialing end. Lives as long as anything of it is used.
class DialedConnection {
 public:
  explicit DialedConnection(kj::Own<kj::AsyncCapabilityStream> stream);
  explicit DialedConnection(kj::Own<kj::AsyncIoStream> stream);

  // The other side's bootstrap capability.
  template <typename Interface>
  typename Interface::Client Bootstrap() {
    return BootstrapCapability().castAs<Interface>();
  }
  kj::Promise<void> WhenClosed() { return network_.onDisconnect(); }

 private:
  capnp::Capability::Client BootstrapCapability();
  kj::Own<kj::AsyncCapabilityStream> stream_;
  capnp::TwoPartyVatNetwork network_;
  capnp::RpcSystem<capnp::rpc::twoparty::VatId> rpc_;
};

struct AcceptOptions {
  int64_t max_connections = 4096;
  // Of one connection's calls that have not been taken up.
  int64_t flow_limit_bytes = 16 << 20;
  // A guest is closed by then.
  int64_t handshake_timeout_ms = 10'000;  // docs/limits.md: handshake_timeout
  size_t max_guests = 1024;               // docs/limits.md: max_waiting_guests
};

// Accepts connections and gives each its own bootstrap capability. A connection is a guest until the other side has
// shown that it may be there. Guests take no place of others: each may send little (stream_guard.h), for a limited
// time, and of too many the first one goes. A connection that breaks a rule of the stream is closed, with a line in the
// log; nothing that a peer does ends the loop.
class Acceptor final : private kj::TaskSet::ErrorHandler {
  struct Connection;

 public:
  // A connection's place, told by its capability. Outlives the connection, and does nothing then.
  class Admission {
   public:
    explicit Admission(std::weak_ptr<Connection> connection) : connection_(std::move(connection)) {}
    // The other side has shown a token, a key or a ticket.
    void operator()() const;
    // What it was let in for is over: it is a guest again.
    void Dismiss() const;

   private:
    std::weak_ptr<Connection> connection_;
  };
  using Admit = std::function<void()>;  // of an Admission
  // Is given the peer's process id, as the kernel says it (0 when unknown).
  using MakeBootstrap = std::function<capnp::Capability::Client(pid_t, Admission)>;

  Acceptor(kj::Timer& timer, const AcceptOptions& options, MakeBootstrap make_bootstrap);

  // Never ends.
  kj::Promise<void> Run(kj::ConnectionReceiver& receiver);

 private:
  void Serve(kj::Own<kj::AsyncCapabilityStream> stream);
  void Welcome(Connection& connection);
  void taskFailed(kj::Exception&& exception) override;

  kj::Timer& timer_;
  AcceptOptions options_;
  MakeBootstrap make_bootstrap_;
  int64_t admitted_ = 0;
  std::list<Connection*> guests_;  // the first one came first
  kj::TaskSet tasks_;
};

// Ready when the read end of a pipe sees that its writers are gone; never for a negative descriptor.
kj::Promise<void> WhenPipeCloses(kj::LowLevelAsyncIoProvider& provider, int fd);

}  // namespace tessera
