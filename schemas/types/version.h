#pragma once

// The version of the code, for people: what programs and clients say of themselves. What may talk to what is decided by
// protocolVersion (schemas/session.capnp).

namespace tessera {

inline constexpr char kVersion[] = "0.1";

}  // namespace tessera
