#pragma once

// DialedLine: a connection to a server's calls that is being made, is there, or is broken. Calls may be made from the
// start: they wait for the connection. The holder of a broken line makes a new one in its place.
//
//   DialedLine line(*Dialer::Make("data", address, DialedServer::kWorker, tls_files, io));
//   line.Bootstrap<wire::BulkServer>().transferRequest()...

#include <memory>

#include <capnp/capability.h>
#include <kj/async.h>

#include "schemas/link/dialer.h"
#include "schemas/link/two_party.h"

namespace tessera {

class DialedLine {
 public:
  explicit DialedLine(std::shared_ptr<Dialer> dialer);
  DialedLine(StreamKind kind, kj::Own<kj::AsyncIoStream> stream);

  template <typename Interface>
  typename Interface::Client Bootstrap() {
    return bootstrap_.castAs<Interface>();
  }
  // Ready when the connection is there; fails as Dialer::Connect does.
  kj::Promise<void> WhenThere() { return bootstrap_.whenResolved(); }
  bool is_there() const { return connection_->get() != nullptr; }
  // It ended, or could not be made.
  bool is_broken() const { return *is_broken_; }

 private:
  using Connection = std::shared_ptr<kj::Own<DialedConnection>>;  // null until it is there
  static kj::Promise<capnp::Capability::Client> Dial(std::shared_ptr<Dialer> dialer, Connection connection);
  void Watch();

  Connection connection_;
  capnp::Capability::Client bootstrap_;
  std::shared_ptr<bool> is_broken_ = std::make_shared<bool>(false);
  kj::Promise<void> watching_ = nullptr;
};

}  // namespace tessera
