#pragma once

// absl::Status <-> kj::Exception, the one place where the two meet. A status that crosses an RPC
// boundary as an exception carries its code in the description, "tessera:<code>:<message>", and comes
// back the same; any other exception becomes Unavailable (disconnected, overloaded), Unimplemented or
// Internal.

#include <kj/exception.h>

#include "absl/status/status.h"

namespace tessera {

kj::Exception ToException(const absl::Status& status);
void ThrowIfError(const absl::Status& status);
absl::Status FromException(const kj::Exception& exception);

}  // namespace tessera
