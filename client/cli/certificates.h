#pragma once

// Certificates of a development CA: what `tessera certs` makes. An authority signs leaves, each for the hosts that it
// names; keys are on P-256, and what is written is PEM. An organization with a CA of its own makes leaves there:
// servers ask for the unit and the names alone.
//
//   MakeCertificates("/etc/tessera/tls", {.hosts = {"node7", "10.0.0.7"}, .days = 365});
//   ReadCertificates("/etc/tessera/tls/worker.crt")   // [{"O = Tessera, OU = tessera-worker, CN = node7", ...}]

#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "schemas/link/authority.h"

namespace tessera {

struct CertificateRequest {
  std::vector<std::string> hosts;
  int days = 365;
};

// Makes the folder's ca.crt and ca.key where there is neither, and server.* and worker.* signed by them, in place of
// those that are there. Keys are for their owner alone. Returns the files that it wrote. FailedPrecondition where one
// half of the CA is missing, or others may write to the folder.
absl::StatusOr<std::vector<std::string>> MakeCertificates(const std::string& folder, const CertificateRequest& request);

struct CertificateFacts {
  std::string subject;
  std::string issuer;
  std::vector<std::string> hosts;  // its subjectAltName
  std::string use;                 // "CA", "server", "server and client", ...
  std::time_t starts_at = 0;
  std::time_t ends_at = 0;
};

// All of a PEM file. NotFound, InvalidArgument where it has none.
absl::StatusOr<std::vector<CertificateFacts>> ReadCertificates(const std::string& file);

}  // namespace tessera
