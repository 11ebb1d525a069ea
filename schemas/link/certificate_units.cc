#include "schemas/link/certificate_units.h"

#include <cstddef>

#include <kj/compat/tls.h>
#include <openssl/asn1.h>
#include <openssl/x509.h>

namespace tessera {
namespace {

// libkj-tls tells a certificate's common name alone, and keeps the certificate in a private member. The language lets
// an explicit instantiation name such a member (C++20, [temp.spec.general] 6); the function below is made there.
void* CertificateOf(const kj::TlsPeerIdentity& peer);

template <void* kj::TlsPeerIdentity::*kMember>
struct Reading {
  friend void* CertificateOf(const kj::TlsPeerIdentity& peer) { return peer.*kMember; }
};
template struct Reading<&kj::TlsPeerIdentity::cert>;

}  // namespace

bool IsOfUnit(const x509_st& certificate, std::string_view unit) {
  const X509_NAME* const subject = X509_get_subject_name(&certificate);
  for (int at = -1; (at = X509_NAME_get_index_by_NID(subject, NID_organizationalUnitName, at)) >= 0;) {
    const ASN1_STRING* const text = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at));
    if (std::string_view(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                         static_cast<size_t>(ASN1_STRING_length(text))) == unit) {
      return true;
    }
  }
  return false;
}

bool IsOfUnit(const kj::TlsPeerIdentity& peer, std::string_view unit) {
  const auto* const certificate = static_cast<const X509*>(CertificateOf(peer));
  return certificate != nullptr && IsOfUnit(*certificate, unit);
}

}  // namespace tessera
