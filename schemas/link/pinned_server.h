#pragma once

// FindPinnedServer: a TLS server of which the pin of its CA is all that is known. The handshake shows the server's
// certificates; the CA of the pin must be among them, and must have signed the server's own. Nothing but the handshake
// is sent. With the CA that it returns, any later connection is checked as usual (dialer.h).
//
//   TESSERA_ASSIGN_OR_RETURN(PinnedServer found, FindPinnedServer("join", address, "sha256:9f86...", 10));
//   found.ca            // "-----BEGIN CERTIFICATE-----..."
//   found.own_address   // "10.0.0.8": by which this host reaches the server

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "schemas/types/address.h"

namespace tessera {

struct PinnedServer {
  std::string ca;           // PEM
  std::string own_address;  // a number; "" where the system doesn't say
};

// Blocks, for `timeout_s` at most with each of the host's addresses. Messages open with `what`. Unavailable: nobody
// listens, or the host is not known; Unauthenticated: the server has no CA of the pin, or a certificate that isn't
// right; InvalidArgument: the address is a unix socket's, or the pin is none. The process ignores SIGPIPE.
absl::StatusOr<PinnedServer> FindPinnedServer(std::string_view what, const Address& address, const std::string& pin,
                                              double timeout_s);

}  // namespace tessera
