#pragma once

// StreamKind: what a stream of KJ can pass.

namespace tessera {

// A stream of KJ is a unix socket (an AsyncCapabilityStream, which passes descriptors), or one of bytes alone, as TLS
// makes it.
enum class StreamKind : unsigned char { kUnixSocket, kBytes };

}  // namespace tessera
