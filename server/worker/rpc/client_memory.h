#pragma once

// ClientMemory: a client's memfd, mapped for as long as its transfer lives. Sealed, and with all its pages reserved: no
// later act of the client on it ends a worker.

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "server/plan/instance.h"
#include "server/worker/attached_memory.h"

namespace tessera {

class ClientMemory {
 public:
  // InvalidArgument where it isn't such a memfd; ResourceExhausted where the share, or the process, has no room.
  static absl::StatusOr<std::shared_ptr<ClientMemory>> Map(int fd, TransferDirection direction,
                                                           std::shared_ptr<AttachedMemory::Share> share);
  ~ClientMemory();
  std::byte* base() const { return base_; }
  size_t bytes() const { return bytes_; }

 private:
  ClientMemory(size_t bytes, std::shared_ptr<AttachedMemory::Share> share) : bytes_(bytes), share_(std::move(share)) {}
  std::byte* base_ = nullptr;
  size_t bytes_;
  std::shared_ptr<AttachedMemory::Share> share_;
};

}  // namespace tessera
