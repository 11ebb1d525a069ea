#pragma once

// Hellos of a client and a worker, checked: no claim in them that takes a token is believed. Pure; who has a token is
// the gateway's.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "schemas/session.capnp.h"
#include "schemas/types/limits.h"
#include "schemas/worker.capnp.h"
#include "server/coordinator/events.h"

namespace tessera {

struct ResumeRequest {
  SessionId session;
  uint64_t secret = 0;
  uint64_t last_event = 0;
  Returning who = Returning::kNewClient;
};

struct ClientHello {
  std::string client;  // printable, as the name is
  std::string name;
  std::optional<double> lease_s;
  std::optional<ResumeRequest> resume;
};

// Checks the length of a text that a status shows: InvalidArgument when it is longer.
absl::Status CheckName(std::string_view op, std::string_view what, capnp::Text::Reader text);
// A server goes on with clients and workers of the version before: so it is upgraded first, and they when they like.
inline constexpr uint32_t kOldestProtocolVersion = wire::PROTOCOL_VERSION - 1;
// FailedPrecondition for any other version of the protocol.
absl::Status CheckVersion(std::string_view who, uint32_t version);
// A worker that has lost its coordinator says this.
struct RejoinRequest {
  uint64_t incarnation = 0;
  uint64_t epoch = 0;     // of the coordinator that it had
  uint64_t taken = 0;     // messages that it has taken
  uint64_t reported = 0;  // reports that it has sent
};
// InvalidArgument for what is out of range. For a tenant that is not the token's what a wrong token gets: which others
// there are is not told.
absl::StatusOr<ClientHello> DecodeClientHello(wire::ClientHello::Reader reader, std::string_view tenant,
                                              double max_lease_s);
// Without an incarnation; `pid` is the worker's own word.
absl::StatusOr<WorkerJoinedEvent> DecodeWorkerHello(wire::WorkerHello::Reader reader);

}  // namespace tessera
