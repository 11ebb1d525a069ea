#pragma once

// KeptMemory: the memory that the client of one connection attaches. Memory that comes for the second time is likely to
// come again (host_empty): its mapping is given to the device, which keeps it for some time, and then reaches it by
// itself (Device::KeepReachable). Other memory is mapped for as long as its transfer lives.
//
//   TESSERA_ASSIGN_OR_RETURN(memory, kept.Map(fd, TransferDirection::kUpload));
//
// When the connection has ended, the device lets go of all. Used by the bulk server's thread.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <tuple>

#include "absl/status/statusor.h"
#include "server/device/device.h"
#include "server/worker/rpc/client_memory.h"

namespace tessera {

class KeptMemory {
 public:
  // Memories that a connection is remembered to have attached. docs/limits.md: max_remembered_attached
  static constexpr size_t kRemembered = 16;

  KeptMemory(Device& device, const AttachedMemory& attached)
      : device_(device), share_(std::make_shared<AttachedMemory::Share>(attached)) {}
  ~KeptMemory();
  KeptMemory(const KeptMemory&) = delete;

  // As ClientMemory::Map.
  absl::StatusOr<std::shared_ptr<ClientMemory>> Map(int fd, TransferDirection direction);

 private:
  // The file, and its bytes.
  using Identity = std::tuple<dev_t, ino_t, off_t>;

  Device& device_;
  const std::shared_ptr<AttachedMemory::Share> share_;
  std::deque<Identity> attached_;                         // the last ones
  std::map<Identity, std::weak_ptr<ClientMemory>> kept_;  // those that the device was given
};

}  // namespace tessera
