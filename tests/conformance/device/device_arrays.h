#pragma once

// OneGpu: a CudaDevice alone, and arrays in memory of the device, which the host can't touch.
//
//   OneGpu gpu;
//   const float* a = gpu.Put<float>({1, 2, 3});
//   gpu.device().EnqueueRun(StreamId::kCompute, ...);
//   absl::Status status = gpu.Report(StreamId::kCompute);
//   std::vector<float> values = gpu.Get(a, 3);

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "server/device/cuda/cuda_device.h"
#include "server/device/cuda/cuda_memory.h"

namespace tessera::testing {

class OneGpu {
 public:
  static constexpr int64_t kBytes = int64_t{64} << 20;

  explicit OneGpu(cuda::CudaDeviceOptions options = {});
  cuda::CudaDevice& device() { return *device_; }

  // Aligned to 256.
  std::byte* Take(int64_t bytes);
  // All that was taken is free again.
  void Reset() { taken_ = 0; }
  void Upload(const void* from, std::byte* to, int64_t bytes);
  void Download(const std::byte* from, void* to, int64_t bytes);
  template <typename T>
  T* Put(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
    std::byte* at = Take(bytes);
    Upload(values.data(), at, bytes);
    return reinterpret_cast<T*>(at);
  }
  template <typename T>
  std::vector<T> Get(const T* at, size_t count) {
    std::vector<T> values(count);
    Download(reinterpret_cast<const std::byte*>(at), values.data(), static_cast<int64_t>(count * sizeof(T)));
    return values;
  }
  // Waits until the stream has run what it has, and says how that went.
  absl::Status Report(StreamId stream);

 private:
  const cuda::Gpu gpu_;
  std::shared_ptr<CounterPage> page_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<cuda::CudaDevice> device_;
  int64_t taken_ = 0;
};

}  // namespace tessera::testing
