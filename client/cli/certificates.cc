#include "client/cli/certificates.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include "schemas/codec/certificate_units.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int kAuthorityDays = 3650;
constexpr std::time_t kDaySeconds = 86400;
constexpr std::time_t kClockSkewSeconds = 3600;  // another machine's clock may be behind
constexpr size_t kMaxHostChars = 253;            // of a name in DNS

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* thing) const {
    kFree(thing);
  }
};
using Bio = std::unique_ptr<BIO, Freed<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Number = std::unique_ptr<BIGNUM, Freed<BN_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Freed<GENERAL_NAMES_free>>;

absl::Status LibraryError(std::string_view what) {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* const reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return absl::InternalError(StrCat("certs: ", what, ": ", reason == nullptr ? "OpenSSL says no more" : reason));
}

// ---- PEM

std::string TakeText(BIO* bio) {
  char* data = nullptr;
  const long bytes = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(bytes));
}

// A key behind a passphrase isn't asked for on the terminal.
int NoPassphrase(char*, int, int, void*) { return -1; }

Certificate ParseCertificate(BIO* bio) { return Certificate(PEM_read_bio_X509(bio, nullptr, &NoPassphrase, nullptr)); }

Bio Reader(const std::string& pem) { return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()))); }

absl::StatusOr<SignedKey> ToPem(X509* certificate, EVP_PKEY* key) {
  const Bio certificate_out(BIO_new(BIO_s_mem())), key_out(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(certificate_out.get(), certificate) != 1 ||
      PEM_write_bio_PKCS8PrivateKey(key_out.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return LibraryError("PEM");
  }
  return SignedKey{TakeText(certificate_out.get()), TakeText(key_out.get())};
}

// ---- parts of a certificate

absl::Status AddExtension(X509* certificate, X509* issuer, int id, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, Freed<X509_EXTENSION_free>> extension(
      X509V3_EXT_conf_nid(nullptr, &context, id, value.c_str()));
  if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1) return LibraryError(value);
  return absl::OkStatus();
}

absl::Status AddName(X509* certificate, const char* field, std::string_view text) {
  if (X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), field, MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()), -1,
                                 0) != 1) {
    return LibraryError(text);
  }
  return absl::OkStatus();
}

std::optional<std::array<unsigned char, 16>> AddressBytes(const std::string& host, int& bytes) {
  std::array<unsigned char, 16> out{};
  bytes = inet_pton(AF_INET, host.c_str(), out.data()) == 1    ? 4
          : inet_pton(AF_INET6, host.c_str(), out.data()) == 1 ? 16
                                                               : 0;
  if (bytes == 0) return std::nullopt;
  return out;
}

// Values of OpenSSL's little language aren't made of what people wrote.
absl::Status AddHosts(X509* certificate, const std::vector<std::string>& hosts) {
  const Names names(sk_GENERAL_NAME_new_null());
  for (const std::string& host : hosts) {
    TESSERA_RETURN_IF_ERROR(CheckHost(host));
    int bytes = 0;
    const auto address = AddressBytes(host, bytes);
    ASN1_STRING* const text = address.has_value() ? ASN1_OCTET_STRING_new() : ASN1_IA5STRING_new();
    GENERAL_NAME* const name = GENERAL_NAME_new();
    ASN1_STRING_set(text, address.has_value() ? static_cast<const void*>(address->data()) : host.data(),
                    address.has_value() ? bytes : static_cast<int>(host.size()));
    GENERAL_NAME_set0_value(name, address.has_value() ? GEN_IPADD : GEN_DNS, text);
    sk_GENERAL_NAME_push(names.get(), name);
    if (!address.has_value()) continue;
    // A number as a name, too: who checks names alone, as libkj-tls does, finds it there.
    ASN1_STRING* const as_name = ASN1_IA5STRING_new();
    GENERAL_NAME* const second = GENERAL_NAME_new();
    ASN1_STRING_set(as_name, host.data(), static_cast<int>(host.size()));
    GENERAL_NAME_set0_value(second, GEN_DNS, as_name);
    sk_GENERAL_NAME_push(names.get(), second);
  }
  if (X509_add1_ext_i2d(certificate, NID_subject_alt_name, names.get(), 0, X509V3_ADD_DEFAULT) != 1) {
    return LibraryError("subjectAltName");
  }
  return absl::OkStatus();
}

// A certificate without extensions and signature.
absl::StatusOr<Certificate> Begin(EVP_PKEY* key, std::time_t starts_at, std::time_t ends_at) {
  Certificate made(X509_new());
  const Number serial(BN_new());
  if (made == nullptr || serial == nullptr || X509_set_version(made.get(), X509_VERSION_3) != 1 ||
      BN_rand(serial.get(), 127, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) != 1 ||
      BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(made.get())) == nullptr ||
      ASN1_TIME_set(X509_getm_notBefore(made.get()), starts_at) == nullptr ||
      ASN1_TIME_set(X509_getm_notAfter(made.get()), ends_at) == nullptr || X509_set_pubkey(made.get(), key) != 1) {
    return LibraryError("a certificate");
  }
  return made;
}

std::time_t TimeOf(const ASN1_TIME* time) {
  std::tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? timegm(&parts) : 0;
}

}  // namespace

absl::Status CheckHost(std::string_view host) {
  int bytes = 0;
  if (AddressBytes(std::string(host), bytes).has_value()) return absl::OkStatus();
  const auto is_taken = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  };
  const bool is_name = !host.empty() && host.size() <= kMaxHostChars && host.front() != '.' && host.front() != '-' &&
                       host.find("..") == std::string_view::npos && std::all_of(host.begin(), host.end(), is_taken) &&
                       host.find_first_not_of("0123456789.") != std::string_view::npos;
  if (is_name) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("certs: --host \"", Printable(host, 80), "\" is neither a host's name nor an IP address"));
}

absl::StatusOr<SignedKey> MakeAuthority(std::string_view name, int days) {
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return LibraryError("a key");
  const std::time_t now = std::time(nullptr);
  TESSERA_ASSIGN_OR_RETURN(const Certificate made, Begin(key.get(), now - kClockSkewSeconds, now + days * kDaySeconds));
  X509* const self = made.get();
  TESSERA_RETURN_IF_ERROR(AddName(self, "O", "Tessera"));
  TESSERA_RETURN_IF_ERROR(AddName(self, "CN", name));
  X509_set_issuer_name(self, X509_get_subject_name(self));
  TESSERA_RETURN_IF_ERROR(AddExtension(self, self, NID_basic_constraints, "critical,CA:TRUE,pathlen:0"));
  TESSERA_RETURN_IF_ERROR(AddExtension(self, self, NID_key_usage, "critical,keyCertSign,cRLSign"));
  TESSERA_RETURN_IF_ERROR(AddExtension(self, self, NID_subject_key_identifier, "hash"));
  if (X509_sign(self, key.get(), EVP_sha256()) == 0) return LibraryError("the CA's signature");
  return ToPem(self, key.get());
}

absl::StatusOr<SignedKey> SignLeaf(const SignedKey& authority, const LeafRequest& request) {
  const Bio ca_in = Reader(authority.certificate), key_in = Reader(authority.key);
  const Certificate ca = ParseCertificate(ca_in.get());
  const Key ca_key(PEM_read_bio_PrivateKey(key_in.get(), nullptr, &NoPassphrase, nullptr));
  ERR_clear_error();
  if (ca == nullptr) return absl::FailedPreconditionError("certs: ca.crt is no certificate in PEM");
  if (ca_key == nullptr) return absl::FailedPreconditionError("certs: ca.key is no key in PEM, or it has a passphrase");
  if (X509_check_private_key(ca.get(), ca_key.get()) != 1) {
    ERR_clear_error();
    return absl::FailedPreconditionError("certs: ca.key is not the key of ca.crt");
  }
  if (X509_check_ca(ca.get()) == 0) return absl::FailedPreconditionError("certs: ca.crt is no CA's certificate");
  const std::time_t ca_ends_at = TimeOf(X509_get0_notAfter(ca.get()));
  if (ca_ends_at <= std::time(nullptr)) return absl::FailedPreconditionError("certs: ca.crt has expired");
  if (request.hosts.empty()) return absl::InvalidArgumentError("certs: a leaf names at least one host");

  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return LibraryError("a key");
  TESSERA_ASSIGN_OR_RETURN(const Certificate made,
                           Begin(key.get(), request.starts_at, std::min(request.ends_at, ca_ends_at)));
  X509* const leaf = made.get();
  TESSERA_RETURN_IF_ERROR(AddName(leaf, "O", "Tessera"));
  TESSERA_RETURN_IF_ERROR(AddName(leaf, "OU", request.unit));
  TESSERA_RETURN_IF_ERROR(AddName(leaf, "CN", std::string_view(request.hosts[0]).substr(0, ub_common_name)));
  X509_set_issuer_name(leaf, X509_get_subject_name(ca.get()));
  const bool is_client = request.use == LeafUse::kServerAndClient;
  TESSERA_RETURN_IF_ERROR(AddExtension(leaf, ca.get(), NID_basic_constraints, "critical,CA:FALSE"));
  TESSERA_RETURN_IF_ERROR(AddExtension(leaf, ca.get(), NID_key_usage, "critical,digitalSignature"));
  TESSERA_RETURN_IF_ERROR(
      AddExtension(leaf, ca.get(), NID_ext_key_usage, is_client ? "serverAuth,clientAuth" : "serverAuth"));
  TESSERA_RETURN_IF_ERROR(AddExtension(leaf, ca.get(), NID_subject_key_identifier, "hash"));
  TESSERA_RETURN_IF_ERROR(AddExtension(leaf, ca.get(), NID_authority_key_identifier, "keyid:always"));
  TESSERA_RETURN_IF_ERROR(AddHosts(leaf, request.hosts));
  if (X509_sign(leaf, ca_key.get(), EVP_sha256()) == 0) return LibraryError("a leaf's signature");
  return ToPem(leaf, key.get());
}

// ---- files

namespace {

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

// Who else may write there would put a CA of his own in this one's place.
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
  // Of a certificate that doesn't say, all of it.
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
    TESSERA_RETURN_IF_ERROR(WriteFile(certificate, leaf.certificate, 0644, Existing::kReplaced));
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
