#pragma once

// MakeGateway: the bootstrap capability of one connection to the coordinator. A connection opens at
// most one session or joins one worker; what it opened ends with it.

#include <sys/types.h>

#include "schemas/session.capnp.h"
#include "server/coordinator/rpc/hub.h"

namespace tessera {

struct ConnectionInfo {
  pid_t peer_pid = 0;           // as the kernel says; 0 when unknown
  std::function<void()> close;  // ends the connection from this side
};

wire::Gateway::Client MakeGateway(Hub& hub, ConnectionInfo info);

}  // namespace tessera
