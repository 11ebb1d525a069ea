#include "server/device/cuda/gpu_use.h"

#include <cstdlib>
#include <memory>
#include <mutex>

namespace tessera::cuda {

int Connections() {
  const char* text = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  const int wanted = text == nullptr ? 0 : std::atoi(text);
  return wanted > 0 ? wanted : kConnections;
}

GpuUse& GpuUse::Of(CUcontext context) {
  static std::mutex& mutex = *new std::mutex();
  static auto& all = *new std::map<CUcontext, std::unique_ptr<GpuUse>>();
  const std::lock_guard lock(mutex);
  std::unique_ptr<GpuUse>& use = all[context];
  if (use == nullptr) use = std::make_unique<GpuUse>();
  return *use;
}

void GpuUse::AddMemory(CUdeviceptr address, int64_t bytes) {
  const std::unique_lock lock(memory_mutex_);
  memory_[address] = bytes;
}

void GpuUse::RemoveMemory(CUdeviceptr address) {
  const std::unique_lock lock(memory_mutex_);
  memory_.erase(address);
}

bool GpuUse::IsDeviceMemory(CUdeviceptr address) const {
  const std::shared_lock lock(memory_mutex_);
  const auto after = memory_.upper_bound(address);
  if (after == memory_.begin()) return false;
  const auto& [base, bytes] = *std::prev(after);
  return address - base < static_cast<CUdeviceptr>(bytes);
}

GpuUse::Spinning GpuUse::BeginSpinning() {
  const std::lock_guard lock(quiet_mutex_);
  ++spinning_;
  return Spinning(&spinning_);
}

std::shared_lock<std::shared_mutex> GpuUse::TryQuiet() {
  std::shared_lock lock(quiet_mutex_);
  if (!is_quiet()) lock.unlock();
  return lock;
}

}  // namespace tessera::cuda
