#pragma once

// The files that a process shows and checks in a TLS handshake with another worker: certificate, key and CA, in PEM.

#include <memory>
#include <string>

#include <openssl/ssl.h>

#include "absl/status/statusor.h"

namespace tessera {

struct FreeTls {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* session) const { SSL_free(session); }
};
using TlsContext = std::unique_ptr<SSL_CTX, FreeTls>;
using TlsSession = std::unique_ptr<SSL, FreeTls>;

// InvalidArgument with the option and the file.
absl::StatusOr<TlsContext> MakeTlsContext(const std::string& certificate, const std::string& key,
                                          const std::string& ca);
// The reason of the library's last error on this thread, "" where there is none; forgets all of them.
std::string TakeTlsError();

}  // namespace tessera
