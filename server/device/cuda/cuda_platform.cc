#include "server/device/cuda/cuda_platform.h"

#include <utility>

#include "schemas/types/status_macros.h"
#include "server/device/cuda/cuda_device.h"
#include "server/device/cuda/cuda_memory.h"
#include "server/device/cuda/driver.h"

namespace tessera {
namespace {

class CudaPlatform final : public Platform {
 public:
  CudaPlatform(const cuda::Gpu& gpu, const CudaPlatformOptions& options, std::unique_ptr<cuda::CudaDevice> prepared)
      : gpu_(gpu), options_(options), prepared_(std::move(prepared)) {}
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  absl::StatusOr<int64_t> DefaultArenaBytes() override { return cuda::ShareOfMemory(gpu_, options_.workers_on_host); }
  absl::StatusOr<SharedArena> MakeArena(int64_t bytes) override {
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory,
                             cuda::MakeMemory(gpu_, bytes, cuda::Sharing::kExported));
    return SharedArena::Own(std::move(memory));
  }
  absl::StatusOr<SharedArena> MapArena(ArenaDescriptors descriptors) override {
    TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory,
                             cuda::MapMemory(gpu_, std::move(descriptors.memory), descriptors.memory_bytes));
    return SharedArena::OfPeer(std::move(descriptors.counters), std::move(memory));
  }
  absl::StatusOr<std::unique_ptr<Device>> MakeDevice(WorkerIndex self, const SharedArena& own) override {
    if (prepared_ == nullptr) return absl::FailedPreconditionError("cuda: the worker has its device");
    TESSERA_RETURN_IF_ERROR(
        prepared_->Begin({.self = self, .counters = own.counters(), .lost = options_.lost, .warn = options_.warn}));
    return std::move(prepared_);
  }

 private:
  const cuda::Gpu gpu_;
  const CudaPlatformOptions options_;
  std::unique_ptr<cuda::CudaDevice> prepared_;  // until it is asked for
};

}  // namespace

absl::StatusOr<std::unique_ptr<Platform>> MakeCudaPlatform(const CudaPlatformOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const cuda::Driver* driver, cuda::Driver::Load());
  TESSERA_ASSIGN_OR_RETURN(const cuda::Gpu gpu, cuda::Gpu::OpenFor(*driver, options.gpu, options.worker));
  // Before the worker joins: if it lacks something that it needs, it never was.
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<cuda::CudaDevice> prepared, cuda::CudaDevice::Prepare(gpu));
  return std::make_unique<CudaPlatform>(gpu, options, std::move(prepared));
}

}  // namespace tessera
