#pragma once

// ClientRelays: connections by which clients that don't reach a worker reach it through this one. This worker passes on
// their words about tickets, and the bytes with them; the coordinator sees none of them. To each such worker there is
// one connection for all clients, over its unix socket where it is on this host, else over TLS to its data address; it
// is made when it is asked for, and again when it broke.
//
// Law: a client gets from another worker what its ticket lets it have there, and nothing else.

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <kj/async-io.h>

#include "schemas/link/dialed_line.h"
#include "schemas/link/tls_files.h"
#include "schemas/types/ids.h"
#include "schemas/worker.capnp.h"
#include "server/plan/worker_message.h"
#include "server/worker/rpc/data_connection.h"

namespace tessera {

class ClientRelays {
 public:
  // `host` and `peer_key` are this worker's, `tls` what it shows and whom it trusts.
  ClientRelays(kj::AsyncIoContext& io, TlsFiles tls, std::string host, uint64_t peer_key)
      : io_(io), tls_(std::move(tls)), host_(std::move(host)), peer_key_(peer_key) {}

  void Add(const PeerJoined& peer);
  void Remove(WorkerIndex peer) { peers_.erase(peer); }

  // The bulk server for a client, when the peer is reached. The client's connection has a place from when the peer has
  // taken its ticket until that is over. NotFound: there is no such peer; FailedPrecondition: no client of another host
  // reaches it from here; Unavailable: it doesn't answer.
  kj::Promise<wire::BulkServer::Client> Reach(WorkerIndex peer, std::shared_ptr<DataConnection> connection);

 private:
  struct Peer {
    std::string address;  // empty: not reached from here
    std::shared_ptr<DialedLine> line = nullptr;
  };
  absl::StatusOr<std::shared_ptr<DialedLine>> LineTo(WorkerIndex peer);

  kj::AsyncIoContext& io_;
  const TlsFiles tls_;
  const std::string host_;
  const uint64_t peer_key_;
  std::map<WorkerIndex, Peer> peers_;
};

}  // namespace tessera
