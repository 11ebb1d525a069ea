#pragma once

// Platform: a kind of device that a worker of this process has. It makes the worker's arena before the worker joins,
// and the device when its number is known; and it maps peers' arenas, which are of the same kind.
//
//   std::unique_ptr<Platform> platform = MakeCpuPlatform({.threads = 2});
//   SharedArena own = *platform->MakeArena(*platform->DefaultArenaBytes());
//   std::unique_ptr<Device> device = platform->MakeDevice(WorkerIndex(0), own);

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "schemas/types/device_kind.h"
#include "schemas/types/ids.h"
#include "server/device/device.h"
#include "server/device/shared_arena.h"

namespace tessera {

class Platform {
 public:
  virtual ~Platform() = default;
  virtual DeviceKind kind() const = 0;
  // Bytes of the arena of a worker of which nobody has said how many it has.
  virtual absl::StatusOr<int64_t> DefaultArenaBytes() = 0;
  // ResourceExhausted says bytes wanted and free; the arena may be larger than asked for, by the device's pages.
  virtual absl::StatusOr<SharedArena> MakeArena(int64_t bytes) = 0;
  // InvalidArgument when a descriptor is not that of an arena of this kind.
  virtual absl::StatusOr<SharedArena> MapArena(ArenaDescriptors descriptors) = 0;
  // Once. `own` outlives the device, as the platform does.
  virtual absl::StatusOr<std::unique_ptr<Device>> MakeDevice(WorkerIndex self, const SharedArena& own) = 0;
};

}  // namespace tessera
