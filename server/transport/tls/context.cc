#include "server/transport/tls/context.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <openssl/err.h>
#include <openssl/x509.h>

#include "schemas/link/certificate_units.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr size_t kReadBufferBytes = 64 << 10;  // several records of 16 KiB in one call of the system

// After the library's own checks of each certificate up to the CA.
int CheckUnit(int is_right, X509_STORE_CTX* check) {
  if (is_right != 1 || X509_STORE_CTX_get_error_depth(check) > 0) return is_right;
  if (IsOfUnit(*X509_STORE_CTX_get_current_cert(check), kWorkerUnit)) return 1;
  X509_STORE_CTX_set_error(check, X509_V_ERR_APPLICATION_VERIFICATION);
  return 0;
}

// A key behind a passphrase isn't asked for on the terminal.
int NoPassphrase(char*, int, int, void*) { return -1; }

absl::Status FileError(const char* option, const std::string& file, const char* what) {
  std::string reason = TakeTlsError();
  if (access(file.c_str(), R_OK) != 0) reason = std::strerror(errno);
  return absl::InvalidArgumentError(StrCat(option, " ", file, ": ", what, reason.empty() ? "" : ": ", reason));
}

}  // namespace

std::string TakeTlsError() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* const reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "" : reason;
}

absl::StatusOr<TlsContext> MakeTlsContext(const std::string& certificate, const std::string& key,
                                          const std::string& ca) {
  for (const auto& [option, file] : {std::pair("--tls-cert", certificate), {"--tls-key", key}, {"--tls-ca", ca}}) {
    if (file.empty()) {
      return absl::InvalidArgumentError(
          StrCat("messages over TLS need --tls-cert, --tls-key and --tls-ca; there is no ", option));
    }
  }
  ERR_clear_error();
  TlsContext made(SSL_CTX_new(TLS_method()));
  if (made == nullptr) return absl::InternalError(StrCat("TLS: ", TakeTlsError()));
  SSL_CTX* const context = made.get();
  SSL_CTX_set_default_passwd_cb(context, &NoPassphrase);
  if (SSL_CTX_use_certificate_chain_file(context, certificate.c_str()) != 1) {
    return FileError("--tls-cert", certificate, "no certificate in PEM");
  }
  if (SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    return FileError("--tls-key", key, "not the key of --tls-cert in PEM, without a passphrase");
  }
  if (SSL_CTX_load_verify_file(context, ca.c_str()) != 1) {
    return FileError("--tls-ca", ca, "no certificate in PEM");
  }
  // A peer that comes back is checked again: no sessions, no tickets.
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, kReadBufferBytes);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, &CheckUnit);
  if (SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1 ||
      SSL_CTX_set_cipher_list(context, "ECDHE+AESGCM:ECDHE+CHACHA20") != 1 ||
      SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256") !=
          1) {
    return absl::InternalError(StrCat("TLS: ", TakeTlsError()));
  }
  return made;
}

}  // namespace tessera
