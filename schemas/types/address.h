#pragma once

// Addresses of servers: "unix:/path" on this host, "tls://host:port" from anywhere ("tls://[::1]:7421" for a number of
// IPv6). A coordinator's may carry a token behind it: "unix:/path#token=HEX".

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

struct Address {
  std::string socket_path;  // of a unix socket; empty of TLS
  std::string host;         // of TLS: a name or a number
  int port = 0;
  std::string token;  // "" where the text has none

  bool is_unix() const { return host.empty(); }
};

// InvalidArgument, which opens with `what`, for another scheme, an empty path or host, or a port that is none.
absl::StatusOr<Address> ParseAddress(std::string_view what, std::string_view text);
// Without the token: "unix:/path", "tls://host:port".
std::string ToText(const Address& address);
// "host:port", as a resolver takes it.
std::string HostAndPort(const Address& address);

}  // namespace tessera
