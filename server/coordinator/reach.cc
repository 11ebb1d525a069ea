#include "server/coordinator/reach.h"

#include <string>

#include "schemas/types/str_cat.h"
#include "schemas/types/transports.h"

namespace tessera {
namespace {

// As on its command line. UCX in a network that isn't trusted carries nothing between hosts.
std::string TransportOf(const WorkerJoinedEvent& worker) {
  const bool is_apart = worker.messages == MessageNetwork::kOwnHost;
  const MessageNetwork messages = is_apart ? MessageNetwork::kUcx : worker.messages;
  for (const Transport& transport : kTransports) {
    if (transport.messages != messages || transport.maps_peers != worker.map_peers ||
        transport.has_nccl != worker.has_nccl) {
      continue;
    }
    return StrCat(transport.name, worker.messages == MessageNetwork::kUcx ? " --trusted-network" : "");
  }
  return "unknown";
}

std::string Described(const WorkerJoinedEvent& worker) {
  return StrCat("worker ", worker.worker.value, " has --transport ", TransportOf(worker), " on host ", worker.host);
}

}  // namespace

absl::Status CheckReach(const WorkerJoinedEvent& comer, const WorkerJoinedEvent& there) {
  const bool both_have_messages = comer.messages != MessageNetwork::kNone && there.messages != MessageNetwork::kNone;
  const bool share_a_host = comer.host == there.host;
  if (share_a_host) {
    if (both_have_messages || (comer.map_peers && there.map_peers) || comer.device != there.device) {
      return absl::OkStatus();
    }
  } else if (comer.messages == there.messages && ReachesHosts(comer.messages)) {
    return absl::OkStatus();
  }
  const std::string both = StrCat("join: ", Described(comer), ", ", Described(there), ": ");
  if (share_a_host) {
    return absl::FailedPreconditionError(
        StrCat(both,
               "one of them maps no memory and the other one has no messages; start all of a host with the same "
               "--transport"));
  }
  return absl::FailedPreconditionError(
      StrCat(both, "workers of several hosts exchange messages, all of them in the same way; start each with ",
             "--transport shm+tls, or, where everybody on the network is trusted, each with --transport shm+ucx ",
             "--trusted-network"));
}

}  // namespace tessera
