#pragma once

// MakeMessages: the transport by which a worker exchanges messages with peers whose memory it doesn't map, from the
// flags of its command line.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/transport/tls/tls_transport.h"
#include "server/transport/transport.h"
#include "server/worker/options.h"

namespace tessera {

struct WorkerMessages {
  std::unique_ptr<MessageTransport> transport;  // null: all peers are mapped
  TlsTransport* tls = nullptr;                  // the part of it that goes over TLS; null: there is none
};

// `path`: of the worker's own socket for messages on its host. InvalidArgument names the flags that don't go together.
absl::StatusOr<WorkerMessages> MakeMessages(const WorkerOptions& options, const std::string& path);

}  // namespace tessera
