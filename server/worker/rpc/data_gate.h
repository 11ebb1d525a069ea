#pragma once

// The worker's own socket: peers fetch the arena, clients bring and fetch bytes by ticket. A client's
// memory is mapped here, never the reverse.

#include "schemas/worker.capnp.h"
#include "server/worker/rpc/data_connection.h"
#include "server/worker/rpc/gate_parts.h"

namespace tessera {

// The bootstrap capability of one data connection.
wire::DataGate::Client MakeDataGate(const GateParts& parts, ClientHost host, DataConnection::Door door);

}  // namespace tessera
