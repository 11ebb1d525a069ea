#pragma once

// MakeGateway: the bootstrap capability of one connection to the coordinator. A connection opens at
// most one session or joins one worker; its session or worker ends with it.

#include <cstdint>

#include "schemas/link/two_party.h"
#include "schemas/session.capnp.h"
#include "server/coordinator/rpc/enroller.h"
#include "server/coordinator/rpc/hub.h"

namespace tessera {

// Whom an address is for. Workers from other hosts show certificates, clients don't: they have addresses of their own.
enum class Door : uint8_t { kAll, kClients, kWorkers };

// `admission` is called when a right token was shown. Workers enrol by the same capability (schemas/enroll.capnp),
// where there is an enroller.
wire::Gateway::Client MakeGateway(Hub& hub, Door door, const PeerName& peer, Acceptor::Admission admission,
                                  Enroller* enroller);

}  // namespace tessera
