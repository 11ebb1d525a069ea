#include "server/device/cuda/cuda_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera::cuda {
namespace {

constexpr int64_t kPinnedBlockBytes = 64 << 10;

CUmemAllocationProp PropertiesOf(const Gpu& gpu, Sharing sharing) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu.device};
  if (sharing == Sharing::kExported) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

// An allocation's handle, let go of unless it was taken: a mapping keeps the memory.
class Handle {
 public:
  explicit Handle(const Gpu& gpu) : gpu_(gpu) {}
  ~Handle() {
    if (value_ != 0) gpu_.driver->MemRelease(value_);
  }
  CUmemGenericAllocationHandle* out() { return &value_; }
  CUmemGenericAllocationHandle get() const { return value_; }

 private:
  const Gpu& gpu_;
  CUmemGenericAllocationHandle value_ = 0;
};

class GpuMemory final : public DeviceMemory {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceMemory>> Map(const Gpu& gpu, CUmemGenericAllocationHandle handle,
                                                           int64_t bytes, OwnedFd fd) {
    const Driver& driver = *gpu.driver;
    const size_t size = static_cast<size_t>(bytes);
    CUdeviceptr address = 0;
    TESSERA_RETURN_IF_ERROR(driver.Check("cuMemAddressReserve", driver.MemAddressReserve(&address, size, 0, 0, 0)));
    if (absl::Status s = driver.Check("cuMemMap", driver.MemMap(address, size, 0, handle, 0)); !s.ok()) {
      driver.MemAddressFree(address, size);
      return s;
    }
    std::unique_ptr<GpuMemory> memory(new GpuMemory(gpu, reinterpret_cast<std::byte*>(address), bytes, std::move(fd)));
    const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, gpu.device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    TESSERA_RETURN_IF_ERROR(driver.Check("cuMemSetAccess", driver.MemSetAccess(address, size, &access, 1)));
    gpu.use->AddMemory(address, bytes);
    return std::unique_ptr<DeviceMemory>(std::move(memory));
  }
  ~GpuMemory() override {
    gpu_.use->RemoveMemory(AddressOf(data()));
    gpu_.Enter().IgnoreError();
    gpu_.driver->MemUnmap(AddressOf(data()), static_cast<size_t>(bytes()));
    gpu_.driver->MemAddressFree(AddressOf(data()), static_cast<size_t>(bytes()));
  }

 private:
  GpuMemory(const Gpu& gpu, std::byte* data, int64_t bytes, OwnedFd fd)
      : DeviceMemory(data, bytes, std::move(fd)), gpu_(gpu) {}
  const Gpu gpu_;
};

absl::StatusOr<int64_t> PageBytesOf(const Gpu& gpu) {
  const CUmemAllocationProp properties = PropertiesOf(gpu, Sharing::kExported);
  size_t page = 0;
  TESSERA_RETURN_IF_ERROR(gpu.driver->Check(
      "cuMemGetAllocationGranularity",
      gpu.driver->MemGetAllocationGranularity(&page, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)));
  return static_cast<int64_t>(page);
}

}  // namespace

absl::StatusOr<Gpu> Gpu::Open(const Driver& driver, int number) {
  int count = 0;
  TESSERA_RETURN_IF_ERROR(driver.Check("cuDeviceGetCount", driver.DeviceGetCount(&count)));
  if (number < 0 || number >= count) {
    return absl::FailedPreconditionError(StrCat("cuda: no GPU ", number, ": the driver counts ", count, ", from 0 on"));
  }
  Gpu gpu;
  gpu.driver = &driver;
  TESSERA_RETURN_IF_ERROR(driver.Check("cuDeviceGet", driver.DeviceGet(&gpu.device, number)));
  TESSERA_RETURN_IF_ERROR(
      driver.Check("cuDevicePrimaryCtxRetain", driver.DevicePrimaryCtxRetain(&gpu.context, gpu.device)));
  gpu.use = &GpuUse::Of(gpu.context);
  TESSERA_RETURN_IF_ERROR(gpu.Enter());
  return gpu;
}

absl::StatusOr<Gpu> Gpu::OpenFor(const Driver& driver, int number, int worker) {
  int count = 0;
  TESSERA_RETURN_IF_ERROR(driver.Check("cuDeviceGetCount", driver.DeviceGetCount(&count)));
  if (number < 0) number = count > 0 && worker >= 0 ? worker % count : 0;
  return Open(driver, number);
}

absl::Status Gpu::Enter() const { return driver->Check("cuCtxSetCurrent", driver->CtxSetCurrent(context)); }

absl::StatusOr<int64_t> ShareOfMemory(const Gpu& gpu, int workers_on_host) {
  TESSERA_RETURN_IF_ERROR(gpu.Enter());
  int gpus = 0;
  TESSERA_RETURN_IF_ERROR(gpu.driver->Check("cuDeviceGetCount", gpu.driver->DeviceGetCount(&gpus)));
  size_t free_bytes = 0, total_bytes = 0;
  TESSERA_RETURN_IF_ERROR(gpu.driver->Check("cuMemGetInfo", gpu.driver->MemGetInfo(&free_bytes, &total_bytes)));
  TESSERA_ASSIGN_OR_RETURN(const int64_t page, PageBytesOf(gpu));
  const int64_t workers = std::max(1, (workers_on_host + gpus - 1) / std::max(1, gpus));
  const int64_t part = static_cast<int64_t>(total_bytes) / workers;
  const int64_t reserve = std::min(kGpuReserveBytes, part / 8);
  const int64_t share = std::min(part, static_cast<int64_t>(free_bytes)) - reserve;
  if (share < page) {
    return absl::ResourceExhaustedError(
        StrCat("arena: ", free_bytes, " of ", total_bytes, " bytes are free on the GPU, and ", reserve,
               " of them stay free (gpu_reserve_bytes); --memory takes less, or another GPU"));
  }
  return std::min(share, kMaxArenaBytes) / page * page;
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> MakeMemory(const Gpu& gpu, int64_t bytes, Sharing sharing) {
  if (bytes <= 0 || bytes > kMaxArenaBytes) {
    return absl::InvalidArgumentError(
        StrCat("arena: ", bytes, " bytes; 1 to ", kMaxArenaBytes, " are allowed (max_arena_bytes)"));
  }
  TESSERA_RETURN_IF_ERROR(gpu.Enter());
  TESSERA_ASSIGN_OR_RETURN(const int64_t page, PageBytesOf(gpu));
  const int64_t size = (bytes + page - 1) / page * page;
  const CUmemAllocationProp properties = PropertiesOf(gpu, sharing);
  Handle handle(gpu);
  const CUresult made = gpu.driver->MemCreate(handle.out(), static_cast<size_t>(size), &properties, 0);
  if (made == CUDA_ERROR_OUT_OF_MEMORY) {
    size_t free_bytes = 0, total_bytes = 0;
    gpu.driver->MemGetInfo(&free_bytes, &total_bytes);
    return absl::ResourceExhaustedError(StrCat(sharing == Sharing::kExported ? "arena: " : "workspace: ", size,
                                               " bytes wanted, ", free_bytes, " of ", total_bytes, " free on the GPU"));
  }
  TESSERA_RETURN_IF_ERROR(gpu.driver->Check("cuMemCreate", made));
  int fd = -1;
  if (sharing == Sharing::kExported) {
    TESSERA_RETURN_IF_ERROR(gpu.driver->Check(
        "cuMemExportToShareableHandle",
        gpu.driver->MemExportToShareableHandle(&fd, handle.get(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)));
  }
  return GpuMemory::Map(gpu, handle.get(), size, OwnedFd(fd));
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> MapMemory(const Gpu& gpu, OwnedFd fd, int64_t bytes) {
  TESSERA_RETURN_IF_ERROR(gpu.Enter());
  Handle handle(gpu);
  const absl::Status imported = gpu.driver->Check(
      "cuMemImportFromShareableHandle",
      gpu.driver->MemImportFromShareableHandle(handle.out(), reinterpret_cast<void*>(static_cast<intptr_t>(fd.get())),
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  if (!imported.ok()) return absl::InvalidArgumentError(StrCat("arena: ", StdView(imported.message())));
  return GpuMemory::Map(gpu, handle.get(), bytes, OwnedFd());
}

PinnedSlots::~PinnedSlots() {
  gpu_.Enter().IgnoreError();
  for (void* block : blocks_) gpu_.driver->MemFreeHost(block);
}

absl::StatusOr<std::byte*> PinnedSlots::Take() {
  if (free_.empty()) {
    void* block = nullptr;
    const int64_t bytes = std::max(kPinnedBlockBytes, slot_bytes_);
    TESSERA_RETURN_IF_ERROR(
        gpu_.driver->Check("cuMemHostAlloc", gpu_.driver->MemHostAlloc(&block, static_cast<size_t>(bytes), 0)));
    blocks_.push_back(block);
    for (int64_t at = 0; at + slot_bytes_ <= bytes; at += slot_bytes_) {
      free_.push_back(static_cast<std::byte*>(block) + at);
    }
  }
  std::byte* const slot = free_.back();
  free_.pop_back();
  std::memset(slot, 0, static_cast<size_t>(slot_bytes_));
  return slot;
}

}  // namespace tessera::cuda
