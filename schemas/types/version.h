#pragma once

// The version of the code, for people: what programs and clients say of themselves. The protocolVersion
// (schemas/session.capnp) decides which of them may talk to each other.

namespace tessera {

inline constexpr char kVersion[] = "0.1";

}  // namespace tessera
