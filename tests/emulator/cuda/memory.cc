#include "tests/emulator/cuda/memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <utility>

namespace tessera::emulator {
namespace {

constexpr uint64_t kPrivate = 0;  // the identity of the process's own memory: the offset is the address

// Which file is mapped there, so that two mappings of one file are known to be one memory.
std::pair<uint64_t, uint64_t> IdentityOf(uint64_t address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uint64_t first = 0, last = 0, offset = 0, inode = 0;
    unsigned major_number = 0, minor_number = 0;
    char flags[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s %lx %x:%x %lu", &first, &last, flags, &offset, &major_number,
                    &minor_number, &inode) != 7) {
      continue;
    }
    if (address < first || address >= last) continue;
    const bool is_shared_file = flags[3] == 's' && inode != 0;
    if (is_shared_file) return {inode, offset + (address - first)};
    break;
  }
  return {kPrivate, address};
}

}  // namespace

const Range* RangeMap::Find(uint64_t address, int64_t bytes) const {
  auto after = ranges.upper_bound(address);
  if (after == ranges.begin() || bytes < 0) return nullptr;
  const auto& [base, range] = *std::prev(after);
  const uint64_t at = address - base;
  const uint64_t size = static_cast<uint64_t>(range.bytes);
  return at <= size && static_cast<uint64_t>(bytes) <= size - at ? &range : nullptr;
}

std::byte* RangeMap::Host(uint64_t address, int64_t bytes) const {
  auto after = ranges.upper_bound(address);
  const Range* range = Find(address, bytes);
  return range == nullptr ? nullptr : range->host + (address - std::prev(after)->first);
}

std::shared_ptr<const RangeMap> Memory::Mapped() const {
  std::lock_guard lock(mutex_);
  return mapped_;
}

bool Memory::IsHost(uint64_t address) const {
  std::lock_guard lock(mutex_);
  auto after = host_.upper_bound(address);
  if (after == host_.begin()) return false;
  const auto& [base, range] = *std::prev(after);
  return address - base < static_cast<uint64_t>(range.bytes);
}

int64_t Memory::free_bytes() const {
  std::lock_guard lock(mutex_);
  return free_bytes_;
}

void Memory::Publish() {
  auto next = std::make_shared<RangeMap>();
  for (const auto& [address, mapping] : mappings_) {
    if (mapping.is_accessible) next->ranges[address] = mapping.range;
  }
  for (const auto& [address, range] : host_) next->ranges[address] = range;
  mapped_ = std::move(next);
}

CUresult Memory::Create(int64_t bytes, CUmemGenericAllocationHandle* handle) {
  std::lock_guard lock(mutex_);
  if (bytes <= 0 || bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > free_bytes_) return CUDA_ERROR_OUT_OF_MEMORY;
  const int fd = memfd_create("emulated-gpu", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, bytes) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  free_bytes_ -= bytes;
  *handle = next_handle_++;
  allocations_[*handle] = {fd, bytes, true};
  return CUDA_SUCCESS;
}

void Memory::ForgetIfUnused(CUmemGenericAllocationHandle handle) {
  auto found = allocations_.find(handle);
  if (!found->second.is_released || found->second.mappings > 0) return;
  close(found->second.fd);
  if (found->second.is_own) free_bytes_ += found->second.bytes;
  allocations_.erase(found);
}

CUresult Memory::Release(CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(mutex_);
  auto found = allocations_.find(handle);
  if (found == allocations_.end() || found->second.is_released) return CUDA_ERROR_INVALID_VALUE;
  found->second.is_released = true;
  ForgetIfUnused(handle);
  return CUDA_SUCCESS;
}

CUresult Memory::Export(CUmemGenericAllocationHandle handle, int* fd) {
  std::lock_guard lock(mutex_);
  auto found = allocations_.find(handle);
  if (found == allocations_.end()) return CUDA_ERROR_INVALID_VALUE;
  *fd = dup(found->second.fd);
  return *fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUresult Memory::Import(int fd, CUmemGenericAllocationHandle* handle) {
  std::lock_guard lock(mutex_);
  struct stat info;
  char path[64], target[64] = {};
  std::snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  const bool is_ours = readlink(path, target, sizeof(target) - 1) > 0 &&
                       std::string(target).find("memfd:emulated-gpu") != std::string::npos;
  if (!is_ours || fstat(fd, &info) != 0) return CUDA_ERROR_INVALID_VALUE;
  *handle = next_handle_++;
  allocations_[*handle] = {dup(fd), info.st_size, false};
  return CUDA_SUCCESS;
}

CUresult Memory::Reserve(int64_t bytes, CUdeviceptr* address) {
  std::lock_guard lock(mutex_);
  if (bytes <= 0 || bytes % kGranularity != 0) return CUDA_ERROR_INVALID_VALUE;
  void* at = mmap(nullptr, static_cast<size_t>(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(at);
  reserved_[*address] = bytes;
  return CUDA_SUCCESS;
}

CUresult Memory::Free(CUdeviceptr address, int64_t bytes) {
  std::lock_guard lock(mutex_);
  auto found = reserved_.find(address);
  if (found == reserved_.end() || found->second != bytes || mappings_.contains(address)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  munmap(reinterpret_cast<void*>(address), static_cast<size_t>(bytes));
  reserved_.erase(found);
  return CUDA_SUCCESS;
}

CUresult Memory::Map(CUdeviceptr address, int64_t bytes, int64_t offset, CUmemGenericAllocationHandle handle) {
  std::lock_guard lock(mutex_);
  auto found = allocations_.find(handle);
  auto reserved = reserved_.find(address);
  if (found == allocations_.end() || reserved == reserved_.end() || bytes > reserved->second || offset != 0 ||
      bytes > found->second.bytes || mappings_.contains(address)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  struct stat info;
  if (fstat(found->second.fd, &info) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  void* host = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, found->second.fd, 0);
  if (host == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  ++found->second.mappings;
  mappings_[address] = {handle, {bytes, static_cast<std::byte*>(host), info.st_ino, 0}, false};
  return CUDA_SUCCESS;
}

CUresult Memory::SetAccess(CUdeviceptr address, int64_t bytes) {
  std::lock_guard lock(mutex_);
  auto found = mappings_.find(address);
  if (found == mappings_.end() || found->second.range.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
  found->second.is_accessible = true;
  Publish();
  return CUDA_SUCCESS;
}

CUresult Memory::Unmap(CUdeviceptr address, int64_t bytes) {
  std::lock_guard lock(mutex_);
  auto found = mappings_.find(address);
  if (found == mappings_.end() || found->second.range.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
  munmap(found->second.range.host, static_cast<size_t>(bytes));
  const CUmemGenericAllocationHandle handle = found->second.handle;
  mappings_.erase(found);
  --allocations_.at(handle).mappings;
  ForgetIfUnused(handle);
  Publish();
  return CUDA_SUCCESS;
}

CUresult Memory::AddHost(void* at, int64_t bytes) {
  const uint64_t address = reinterpret_cast<uint64_t>(at);
  auto after = host_.lower_bound(address);
  const bool meets_next = after != host_.end() && after->first - address < static_cast<uint64_t>(bytes);
  const bool meets_last = after != host_.begin() &&
                          address - std::prev(after)->first < static_cast<uint64_t>(std::prev(after)->second.bytes);
  if (bytes <= 0 || meets_next || meets_last) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  const auto [identity, offset] = IdentityOf(address);
  host_[address] = {bytes, static_cast<std::byte*>(at), identity, offset};
  Publish();
  return CUDA_SUCCESS;
}

CUresult Memory::AllocateHost(int64_t bytes, void** at) {
  std::lock_guard lock(mutex_);
  if (bytes <= 0) return CUDA_ERROR_INVALID_VALUE;
  *at = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (*at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  from_host_alloc_[reinterpret_cast<uint64_t>(*at)] = bytes;
  return AddHost(*at, bytes);
}

CUresult Memory::FreeHost(void* at) {
  std::lock_guard lock(mutex_);
  auto found = from_host_alloc_.find(reinterpret_cast<uint64_t>(at));
  if (found == from_host_alloc_.end()) return CUDA_ERROR_INVALID_VALUE;
  host_.erase(found->first);
  munmap(at, static_cast<size_t>(found->second));
  from_host_alloc_.erase(found);
  Publish();
  return CUDA_SUCCESS;
}

CUresult Memory::Register(void* at, int64_t bytes) {
  std::lock_guard lock(mutex_);
  return AddHost(at, bytes);
}

CUresult Memory::Unregister(void* at) {
  std::lock_guard lock(mutex_);
  const uint64_t address = reinterpret_cast<uint64_t>(at);
  if (from_host_alloc_.contains(address) || host_.erase(address) == 0) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  Publish();
  return CUDA_SUCCESS;
}

}  // namespace tessera::emulator
