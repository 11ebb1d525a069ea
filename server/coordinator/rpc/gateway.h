#pragma once

// MakeGateway: the bootstrap capability of one connection to the coordinator. A connection opens at
// most one session or joins one worker; what it opened ends with it.

#include <sys/types.h>

#include "schemas/codec/two_party.h"
#include "schemas/session.capnp.h"
#include "server/coordinator/rpc/hub.h"

namespace tessera {

// `peer_pid` is what the kernel says of the other side; 0 when unknown. `admit` is called when a right
// token was shown.
wire::Gateway::Client MakeGateway(Hub& hub, pid_t peer_pid, Acceptor::Admission admission);

}  // namespace tessera
