#pragma once

// The control stream: how a run on several hosts talks to the `tessera run` that it starts on each through ssh. It is
// that program's stdin. It begins with variables of the environment, since a command line shows a token to everybody
// on a host. Then each byte is the number of a signal to end the ranks by. Its end counts as SIGTERM, so no rank
// outlives the host that asked for it, nor the connection.
//
//   ControlText({"A=1", "B=2"}) == "A=1\0B=2\0\0"

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// The text that begins the stream.
std::string ControlText(const std::vector<std::string>& environment);

// Takes that text from `fd`, and no byte behind it; blocks until it is there. Unavailable where the stream ends before;
// InvalidArgument for more than a MiB, or an entry that is not "NAME=VALUE".
absl::StatusOr<std::vector<std::string>> ReadControlText(int fd);

}  // namespace tessera
