#pragma once

// The files that TLS is made from (tls.h).

#include <string>

namespace tessera {

// Names of PEM files; empty where there is none.
struct TlsFiles {
  std::string certificate;  // one's own, with what leads to the CA behind it
  std::string key;          // of the certificate
  std::string ca;           // who signs the others' certificates; empty: those that the system trusts
};

}  // namespace tessera
