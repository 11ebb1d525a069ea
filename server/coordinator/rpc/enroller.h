#pragma once

// Enroller: signs certificates of workers that show the workers' token, and keeps the number that it gives one until it
// joins. Not the joining itself (hub.h), and not the checks of tokens (tenants_edge.h).
//
//   TESSERA_ASSIGN_OR_RETURN(auto enroller, Enroller::Make({.ca_key = "ca.key"}, tls));
//   const Enroller::Numbers numbers{.is_here = [&hub](WorkerIndex index) { return hub.IsHere(index); }};
//   enroller->Enroll(numbers, {-1, key_request, {"10.0.0.7", "node7"}, false}, now_ms)   // certificate, number 3
//
// A certificate is of the unit "tessera-worker" and ends after leaf_lifetime, so the worker asks again before that. It
// is for the hosts that the worker names, if --join-names lets it have them all. With it comes a proof for the next
// time: a worker whose certificate has not ended has it renewed also when its token is over by then.

#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "schemas/link/authority.h"
#include "schemas/link/tls_files.h"
#include "schemas/types/mesh.h"

namespace tessera {

struct EnrolOptions {
  std::string ca_key;                  // a PEM file, of the CA of --tls-ca; empty: nobody enrols
  double leaf_lifetime_s = 12 * 3600;  // docs/limits.md: leaf_lifetime
  std::vector<std::string> names;      // patterns of the hosts that workers may have; none: all
  int32_t max_workers = kMaxMeshSize;  // numbers that are given
  int32_t first_number = 0;            // those below are for workers that ask for them
};

class Enroller {
 public:
  struct Request {
    int32_t index = -1;  // -1: the next free one
    std::string key_request;
    std::vector<std::string> hosts;
    bool renews = false;
  };
  struct Enrolled {
    std::string certificate;
    std::time_t ends_at = 0;
    WorkerIndex index{0};
    std::string proof;
  };
  // Facts about numbers that others know. `is_here` tells whether a worker that lives, or is joining, has one; `former`
  // are those that the asking worker's token is used for, which a worker gets first that asks for none; `check` says of
  // the one that it is to have whether its token is good for that.
  struct Numbers {
    std::function<bool(WorkerIndex)> is_here;
    std::set<WorkerIndex> former = {};
    std::function<absl::Status(WorkerIndex)> check = [](WorkerIndex) { return absl::OkStatus(); };
  };

  // NotFound, FailedPrecondition: the CA's files can't be read, or don't belong together.
  static absl::StatusOr<std::unique_ptr<Enroller>> Make(const EnrolOptions& options, const TlsFiles& tls);

  // InvalidArgument for a wrong request, PermissionDenied for a name that it may not have, AlreadyExists for a number
  // that a living worker has, ResourceExhausted where there is none left, and what `check` says. `now_ms` is of a clock
  // that never goes back.
  absl::StatusOr<Enrolled> Enroll(const Numbers& numbers, const Request& request, int64_t now_ms);

  // Whether the proof came with the number's certificate of that end, which is not over. In constant time.
  bool IsProof(WorkerIndex index, std::time_t ends_at, std::string_view proof, std::time_t now) const;

  // A worker has begun to join under the number (is_here() says so): it is kept for nobody any more.
  void Joined(WorkerIndex index) { kept_.erase(index); }

  // Where workers join.
  void set_workers_port(int port) { workers_port_ = port; }
  int workers_port() const { return workers_port_; }

 private:
  Enroller(EnrolOptions options, SignedKey authority)
      : options_(std::move(options)), authority_(std::move(authority)) {}
  absl::Status CheckHosts(const std::vector<std::string>& hosts) const;
  absl::StatusOr<WorkerIndex> TakeIndex(const Numbers& numbers, const Request& request, int64_t now_ms);

  const EnrolOptions options_;
  const SignedKey authority_;
  std::map<WorkerIndex, int64_t> kept_;  // numbers of workers that are to join, and until when
  int workers_port_ = 0;
};

}  // namespace tessera
