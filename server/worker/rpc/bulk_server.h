#pragma once

// The worker's own socket: peers fetch the arena, clients bring and fetch bytes by ticket. A client's
// memory is mapped here, never the reverse.

#include "schemas/worker.capnp.h"
#include "server/worker/rpc/bulk_parts.h"
#include "server/worker/rpc/data_connection.h"

namespace tessera {

// The bootstrap capability of one data connection.
wire::BulkServer::Client MakeBulkServer(const BulkParts& parts, ClientHost host, DataConnection::Door door);

}  // namespace tessera
