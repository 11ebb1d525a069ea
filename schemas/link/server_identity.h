#pragma once

// Checks which user serves a unix socket. A path can be somebody else's: a stranger who made a socket there first is
// shown what the next client says.

#include <string_view>

#include "absl/status/status.h"

namespace tessera {

// Before a token is shown on the connected socket: ok when this process's user or root listens there, or the user whose
// number TESSERA_SERVER_UID says. Else PermissionDenied, which opens with `what` and has the path and both users.
absl::Status CheckServer(std::string_view what, int fd, std::string_view path);

}  // namespace tessera
