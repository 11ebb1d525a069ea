#pragma once

// The worker's own socket: peers fetch the arena, clients bring and fetch bytes by ticket. A client's
// memory is mapped here, never the reverse.

#include <cstdint>

#include "schemas/codec/two_party.h"
#include "schemas/worker.capnp.h"
#include "server/device/device.h"
#include "server/worker/attached_memory.h"
#include "server/worker/files/decoder.h"
#include "server/worker/rpc/copy_thread.h"
#include "server/worker/rpc/file_calls.h"
#include "server/worker/rpc/relay.h"
#include "server/worker/tickets.h"

namespace tessera {

inline constexpr uint32_t kMaxTransferPart = uint32_t{4} << 20;  // docs/limits.md: max_transfer_part

// Clients of the own host lend their memory; those of others send and get parts, and may come back to a ticket when
// their connection breaks.
enum class ClientHost : uint8_t { kOwn, kOther };

// What a gate opens to. All of it outlives the gate.
struct GateParts {
  TicketTable& tickets;
  Device& device;
  CopyThread& copies;
  CopyThread& decodes;  // what asks the decoder, which may take long
  Decoder& decoder;
  AttachedMemory& attached;
  const HostFiles& files;
  uint64_t peer_key;
  Relays* relays;  // null: to no other worker
};

// The bootstrap capability of one data connection. `admit` is called when the key or a ticket was shown.
wire::DataGate::Client MakeDataGate(const GateParts& parts, ClientHost host, Acceptor::Admit admit);

}  // namespace tessera
