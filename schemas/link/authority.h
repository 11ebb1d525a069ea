#pragma once

// An authority (CA) that signs certificates of servers and workers, each for the hosts that it names. Keys are on
// P-256, and texts are PEM. No file is read or written here (client/cli/certificates.h).
//
// A worker that enrols makes its key itself, and the authority never sees it:
//
//   TESSERA_ASSIGN_OR_RETURN(const KeyRequest own, MakeKeyRequest());                          // the worker
//   SignKeyRequest(authority, own.request, {"tessera-worker", {"node7"}, LeafUse::kServerAndClient, from, until});
//
// The pin of a CA names its public key, as kubeadm's does: "sha256:" and the digest of the key's encoding in hex.

#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct x509_st;  // OpenSSL's X509

namespace tessera {

inline constexpr std::time_t kClockSkewSeconds = 3600;  // another machine's clock may be behind
inline constexpr std::string_view kPinScheme = "sha256:";

// A certificate and its key, as PEM.
struct SignedKey {
  std::string certificate;
  std::string key;
};

enum class LeafUse : uint8_t { kServer, kServerAndClient };

struct LeafRequest {
  std::string unit;
  std::vector<std::string> hosts;  // names and addresses; at least one
  LeafUse use = LeafUse::kServer;
  std::time_t starts_at = 0;
  std::time_t ends_at = 0;
};

// InvalidArgument for what is neither a host's name nor an IP address.
absl::Status CheckHost(std::string_view host);

// A CA of the name, for `days` from now.
absl::StatusOr<SignedKey> MakeAuthority(std::string_view name, int days);
// InvalidArgument for a wrong host; FailedPrecondition for an authority whose parts don't belong together, or that is
// over. A leaf ends with its authority at the latest.
absl::StatusOr<SignedKey> SignLeaf(const SignedKey& authority, const LeafRequest& request);

// A key, and the request that its certificate be signed (PKCS #10), as PEM.
struct KeyRequest {
  std::string key;
  std::string request;
};
absl::StatusOr<KeyRequest> MakeKeyRequest();
// The certificate of the request's key, with nothing else of the request. InvalidArgument for a request that is none,
// or that its own key has not signed; else as SignLeaf.
absl::StatusOr<std::string> SignKeyRequest(const SignedKey& authority, const std::string& key_request,
                                           const LeafRequest& request);

// "sha256:9f86...": of the public key of the first certificate. InvalidArgument where there is none.
absl::StatusOr<std::string> PinOf(const std::string& pem);
std::string PinOf(const x509_st& certificate);
// Whether the text could be a pin.
bool IsPin(std::string_view text);

// The authority's word for a text: 64 digits in hex that nobody makes without its key (HMAC-SHA256). IsWordOf takes as
// long whatever it is given.
std::string WordOf(const SignedKey& authority, std::string_view text);
bool IsWordOf(const SignedKey& authority, std::string_view text, std::string_view word);

// In hex; of a token, as a tenants file has it.
std::string Sha256Hex(std::string_view text);

// "2026-11-27 16:58 UTC", for messages about certificates.
std::string DateText(std::time_t time);

}  // namespace tessera
