#pragma once

// PartsDoor: an upload whose bytes several processes bring, each what lies near it. One process opens it, and gives the
// others the ticket; each of them sends whole shards, those of other workers than the others.
//
//   TESSERA_ASSIGN_OR_RETURN(auto opened, PartsDoor(*mine).Open(spec));        // the tensor is pending
//   PartsDoor(*another).Send(opened.ticket, opened.secret, spec, pieces);      // in a process that knows the secret
//   PartsDoor(*mine).GiveUp(handle, ticket, why);                                     // where one of them couldn't
//
// Law: a worker takes its shard from whoever shows the ticket first, and from nobody else: who dies midway fails the
// tensor. The ticket is the opener's: it ends with the opener's session.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session_impl.h"
#include "client/transfer_parts.h"

namespace tessera {

class PartsDoor {
 public:
  explicit PartsDoor(SessionImpl& session) : session_(session) {}

  struct Opened {
    HandlePtr handle;
    uint64_t ticket = 0;
    uint64_t secret = 0;
  };
  // Waits until the workers have memory for it. FailedPrecondition: calls are only planned, or recorded.
  absl::StatusOr<Opened> Open(const TensorSpec& spec);
  // Pieces that cover the shards of their workers, of each in the order of dim 0; returns when these have them. The
  // spec is the opener's. NotFound: the ticket is unknown, over, or used by another process for one of these workers.
  absl::Status Send(uint64_t ticket, uint64_t secret, const TensorSpec& spec, const std::vector<UploadPiece>& pieces);
  // The tensor fails with this, unless it is complete.
  void GiveUp(uint64_t handle, uint64_t ticket, const absl::Status& why);

 private:
  SessionImpl& session_;
};

}  // namespace tessera
