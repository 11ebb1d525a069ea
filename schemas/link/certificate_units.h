#pragma once

// The organizational units of a certificate's subject say whose certificate it is. `tessera certs` writes one of the
// two names below; a certificate that an organization made itself may have other units, or none.
//
//   IsOfUnit(certificate, kWorkerUnit)   // "O = Tessera, OU = tessera-worker, CN = node7": true

#include <string_view>

struct x509_st;  // OpenSSL's X509
namespace kj {
class TlsPeerIdentity;
}

namespace tessera {

inline constexpr std::string_view kServerUnit = "tessera-server";
inline constexpr std::string_view kWorkerUnit = "tessera-worker";

// Whether one of the certificate's units is `unit`, byte by byte.
bool IsOfUnit(const x509_st& certificate, std::string_view unit);
// The same of the certificate that the other side of a connection has shown; false where it has shown none.
bool IsOfUnit(const kj::TlsPeerIdentity& peer, std::string_view unit);

}  // namespace tessera
