#include "server/transport/nccl/nccl_transport.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<MessageTransport>> MakeNcclTransport(const NcclOptions&,
                                                                    std::unique_ptr<MessageTransport>) {
  return absl::FailedPreconditionError("nccl: this worker was built without the CUDA toolkit");
}

}  // namespace tessera
