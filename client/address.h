#pragma once

// Addresses of servers: "unix:/path" of a worker's data socket, "unix:/path#token=HEX" of a coordinator. Only paths of
// this host are served.

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

struct Address {
  std::string socket_path;
  std::string token;  // "" where the text has none
};

// InvalidArgument, which opens with `what`, for another scheme or an empty path.
absl::StatusOr<Address> ParseAddress(std::string_view what, std::string_view text);
// Without the token: "unix:/path".
std::string ToText(const Address& address);

}  // namespace tessera
