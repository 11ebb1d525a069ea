#include "schemas/link/tls.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "schemas/link/exception.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

absl::StatusOr<std::string> ReadFile(std::string_view what, const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.is_open() && !file.bad() && !text.empty()) return text;
  const std::string why = file.is_open() ? "nothing is in it" : std::strerror(errno);
  const std::string message = StrCat(what, ": ", Printable(path, 200), ": ", why);
  return errno == EACCES ? absl::PermissionDeniedError(message) : absl::NotFoundError(message);
}

// The object that `make` makes of the file's text, which OpenSSL reads.
template <typename Make>
absl::Status Parse(std::string_view what, const std::string& path, std::string_view kind, Make make) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadFile(what, path));
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&]() { make(kj::StringPtr(text.c_str(), text.size())); })) {
    return absl::InvalidArgumentError(
        StrCat(what, ": ", Printable(path, 200), " is no ", kind, " in PEM: ", exception->getDescription().cStr()));
  }
  return absl::OkStatus();
}

// Each certificate of a file that has several.
std::vector<std::string> Certificates(kj::StringPtr pem) {
  constexpr std::string_view kBegin = "-----BEGIN CERTIFICATE-----";
  const std::string_view text(pem.begin(), pem.size());
  std::vector<std::string> each;
  for (size_t at = text.find(kBegin); at != std::string_view::npos;) {
    const size_t next = text.find(kBegin, at + 1);
    each.emplace_back(text.substr(at, next == std::string_view::npos ? next : next - at));
    at = next;
  }
  if (each.empty()) each.emplace_back(text);
  return each;
}

}  // namespace

absl::StatusOr<kj::Own<kj::TlsContext>> MakeTls(std::string_view what, const TlsFiles& files, TlsSide side) {
  kj::TlsContext::Options options;
  options.minVersion = kj::TlsVersion::TLS_1_2;
  options.verifyClients = side == TlsSide::kServerOfWorkers;
  if (side != TlsSide::kClient && (files.certificate.empty() || files.key.empty())) {
    return absl::InvalidArgumentError(StrCat(what, ": TLS needs a certificate and its key: --tls-cert and --tls-key"));
  }
  if (side == TlsSide::kServerOfWorkers && files.ca.empty()) {
    return absl::InvalidArgumentError(StrCat(what, ": workers show certificates: --tls-ca says who signs them"));
  }
  if (files.certificate.empty() != files.key.empty()) {
    return absl::InvalidArgumentError(StrCat(what, ": a certificate and its key go together: --tls-cert, --tls-key"));
  }
  std::optional<kj::TlsCertificate> certificate;
  std::optional<kj::TlsPrivateKey> key;
  kj::Maybe<kj::TlsKeypair> pair;
  if (!files.certificate.empty()) {
    TESSERA_RETURN_IF_ERROR(
        Parse(what, files.certificate, "certificate", [&](kj::StringPtr pem) { certificate.emplace(pem); }));
    TESSERA_RETURN_IF_ERROR(Parse(what, files.key, "private key", [&](kj::StringPtr pem) { key.emplace(pem); }));
    pair = kj::TlsKeypair{*std::move(key), *std::move(certificate)};
  }
  KJ_IF_MAYBE (own, pair) {
    options.defaultKeypair = *own;
  }
  std::vector<kj::TlsCertificate> trusted;
  if (!files.ca.empty()) {
    options.useSystemTrustStore = false;
    TESSERA_RETURN_IF_ERROR(Parse(what, files.ca, "certificate", [&](kj::StringPtr pem) {
      for (const std::string& one : Certificates(pem)) trusted.emplace_back(kj::StringPtr(one.c_str(), one.size()));
    }));
  }
  options.trustedCertificates = kj::arrayPtr(trusted.data(), trusted.size());
  kj::Own<kj::TlsContext> made;
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&]() { made = kj::heap<kj::TlsContext>(options); })) {
    return absl::InvalidArgumentError(StrCat(what, ": ", Printable(files.certificate, 200), " and ",
                                             Printable(files.key, 200),
                                             " don't go together: ", exception->getDescription().cStr()));
  }
  return made;
}

}  // namespace tessera
