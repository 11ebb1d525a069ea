#pragma once

// Two ends of a Cap'n Proto connection over a guarded stream: the dialing side, the dialed one, and the acceptor. On a
// unix socket descriptors may travel with messages. A connection may begin as a link instead (dialer.h).

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <kj/compat/tls.h>

#include "absl/container/flat_hash_map.h"
#include "schemas/link/answer_window.h"
#include "schemas/link/link_stream.h"
#include "schemas/link/stream_guard.h"

namespace tessera {

// The dialing end. Lives as long as anything of it is used.
class DialedConnection {
 public:
  DialedConnection(StreamKind kind, kj::Own<kj::AsyncIoStream> stream);

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

// Turns of a server's event loop after which it looks for what has come, though there is more to do: whoever connects
// without end would have all of its time, as the next connection is there when one has been taken. docs/limits.md:
// loop_turns
inline constexpr unsigned kTurnsBetweenLooks = 128;

struct AcceptOptions {
  int64_t max_connections = 4096;
  // Bytes of one connection's calls that have not been taken up.
  int64_t flow_limit_bytes = 16 << 20;
  // A guest is closed by then.
  int64_t handshake_timeout_ms = 10'000;  // docs/limits.md: handshake_timeout
  // docs/limits.md: max_waiting_guests. Never more than a quarter of the descriptors that the process may have.
  size_t max_guests = 1024;
};

// The process at the other end.
struct PeerName {
  pid_t pid = 0;             // on a unix socket, as the kernel says it; 0 when unknown
  int64_t uid = -1;          // the same of its user; -1 when unknown
  std::string text;          // for people: "pid 17", "192.0.2.7:41234"
  std::string address = {};  // by which guests are counted: without the port; of IPv6 the network, its first 64 bits
};

// Accepts connections and gives each its own bootstrap capability. A connection is a guest until the other side has
// shown that it may be there. Guests take no place of others: each may send little (stream_guard.h), for a limited
// time. When there are too many, one of the address that has the most goes, a silent one if there is one: a flood from
// one address pushes out itself. A connection that breaks a rule of the stream is closed, with a line in the log;
// nothing that a peer does ends the loop.
class Acceptor final : private kj::TaskSet::ErrorHandler {
  struct Connection;

 public:
  // A connection's place, told by its capability. Outlives the connection, and does nothing then.
  class Admission {
   public:
    explicit Admission(std::weak_ptr<Connection> connection) : connection_(std::move(connection)) {}
    // The other side has shown a token, a key or a ticket.
    void operator()() const;
    // The connection's errand is over: it is a guest again, and has to show something within the handshake's timeout,
    // or may stay for as long as there are few guests.
    enum class Stay : uint8_t { kForAWhile, kWhileThereIsRoom };
    void Dismiss(Stay stay = Stay::kForAWhile) const;
    // The window of answers that the other side has not read. Null when the connection is gone.
    std::shared_ptr<AnswerWindow> answers() const;

   private:
    std::weak_ptr<Connection> connection_;
  };
  using Admit = std::function<void()>;  // of an Admission
  using MakeBootstrap = std::function<capnp::Capability::Client(const PeerName&, Admission)>;
  // A connection that began as a link, with this key. False: nobody gave such a key.
  using TakeLink = std::function<bool(uint64_t key, kj::Own<LinkStream>)>;

  // Where connections come from: a receiver of unix sockets, or of TCP, whose connections begin with TLS.
  struct Port {
    kj::ConnectionReceiver& receiver;
    MakeBootstrap make_bootstrap;
    kj::Maybe<kj::TlsContext&> tls = nullptr;
  };

  // Without TakeLink there are no links here.
  Acceptor(kj::AsyncIoContext& io, const AcceptOptions& options, TakeLink take_link = nullptr);

  // Never ends. The port outlives it; the limits are for all ports together.
  kj::Promise<void> Run(const Port& port);

 private:
  void Serve(const Port& port, kj::Own<kj::AsyncIoStream> stream);
  kj::Promise<void> ServeBegun(std::shared_ptr<Connection> connection, kj::Own<kj::AsyncIoStream> stream);
  kj::Promise<void> ServeCalls(std::shared_ptr<Connection> connection, kj::Own<kj::AsyncIoStream> stream,
                               kj::Array<kj::byte> begun);
  kj::Promise<void> ServeLink(std::shared_ptr<Connection> connection, kj::Own<kj::AsyncIoStream> stream);
  void Welcome(Connection& connection, Admission::Stay stay);
  void RemoveGuest(Connection& connection);
  void taskFailed(kj::Exception&& exception) override;

  kj::Timer& timer_;
  kj::UnixEventPort& events_;
  AcceptOptions options_;
  TakeLink take_link_;
  int64_t admitted_ = 0;
  // By address, the first one came first; no list is empty.
  absl::flat_hash_map<std::string, std::list<Connection*>> guests_;
  size_t guest_count_ = 0;
  kj::TaskSet tasks_;
};

// Ready when the read end of a pipe sees that its writers are gone; never for a negative descriptor.
kj::Promise<void> WhenPipeCloses(kj::LowLevelAsyncIoProvider& provider, int fd);

}  // namespace tessera
