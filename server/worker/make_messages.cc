#include "server/worker/make_messages.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/transport/nccl/nccl_transport.h"
#include "server/transport/routed/routed_transport.h"
#include "server/transport/socket/socket_transport.h"
#include "server/transport/ucx/ucx_transport.h"

namespace tessera {
namespace {

absl::StatusOr<WorkerMessages> MakeTlsMessages(const WorkerOptions& options, WorkerIndex self) {
  const auto listen = ParseHostAndPort(options.message_listen);
  if (!listen.ok()) return absl::InvalidArgumentError(StrCat("--message-listen ", listen.status().message()));
  TlsOptions tls;
  std::tie(tls.listen_host, tls.port) = *listen;
  tls.advertise_host = options.message_advertise;
  tls.certificate = options.tls.certificate;
  tls.key = options.tls.key;
  tls.ca = options.tls.ca;
  tls.stall_timeout_ms = static_cast<int64_t>(options.message_stall_timeout_s * 1e3);
  TESSERA_ASSIGN_OR_RETURN(auto transport, TlsTransport::Make(self, tls));
  TlsTransport* const made = transport.get();
  return WorkerMessages{std::move(transport), made};
}

// None in a network that isn't trusted.
absl::StatusOr<WorkerMessages> MakeUcxMessages(const WorkerOptions& options, WorkerIndex self) {
  if (options.trusted_network == TrustedNetwork::kNone) return WorkerMessages{};
  UcxOptions ucx;
  ucx.net_devices = options.net_devices;
  ucx.stall_timeout_ms = static_cast<int64_t>(options.message_stall_timeout_s * 1e3);
  TESSERA_ASSIGN_OR_RETURN(auto transport, UcxTransport::Make(self, ucx));
  return WorkerMessages{std::move(transport)};
}

// The networks between hosts, each with the call that makes its messages.
struct Network {
  MessageNetwork network;
  absl::StatusOr<WorkerMessages> (*make)(const WorkerOptions& options, WorkerIndex self);
};
constexpr Network kNetworks[] = {
    {MessageNetwork::kTls, MakeTlsMessages},
    {MessageNetwork::kUcx, MakeUcxMessages},
};

constexpr const Network* FindNetwork(MessageNetwork network) {
  for (const Network& one : kNetworks) {
    if (one.network == network) return &one;
  }
  return nullptr;
}
static_assert(std::all_of(std::begin(kTransports), std::end(kTransports),
                          [](const Transport& transport) {
                            return transport.messages == MessageNetwork::kNone ||
                                   FindNetwork(transport.messages) != nullptr;
                          }),
              "the network of each transport has a row of kNetworks");

}  // namespace

absl::StatusOr<WorkerMessages> MakeMessages(const WorkerOptions& options, const std::string& path) {
  const bool is_trusted = options.trusted_network != TrustedNetwork::kNone;
  if (!UsesTls(options) && !options.message_listen.empty()) {
    return absl::InvalidArgumentError("--message-listen is for messages over TLS: --transport tls or shm+tls");
  }
  if (TransportOf(options).messages == MessageNetwork::kNone) {
    if (!is_trusted) return WorkerMessages{};
    return absl::InvalidArgumentError("--trusted-network is for messages to other hosts: --transport ucx or shm+ucx");
  }
  if (NeedsTrust(TransportOf(options)) && !is_trusted) {
    return absl::InvalidArgumentError(StrCat(
        "--transport ", options.transport,
        " sends messages to other hosts, and those are neither encrypted nor authenticated: whoever reaches UCX's port "
        "on --net-devices writes into this process. Where all who do are trusted, as MPI and NCCL want it, say so by "
        "--trusted-network; else take --transport shm+tls"));
  }
  if (NeedsGpu(TransportOf(options)) && options.device != "cuda") {
    return absl::InvalidArgumentError(
        StrCat("--transport ", options.transport, " is for workers with a GPU: --device cuda"));
  }
  if (UsesTls(options) && (is_trusted || options.message_listen.empty())) {
    return absl::InvalidArgumentError(StrCat(
        "--transport ", options.transport,
        is_trusted ? " encrypts messages to other hosts: it is for networks that --trusted-network is not said of"
                   : " needs --message-listen: the host by which others reach this worker"));
  }
  if (options.index < 0) {
    return absl::InvalidArgumentError(
        StrCat("--transport ", options.transport, " needs --index: the number is part of its messages"));
  }
  const WorkerIndex self(options.index);
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<MessageTransport> on_host, SocketTransport::Make(self, path));
  TESSERA_ASSIGN_OR_RETURN(WorkerMessages between_hosts,
                           FindNetwork(TransportOf(options).messages)->make(options, self));
  auto routed =
      std::make_unique<RoutedTransport>(options.host_id, std::move(on_host), std::move(between_hosts.transport));
  if (!UsesNccl(options)) return WorkerMessages{std::move(routed), between_hosts.tls};
  TESSERA_ASSIGN_OR_RETURN(
      auto nccl, MakeNcclTransport({.self = self, .gpu = options.gpu, .workers_on_host = options.workers_on_host},
                                   std::move(routed)));
  return WorkerMessages{std::move(nccl), between_hosts.tls};
}

}  // namespace tessera
