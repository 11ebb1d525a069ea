#pragma once

// A record of a session's queue as schemas/session.capnp has it, for a snapshot. DecodeRecord reads it.

#include "schemas/session.capnp.h"
#include "server/coordinator/events.h"

namespace tessera {

// Encodes all records but BadRecord and BatchEndRecord, which no client sends.
void EncodeRecord(const Record& record, wire::Record::Builder builder);

}  // namespace tessera
