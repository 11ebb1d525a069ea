#pragma once

// Parts of a worker's bulk server: the threads for calls that may take their time, the places that clients share, and
// all that it opens to.

#include <algorithm>
#include <chrono>
#include <cstdint>

#include <kj/timer.h>

#include "server/device/device.h"
#include "server/worker/attached_memory.h"
#include "server/worker/fair_places.h"
#include "server/worker/files/decoder.h"
#include "server/worker/rpc/client_relays.h"
#include "server/worker/rpc/file_calls.h"
#include "server/worker/rpc/job_threads.h"
#include "server/worker/tickets.h"

namespace tessera {

inline constexpr int64_t kCopyPieceBytes = int64_t{32} << 20;  // docs/limits.md: copy_piece_bytes
// docs/limits.md: max_data_connections, max_open_files
inline constexpr int64_t kMaxDataConnections = 3840;
inline constexpr int64_t kDescriptorShares = 4;  // of the process's descriptors, one is for connections, one for files

// Clients of the own host lend their memory; those of others send and get parts, and may come back to a ticket when
// their connection breaks.
enum class ClientHost : uint8_t { kOwn, kOther };

struct DataPlaces {
  // Shares out the descriptors that a process may have: the others are for peers, guests, and descriptors that clients
  // lend.
  explicit DataPlaces(int64_t descriptors)
      : connections("max_data_connections", std::min(kMaxDataConnections, descriptors / kDescriptorShares)),
        open_files("max_open_files", descriptors / kDescriptorShares) {}
  FairPlaces connections;
  FairPlaces open_files;
};

// All of it outlives the bulk.
struct BulkParts {
  TicketTable& tickets;
  Device& device;
  DataThreads& threads;
  DataPlaces& places;
  Decoder& decoder;
  AttachedMemory& attached;
  const HostFiles& files;
  uint64_t peer_key;
  ClientRelays* relays;  // null: to no other worker
};

}  // namespace tessera
