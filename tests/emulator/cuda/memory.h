#pragma once

// The emulated GPU's memory, and the host's that is registered with it. An allocation is a memfd. The host can't touch
// the reservation of a device address (PROT_NONE): code that follows such a pointer ends with SIGSEGV. Kernels and
// copies see device memory by a mapping of their own, and of the host's memory what is registered.
//
// Law: an identity and an offset name a byte, however often it is mapped in this process.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include <cuda.h>

namespace tessera::emulator {

struct Range {
  int64_t bytes = 0;
  std::byte* host = nullptr;  // where this process has it
  uint64_t identity = 0;
  uint64_t offset = 0;  // in what the identity names
};

// The ranges that are mapped at one moment: operations look at one, while others map and unmap.
class RangeMap {
 public:
  // Null where not all of [address, address + bytes) lies in one range.
  const Range* Find(uint64_t address, int64_t bytes) const;
  std::byte* Host(uint64_t address, int64_t bytes) const;

  std::map<uint64_t, Range> ranges;  // by address
};

class Memory {
 public:
  explicit Memory(int64_t device_bytes) : device_bytes_(device_bytes), free_bytes_(device_bytes) {}

  static constexpr int64_t kGranularity = int64_t{2} << 20;

  CUresult Create(int64_t bytes, CUmemGenericAllocationHandle* handle);
  CUresult Release(CUmemGenericAllocationHandle handle);
  CUresult Export(CUmemGenericAllocationHandle handle, int* fd);
  CUresult Import(int fd, CUmemGenericAllocationHandle* handle);
  CUresult Reserve(int64_t bytes, CUdeviceptr* address);
  CUresult Free(CUdeviceptr address, int64_t bytes);
  CUresult Map(CUdeviceptr address, int64_t bytes, int64_t offset, CUmemGenericAllocationHandle handle);
  CUresult Unmap(CUdeviceptr address, int64_t bytes);
  CUresult SetAccess(CUdeviceptr address, int64_t bytes);

  CUresult AllocateHost(int64_t bytes, void** at);
  CUresult FreeHost(void* at);
  CUresult Register(void* at, int64_t bytes);
  CUresult Unregister(void* at);

  std::shared_ptr<const RangeMap> Mapped() const;
  bool IsHost(uint64_t address) const;
  int64_t device_bytes() const { return device_bytes_; }
  int64_t free_bytes() const;

 private:
  struct Allocation {
    int fd = -1;
    int64_t bytes = 0;
    bool is_own = false;  // counts as this GPU's memory
    int mappings = 0;
    bool is_released = false;
  };
  struct Mapping {
    CUmemGenericAllocationHandle handle = 0;
    Range range;
    bool is_accessible = false;
  };
  void Publish();
  void ForgetIfUnused(CUmemGenericAllocationHandle handle);
  CUresult AddHost(void* at, int64_t bytes);

  const int64_t device_bytes_;
  mutable std::mutex mutex_;
  int64_t free_bytes_;
  uint64_t next_handle_ = 1;
  std::map<CUmemGenericAllocationHandle, Allocation> allocations_;
  std::map<uint64_t, int64_t> reserved_;  // bytes by address
  std::map<uint64_t, Mapping> mappings_;
  std::map<uint64_t, Range> host_;  // registered, by address
  std::map<uint64_t, int64_t> from_host_alloc_;
  std::shared_ptr<const RangeMap> mapped_ = std::make_shared<RangeMap>();
};

}  // namespace tessera::emulator
