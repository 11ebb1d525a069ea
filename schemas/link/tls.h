#pragma once

// TLS 1.2 and later, by libkj-tls and OpenSSL: the settings of a server, a worker and a client, from PEM files.

#include <string_view>

#include <kj/compat/tls.h>

#include "absl/status/statusor.h"
#include "schemas/link/tls_files.h"

namespace tessera {

enum class TlsSide : unsigned char {
  kClient,           // checks the server; shows a certificate where it has one
  kServer,           // shows a certificate, and asks for none
  kServerOfWorkers,  // and asks for one that the CA has signed, for a client's use
};

// NotFound or PermissionDenied for a file that can't be read, InvalidArgument for one that is not what it should be or
// a file that the side needs and has not. Messages open with `what` and name the file.
absl::StatusOr<kj::Own<kj::TlsContext>> MakeTls(std::string_view what, const TlsFiles& files, TlsSide side);

}  // namespace tessera
