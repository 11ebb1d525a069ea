#pragma once

// What this process has refused of others since it began: each is counted and told in the log, with its peer.
//
//   LogRefusal("pid 17", "connect: the token is wrong");   // warning: pid 17: connect: the token is wrong (refusal 3)

#include <string_view>

namespace tessera {

void LogRefusal(std::string_view peer, std::string_view why);

}  // namespace tessera
