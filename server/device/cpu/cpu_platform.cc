#include "server/device/cpu/cpu_platform.h"

#include <utility>

#include "schemas/types/limits.h"
#include "server/device/cpu/cpu_device.h"

namespace tessera {
namespace {

class CpuPlatform final : public Platform {
 public:
  explicit CpuPlatform(const CpuPlatformOptions& options) : options_(options) {}
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  absl::StatusOr<int64_t> DefaultArenaBytes() override { return kDefaultArenaBytes; }
  absl::StatusOr<SharedArena> MakeArena(int64_t bytes) override { return SharedArena::Create(bytes); }
  absl::StatusOr<SharedArena> MapArena(ArenaDescriptors descriptors) override {
    return SharedArena::Map(std::move(descriptors));
  }
  absl::StatusOr<std::unique_ptr<Device>> MakeDevice(WorkerIndex self, const SharedArena& own) override {
    CpuDeviceOptions device{.self = self,
                            .counters = own.counters(),
                            .threads = options_.threads,
                            .spin_pauses = DefaultSpinPauses(options_.workers_on_host)};
    device.nice = options_.batch_nice;
    device.first_slot = self.value % options_.workers_on_host * options_.threads;
    return std::make_unique<CpuDevice>(device);
  }

 private:
  const CpuPlatformOptions options_;
};

}  // namespace

std::unique_ptr<Platform> MakeCpuPlatform(const CpuPlatformOptions& options) {
  return std::make_unique<CpuPlatform>(options);
}

}  // namespace tessera
