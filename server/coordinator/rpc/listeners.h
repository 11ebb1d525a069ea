#pragma once

// Listeners: the addresses that a coordinator serves. Unix sockets are for clients and workers of the host; an address
// of TLS is for clients, or for workers, who show certificates.

#include <sys/types.h>

#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <kj/async-io.h>

#include "absl/status/statusor.h"
#include "schemas/host/file_watcher.h"
#include "schemas/link/tls.h"
#include "schemas/link/two_party.h"
#include "schemas/types/address.h"
#include "server/coordinator/rpc/gateway.h"
#include "server/coordinator/rpc/hub.h"

namespace tessera {

// Whether the addresses are some. Certificates are read when they are opened.
absl::Status CheckListening(const CoordinatorOptions& options);

class Listeners {
 public:
  // FailedPrecondition: another process serves a socket's path, or a file is there. Else what the system says of an
  // address, or OpenSSL of a certificate. None is open then.
  static absl::StatusOr<std::unique_ptr<Listeners>> Open(const CoordinatorOptions& options, kj::AsyncIoContext& io);

  // Never ends. Workers enrol at the enroller by addresses for clients and by unix sockets; null: none do.
  kj::Promise<void> Run(Hub& hub, Enroller* enroller);
  // For a watcher of the files of TLS, on its thread: what is taken up by the connections that come from then on. Files
  // that are no good are said, and leave what was there before.
  FileWatcher::News ReadCertificates();
  // Port 0 is the one that the system gave.
  std::vector<std::string> addresses() const;
  // The first one's where workers of other hosts join; 0: there is none.
  int workers_port() const;
  // The files of unix sockets, where they are still these; and the folders that they were in, where those are empty.
  void RemoveSockets() const;
  void RemoveFolders() const;

 private:
  struct Listener {
    Address address;
    Door door;
    kj::Own<kj::ConnectionReceiver> receiver;
    kj::Own<kj::TlsContext> tls;     // null: of a unix socket
    std::pair<dev_t, ino_t> file{};  // of a unix socket
    std::unique_ptr<Acceptor::Port> port = nullptr;
  };
  Listeners(const CoordinatorOptions& options, kj::AsyncIoContext& io) : options_(options), io_(io) {}
  absl::Status Add(const std::string& text, Door door);

  const CoordinatorOptions& options_;
  kj::AsyncIoContext& io_;
  std::list<Listener> listeners_;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace tessera
