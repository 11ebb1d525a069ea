#include "server/coordinator/rpc/enroller.h"

#include <fnmatch.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_join.h"
#include "schemas/link/certificate_units.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr size_t kMaxHosts = 16;         // docs/limits.md: max_leaf_hosts
constexpr int64_t kKeptForMs = 60'000;   // docs/limits.md: index_kept_for
constexpr size_t kMaxKeyRequest = 8192;  // bytes; a request has some 500

absl::StatusOr<std::string> ReadFile(const char* flag, const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return absl::NotFoundError(StrCat(flag, " ", file, ": ", std::strerror(errno)));
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// The text of the authority's word that a worker shows when it renews its certificate.
std::string RenewalOf(WorkerIndex index, std::time_t ends_at) {
  return StrCat("tessera renewal: worker ", index.value, " has a certificate until ", static_cast<int64_t>(ends_at));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Enroller>> Enroller::Make(const EnrolOptions& options, const TlsFiles& tls) {
  if (tls.ca.empty()) {
    return absl::InvalidArgumentError("--ca-key is the key of the CA of --tls-ca, which is missing");
  }
  SignedKey authority;
  TESSERA_ASSIGN_OR_RETURN(authority.certificate, ReadFile("--tls-ca", tls.ca));
  TESSERA_ASSIGN_OR_RETURN(authority.key, ReadFile("--ca-key", options.ca_key));
  // A leaf for nobody: an error of the CA shows at the start, and not when the first worker comes.
  const absl::StatusOr<SignedKey> tried =
      SignLeaf(authority, {std::string(kWorkerUnit), {"localhost"}, LeafUse::kServer, 0, std::time(nullptr)});
  if (!tried.ok()) {
    return absl::Status(tried.status().code(), StrCat("--ca-key ", options.ca_key, ", --tls-ca ", tls.ca, ": ",
                                                      StdView(tried.status().message())));
  }
  return std::unique_ptr<Enroller>(new Enroller(options, std::move(authority)));
}

absl::Status Enroller::CheckHosts(const std::vector<std::string>& hosts) const {
  if (hosts.empty() || hosts.size() > kMaxHosts) {
    return absl::InvalidArgumentError(
        StrCat("enroll: ", hosts.size(), " names; a worker has 1 to ", kMaxHosts, " (max_leaf_hosts)"));
  }
  for (const std::string& host : hosts) {
    TESSERA_RETURN_IF_ERROR(CheckHost(host));
    const auto fits = [&host](const std::string& pattern) { return fnmatch(pattern.c_str(), host.c_str(), 0) == 0; };
    if (options_.names.empty() || std::any_of(options_.names.begin(), options_.names.end(), fits)) continue;
    return absl::PermissionDeniedError(StrCat(
        "enroll: the name ", Printable(host, 80), " is none that workers may have here (--join-names ",
        absl::StrJoin(options_.names, ", "), " of the coordinator); --advertise says by which one others reach it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<WorkerIndex> Enroller::TakeIndex(const Numbers& numbers, const Request& request, int64_t now_ms) {
  std::erase_if(kept_, [&](const auto& kept) { return kept.second < now_ms || numbers.is_here(kept.first); });
  if (request.index >= options_.max_workers) {
    return absl::ResourceExhaustedError(StrCat("enroll: worker ", request.index, " is more than --max-workers ",
                                               options_.max_workers, " of the coordinator: 0 to ",
                                               options_.max_workers - 1));
  }
  if (request.index >= 0) {
    const WorkerIndex wanted(request.index);
    if (!request.renews && numbers.is_here(wanted)) {
      return absl::AlreadyExistsError(StrCat("enroll: worker ", request.index, " is here already; two processes claim ",
                                             "the number: give each its own --index, or none"));
    }
    return wanted;
  }
  const auto is_taken = [&](WorkerIndex index) { return numbers.is_here(index) || kept_.contains(index); };
  for (const WorkerIndex former : numbers.former) {
    if (!is_taken(former) && former.value < options_.max_workers) return former;
  }
  WorkerIndex free(options_.first_number);
  while (is_taken(free)) ++free.value;
  if (free.value < options_.max_workers) return free;
  return absl::ResourceExhaustedError(StrCat(
      "enroll: the coordinator has all the workers that it may have (--max-workers ", options_.max_workers, ")"));
}

absl::StatusOr<Enroller::Enrolled> Enroller::Enroll(const Numbers& numbers, const Request& request, int64_t now_ms) {
  TESSERA_RETURN_IF_ERROR(CheckHosts(request.hosts));
  if (request.key_request.size() > kMaxKeyRequest) {
    return absl::InvalidArgumentError(StrCat("enroll: a key's request of ", request.key_request.size(), " bytes"));
  }
  if (request.renews && request.index < 0) {
    return absl::InvalidArgumentError("enroll: a worker that renews its certificate says its number");
  }
  TESSERA_ASSIGN_OR_RETURN(const WorkerIndex index, TakeIndex(numbers, request, now_ms));
  if (const absl::Status status = numbers.check(index); !status.ok()) {
    return absl::Status(status.code(), StrCat("enroll: ", StdView(status.message())));
  }
  const std::time_t now = std::time(nullptr);
  const std::time_t ends_at = now + static_cast<std::time_t>(options_.leaf_lifetime_s);
  auto certificate = SignKeyRequest(
      authority_, request.key_request,
      {std::string(kWorkerUnit), request.hosts, LeafUse::kServerAndClient, now - kClockSkewSeconds, ends_at});
  if (!certificate.ok()) {
    return absl::Status(certificate.status().code(), StrCat("enroll: ", StdView(certificate.status().message())));
  }
  if (request.index < 0) kept_[index] = now_ms + kKeptForMs;
  return Enrolled{*std::move(certificate), ends_at, index, WordOf(authority_, RenewalOf(index, ends_at))};
}

bool Enroller::IsProof(WorkerIndex index, std::time_t ends_at, std::string_view proof, std::time_t now) const {
  return IsWordOf(authority_, RenewalOf(index, ends_at), proof) && now < ends_at;
}

}  // namespace tessera
