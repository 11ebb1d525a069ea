#include "schemas/link/authority.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/crypto.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include "absl/strings/str_cat.h"
#include "schemas/link/openssl_pieces.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

std::string HexOf(const unsigned char* bytes, unsigned int count) {
  std::string text;
  for (unsigned int i = 0; i < count; ++i) absl::StrAppend(&text, absl::Hex(bytes[i], absl::kZeroPad2));
  return text;
}

constexpr std::time_t kDaySeconds = 86400;

using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Number = std::unique_ptr<BIGNUM, Freed<BN_free>>;
using SigningRequest = std::unique_ptr<X509_REQ, Freed<X509_REQ_free>>;

absl::Status LibraryError(std::string_view what) {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* const reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return absl::InternalError(StrCat("certs: ", what, ": ", reason == nullptr ? "OpenSSL says no more" : reason));
}

// ---- PEM

Certificate ParseCertificate(BIO* bio) { return Certificate(PEM_read_bio_X509(bio, nullptr, &NoPassphrase, nullptr)); }

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
    // A number as a name, too: a library that checks names alone, as libkj-tls does, finds it there.
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

namespace {

struct Authority {
  Certificate certificate;
  Key key;
};

absl::StatusOr<Authority> ReadAuthority(const SignedKey& pem) {
  const Bio ca_in = Reader(pem.certificate), key_in = Reader(pem.key);
  Authority authority{ParseCertificate(ca_in.get()),
                      Key(PEM_read_bio_PrivateKey(key_in.get(), nullptr, &NoPassphrase, nullptr))};
  ERR_clear_error();
  if (authority.certificate == nullptr) return absl::FailedPreconditionError("certs: ca.crt is no certificate in PEM");
  if (authority.key == nullptr) {
    return absl::FailedPreconditionError("certs: ca.key is no key in PEM, or it has a passphrase");
  }
  if (X509_check_private_key(authority.certificate.get(), authority.key.get()) != 1) {
    ERR_clear_error();
    return absl::FailedPreconditionError("certs: ca.key is not the key of ca.crt");
  }
  if (X509_check_ca(authority.certificate.get()) == 0) {
    return absl::FailedPreconditionError("certs: ca.crt is no CA's certificate");
  }
  if (TimeOf(X509_get0_notAfter(authority.certificate.get())) <= std::time(nullptr)) {
    return absl::FailedPreconditionError("certs: ca.crt has expired");
  }
  return authority;
}

absl::StatusOr<Certificate> Sign(const Authority& authority, EVP_PKEY* key, const LeafRequest& request) {
  if (request.hosts.empty()) return absl::InvalidArgumentError("certs: a leaf names at least one host");
  X509* const ca = authority.certificate.get();
  const std::time_t ca_ends_at = TimeOf(X509_get0_notAfter(ca));
  TESSERA_ASSIGN_OR_RETURN(Certificate made, Begin(key, request.starts_at, std::min(request.ends_at, ca_ends_at)));
  X509* const leaf = made.get();
  TESSERA_RETURN_IF_ERROR(AddName(leaf, "O", "Tessera"));
  TESSERA_RETURN_IF_ERROR(AddName(leaf, "OU", request.unit));
  TESSERA_RETURN_IF_ERROR(AddName(leaf, "CN", std::string_view(request.hosts[0]).substr(0, ub_common_name)));
  X509_set_issuer_name(leaf, X509_get_subject_name(ca));
  const bool is_client = request.use == LeafUse::kServerAndClient;
  TESSERA_RETURN_IF_ERROR(AddExtension(leaf, ca, NID_basic_constraints, "critical,CA:FALSE"));
  TESSERA_RETURN_IF_ERROR(AddExtension(leaf, ca, NID_key_usage, "critical,digitalSignature"));
  TESSERA_RETURN_IF_ERROR(
      AddExtension(leaf, ca, NID_ext_key_usage, is_client ? "serverAuth,clientAuth" : "serverAuth"));
  TESSERA_RETURN_IF_ERROR(AddExtension(leaf, ca, NID_subject_key_identifier, "hash"));
  TESSERA_RETURN_IF_ERROR(AddExtension(leaf, ca, NID_authority_key_identifier, "keyid:always"));
  TESSERA_RETURN_IF_ERROR(AddHosts(leaf, request.hosts));
  if (X509_sign(leaf, authority.key.get(), EVP_sha256()) == 0) return LibraryError("a leaf's signature");
  return made;
}

}  // namespace

absl::StatusOr<SignedKey> SignLeaf(const SignedKey& authority, const LeafRequest& request) {
  TESSERA_ASSIGN_OR_RETURN(const Authority read, ReadAuthority(authority));
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return LibraryError("a key");
  TESSERA_ASSIGN_OR_RETURN(const Certificate leaf, Sign(read, key.get(), request));
  return ToPem(leaf.get(), key.get());
}

absl::StatusOr<KeyRequest> MakeKeyRequest() {
  const Key key(EVP_EC_gen("P-256"));
  const SigningRequest request(X509_REQ_new());
  if (key == nullptr || request == nullptr || X509_REQ_set_pubkey(request.get(), key.get()) != 1 ||
      X509_REQ_sign(request.get(), key.get(), EVP_sha256()) == 0) {
    return LibraryError("a key to be signed");
  }
  const Bio request_out(BIO_new(BIO_s_mem())), key_out(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509_REQ(request_out.get(), request.get()) != 1 ||
      PEM_write_bio_PKCS8PrivateKey(key_out.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return LibraryError("PEM");
  }
  return KeyRequest{TakeText(key_out.get()), TakeText(request_out.get())};
}

absl::StatusOr<std::string> SignKeyRequest(const SignedKey& authority, const std::string& key_request,
                                           const LeafRequest& request) {
  TESSERA_ASSIGN_OR_RETURN(const Authority read, ReadAuthority(authority));
  const Bio in = Reader(key_request);
  const SigningRequest asked(PEM_read_bio_X509_REQ(in.get(), nullptr, &NoPassphrase, nullptr));
  EVP_PKEY* const key = asked == nullptr ? nullptr : X509_REQ_get0_pubkey(asked.get());
  const bool is_whole = key != nullptr && X509_REQ_verify(asked.get(), key) == 1;
  ERR_clear_error();
  if (!is_whole) return absl::InvalidArgumentError("certs: the request of a certificate is none in PEM (PKCS #10)");
  TESSERA_ASSIGN_OR_RETURN(const Certificate leaf, Sign(read, key, request));
  const Bio out(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(out.get(), leaf.get()) != 1) return LibraryError("PEM");
  return TakeText(out.get());
}

std::string PinOf(const X509& certificate) {
  unsigned char* encoded = nullptr;
  const int bytes = i2d_X509_PUBKEY(X509_get_X509_PUBKEY(&certificate), &encoded);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int digest_bytes = 0;
  const bool is_made = bytes > 0 && EVP_Digest(encoded, static_cast<size_t>(bytes), digest.data(), &digest_bytes,
                                               EVP_sha256(), nullptr) == 1;
  OPENSSL_free(encoded);
  return StrCat(kPinScheme, HexOf(digest.data(), is_made ? digest_bytes : 0));
}

absl::StatusOr<std::string> PinOf(const std::string& pem) {
  const Bio in = Reader(pem);
  const Certificate certificate = ParseCertificate(in.get());
  ERR_clear_error();
  if (certificate == nullptr) return absl::InvalidArgumentError("certs: it is no certificate in PEM");
  return PinOf(*certificate);
}

bool IsPin(std::string_view text) {
  if (text.substr(0, kPinScheme.size()) != kPinScheme) return false;
  text.remove_prefix(kPinScheme.size());
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string WordOf(const SignedKey& authority, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int bytes = 0;
  HMAC(EVP_sha256(), authority.key.data(), static_cast<int>(authority.key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(), &bytes);
  return HexOf(digest.data(), bytes);
}

bool IsWordOf(const SignedKey& authority, std::string_view text, std::string_view word) {
  const std::string right = WordOf(authority, text);
  return word.size() == right.size() && CRYPTO_memcmp(word.data(), right.data(), right.size()) == 0;
}

std::string Sha256Hex(std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int bytes = 0;
  EVP_Digest(text.data(), text.size(), digest.data(), &bytes, EVP_sha256(), nullptr);
  return HexOf(digest.data(), bytes);
}

std::string DateText(std::time_t time) {
  std::tm parts{};
  char text[32] = "";
  gmtime_r(&time, &parts);
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M UTC", &parts);
  return text;
}

}  // namespace tessera
