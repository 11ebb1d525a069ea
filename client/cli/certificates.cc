#include "client/cli/certificates.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include "schemas/link/certificate_units.h"
#include "schemas/link/openssl_pieces.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int kAuthorityDays = 3650;
constexpr std::time_t kDaySeconds = 86400;

Certificate ParseCertificate(BIO* bio) { return Certificate(PEM_read_bio_X509(bio, nullptr, &NoPassphrase, nullptr)); }

std::time_t TimeOf(const ASN1_TIME* time) {
  std::tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? timegm(&parts) : 0;
}

absl::Status SystemError(const std::string& file) {
  return absl::InternalError(StrCat("certs: ", file, ": ", std::strerror(errno)));
}

enum class Existing : uint8_t { kReplaced, kKept };

// All of it or nothing, under a name of its own until it is whole. AlreadyExists where `existing` says so.
absl::Status WriteFile(const std::string& file, const std::string& text, mode_t mode, Existing existing) {
  const std::string half = StrCat(file, ".", getpid(), ".new");
  const int fd = open(half.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
  if (fd < 0) return SystemError(half);
  const bool is_written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                          fchmod(fd, mode) == 0 && fsync(fd) == 0;
  absl::Status status = is_written ? absl::OkStatus() : SystemError(half);
  close(fd);
  if (status.ok() && existing == Existing::kReplaced && rename(half.c_str(), file.c_str()) == 0) return status;
  if (status.ok() && existing == Existing::kKept && link(half.c_str(), file.c_str()) == 0) {
    unlink(half.c_str());
    return status;
  }
  if (status.ok()) {
    status = errno == EEXIST ? absl::AlreadyExistsError(StrCat("certs: ", file, " is there")) : SystemError(file);
  }
  unlink(half.c_str());
  return status;
}

absl::StatusOr<std::string> ReadFile(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return absl::NotFoundError(StrCat("certs: ", file, ": ", std::strerror(errno)));
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// Another user who may write there could put a CA of his own in this one's place.
absl::Status MakeFolder(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return SystemError(folder);
  struct stat facts {};
  if (stat(folder.c_str(), &facts) != 0) return SystemError(folder);
  if (!S_ISDIR(facts.st_mode)) return absl::FailedPreconditionError(StrCat("certs: ", folder, " is no folder"));
  if (facts.st_uid != geteuid() || (facts.st_mode & 022) != 0) {
    return absl::FailedPreconditionError(
        StrCat("certs: others may write to ", folder, "; keys belong in a folder of their owner alone (chmod 700)"));
  }
  return absl::OkStatus();
}

bool IsThere(const std::string& file) { return access(file.c_str(), F_OK) == 0; }

absl::StatusOr<SignedKey> TakeAuthority(const std::string& folder, std::vector<std::string>& written) {
  const std::string certificate = folder + "/ca.crt", key = folder + "/ca.key";
  if (IsThere(certificate) != IsThere(key)) {
    return absl::FailedPreconditionError(StrCat("certs: ", IsThere(key) ? certificate : key, " is missing, ",
                                                IsThere(key) ? key : certificate,
                                                " is there: bring it back, or take another folder for a new CA"));
  }
  if (!IsThere(key)) {
    // CAs of one name would be taken for each other where two are trusted.
    char host[256] = "";
    gethostname(host, sizeof(host) - 1);
    TESSERA_ASSIGN_OR_RETURN(SignedKey made,
                             MakeAuthority(StrCat("development CA ", Printable(host, 40)), kAuthorityDays));
    TESSERA_RETURN_IF_ERROR(WriteFile(key, made.key, 0600, Existing::kKept));
    TESSERA_RETURN_IF_ERROR(WriteFile(certificate, made.certificate, 0644, Existing::kKept));
    written.insert(written.end(), {certificate, key});
    return made;
  }
  SignedKey authority;
  TESSERA_ASSIGN_OR_RETURN(authority.certificate, ReadFile(certificate));
  TESSERA_ASSIGN_OR_RETURN(authority.key, ReadFile(key));
  return authority;
}

std::string NameText(const X509_NAME* name) {
  const Bio out(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(out.get(), name, 0, XN_FLAG_ONELINE & ~ASN1_STRFLGS_ESC_MSB);
  return Printable(TakeText(out.get()), 200);
}

std::string HostText(const GENERAL_NAME* name) {
  int type = 0;
  const auto* const value = static_cast<const ASN1_STRING*>(GENERAL_NAME_get0_value(name, &type));
  if (type == GEN_DNS) {
    return Printable(std::string_view(reinterpret_cast<const char*>(ASN1_STRING_get0_data(value)),
                                      static_cast<size_t>(ASN1_STRING_length(value))),
                     kMaxHostChars);
  }
  char text[INET6_ADDRSTRLEN] = "";
  const int bytes = type == GEN_IPADD ? ASN1_STRING_length(value) : 0;
  if (bytes == 4 || bytes == 16) {
    inet_ntop(bytes == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(value), text, sizeof(text));
    return text;
  }
  return "another kind of name";
}

CertificateFacts FactsOf(X509* certificate) {
  CertificateFacts facts;
  facts.subject = NameText(X509_get_subject_name(certificate));
  facts.issuer = NameText(X509_get_issuer_name(certificate));
  const Names names(static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    std::string host = HostText(sk_GENERAL_NAME_value(names.get(), i));
    if (std::find(facts.hosts.begin(), facts.hosts.end(), host) == facts.hosts.end()) {
      facts.hosts.push_back(std::move(host));
    }
  }
  // A certificate that doesn't say has all uses.
  const uint32_t uses = X509_get_extended_key_usage(certificate);
  const bool is_server = (uses & XKU_SSL_SERVER) != 0, is_client = (uses & XKU_SSL_CLIENT) != 0;
  facts.use = X509_check_ca(certificate) != 0 ? "CA"
              : is_server && is_client        ? "server and client"
              : is_server                     ? "server"
              : is_client                     ? "client"
                                              : "neither server nor client";
  facts.starts_at = TimeOf(X509_get0_notBefore(certificate));
  facts.ends_at = TimeOf(X509_get0_notAfter(certificate));
  return facts;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> MakeCertificates(const std::string& folder,
                                                          const CertificateRequest& request) {
  for (const std::string& host : request.hosts) TESSERA_RETURN_IF_ERROR(CheckHost(host));
  TESSERA_RETURN_IF_ERROR(MakeFolder(folder));
  std::vector<std::string> written;
  TESSERA_ASSIGN_OR_RETURN(const SignedKey authority, TakeAuthority(folder, written));
  const std::time_t now = std::time(nullptr);
  const struct {
    const char* name;
    std::string_view unit;
    LeafUse use;
  } kLeaves[] = {{"server", kServerUnit, LeafUse::kServer}, {"worker", kWorkerUnit, LeafUse::kServerAndClient}};
  for (const auto& [name, unit, use] : kLeaves) {
    TESSERA_ASSIGN_OR_RETURN(const SignedKey leaf,
                             SignLeaf(authority, {std::string(unit), request.hosts, use, now - kClockSkewSeconds,
                                                  now + request.days * kDaySeconds}));
    const std::string certificate = StrCat(folder, "/", name, ".crt"), key = StrCat(folder, "/", name, ".key");
    TESSERA_RETURN_IF_ERROR(WriteFile(key, leaf.key, 0600, Existing::kReplaced));
    // Behind the server's stands the CA's: a worker that knows the CA's pin alone finds it there.
    const std::string shown = leaf.certificate + (use == LeafUse::kServer ? authority.certificate : "");
    TESSERA_RETURN_IF_ERROR(WriteFile(certificate, shown, 0644, Existing::kReplaced));
    written.insert(written.end(), {certificate, key});
  }
  return written;
}

absl::StatusOr<std::vector<CertificateFacts>> ReadCertificates(const std::string& file) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
  const Bio in = Reader(text);
  std::vector<CertificateFacts> all;
  for (Certificate next = ParseCertificate(in.get()); next != nullptr; next = ParseCertificate(in.get())) {
    all.push_back(FactsOf(next.get()));
  }
  ERR_clear_error();
  if (all.empty()) return absl::InvalidArgumentError(StrCat("certs: ", file, " has no certificate in PEM"));
  return all;
}

}  // namespace tessera
