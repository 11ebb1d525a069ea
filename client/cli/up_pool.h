#pragma once

// The CA, certificates and tokens of a pool that `tessera up` makes for itself, so that workers of other machines join
// by one address and one secret. They lie in a folder that is its user's alone, and stay: the pin of the CA is the same
// tomorrow.
//
//   TESSERA_ASSIGN_OR_RETURN(const Pool pool, MakePool("/var/lib/tessera/tls", {"", "node1", 7421, ""}));
//   JoinLine(pool)   // "TESSERA_JOIN_TOKEN=... tessera-worker --join tls://node1:7421 --ca-pin sha256:... --memory
//   0.8"

#include <string>

#include "absl/status/statusor.h"
#include "client/cluster.h"
#include "schemas/types/address.h"

namespace tessera {

struct Pool {
  std::string folder;
  Address clients;   // where clients connect and workers enrol
  Address workers;   // where workers join
  std::string host;  // by which other machines reach this one
  std::string pin;
  std::string token, join_token, admin_token;
};

// Where the folder is when nobody says: that of the state, else one of the user's.
std::string PoolFolder(const std::string& state);
// Makes what is missing in the folder, and a new leaf. InvalidArgument for a host that is none, FailedPrecondition
// where others may write to the folder.
absl::StatusOr<Pool> MakePool(const std::string& folder, const Address& listen);
// The tokens of a pool with a state folder lie there: when `tessera up` is started on it again, clients find their
// sessions. Made where there are none. Unavailable when they can't be written.
absl::Status KeepTokens(const std::string& state, ClusterOptions& options);
// The flags and tokens of a cluster that serves the pool.
void ServePool(const Pool& pool, ClusterOptions& options);
// The line for a shell of the next machine. It carries the workers' token.
std::string JoinLine(const Pool& pool);
// {"address": ..., "token": ..., "admin_token": ..., "ca": ..., "join": {"address", "ca_pin", "token"}}, for its user
// alone; whole or not at all.
absl::Status WriteAddress(const Pool& pool, const std::string& file);

}  // namespace tessera
