// SharedArena over sealed memfds. A host that is short of memory refuses when one is made; the pages themselves come by
// Reserve, or with their first use. The seals promise a peer that its mapping never gets shorter.

#include "server/device/shared_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "schemas/host/available_memory.h"
#include "schemas/host/memory_file.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr unsigned kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

absl::Status SystemError(const char* what, int error) {
  const std::string message = StrCat("arena: ", what, ": ", std::strerror(error));
  if (error == ENOMEM || error == ENOSPC) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

absl::StatusOr<std::byte*> MapWhole(int fd, int64_t bytes) {
  void* base = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return SystemError("mmap", errno);
  return static_cast<std::byte*>(base);
}

absl::Status NoMemory(int64_t bytes, std::string_view why) {
  return absl::ResourceExhaustedError(
      StrCat("arena: ", bytes, " bytes wanted, ", HostAvailableBytes(), " free on the host", why));
}

// A memfd that neither shrinks nor grows; ResourceExhausted where the host has not so many pages now.
absl::StatusOr<OwnedFd> MakeSealed(const char* name, int64_t bytes) {
  if (bytes > HostAvailableBytes()) return NoMemory(bytes, "");
  OwnedFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) return SystemError("memfd_create", errno);
  if (ftruncate(fd.get(), bytes) != 0) return SystemError("ftruncate", errno);
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return SystemError("sealing", errno);
  return fd;
}

// The size of a sealed memfd; InvalidArgument for any other file.
absl::StatusOr<int64_t> SizeOfSealed(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return absl::InvalidArgumentError("arena: the descriptor is not open");
  const int64_t bytes = info.st_size;
  if (!S_ISREG(info.st_mode) || bytes <= 0 || bytes > kMaxArenaBytes + kCounterPageBytes ||
      bytes % sysconf(_SC_PAGESIZE) != 0) {
    return absl::InvalidArgumentError(StrCat("arena: a descriptor of ", bytes, " bytes is not an arena"));
  }
  if (absl::Status status = CheckMemoryFile(fd, kSeals); !status.ok()) {
    return absl::InvalidArgumentError(StrCat("arena: ", StdView(status.message())));
  }
  return bytes;
}

absl::StatusOr<CounterPage*> MapCounters(int fd) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t bytes, SizeOfSealed(fd));
  if (bytes != kCounterPageBytes) {
    return absl::InvalidArgumentError(StrCat("arena: counters of ", bytes, " bytes; they have ", kCounterPageBytes));
  }
  TESSERA_ASSIGN_OR_RETURN(std::byte * base, MapWhole(fd, kCounterPageBytes));
  return reinterpret_cast<CounterPage*>(base);
}

class HostMemory final : public DeviceMemory {
 public:
  // Without a descriptor the mapping is enough: a worker has many peers.
  static absl::StatusOr<std::unique_ptr<DeviceMemory>> Make(int mapped_fd, int64_t bytes, OwnedFd kept) {
    TESSERA_ASSIGN_OR_RETURN(std::byte * base, MapWhole(mapped_fd, bytes));
    // Fewer page faults and TLB misses where the host allows it for shared memory; not needed.
    madvise(base, static_cast<size_t>(bytes), MADV_HUGEPAGE);
    return std::unique_ptr<DeviceMemory>(new HostMemory(base, bytes, std::move(kept)));
  }
  ~HostMemory() override { munmap(data(), static_cast<size_t>(bytes())); }

 private:
  using DeviceMemory::DeviceMemory;
};

}  // namespace

OwnedFd::~OwnedFd() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<SharedArena> SharedArena::Create(int64_t arena_bytes) {
  if (arena_bytes <= 0 || arena_bytes > kMaxArenaBytes) {
    return absl::InvalidArgumentError(
        StrCat("arena: ", arena_bytes, " bytes; 1 to ", kMaxArenaBytes, " are allowed (max_arena_bytes)"));
  }
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t bytes = (arena_bytes + page - 1) / page * page;
  TESSERA_ASSIGN_OR_RETURN(OwnedFd fd, MakeSealed("tessera-arena", bytes));
  const int mapped_fd = fd.get();
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory, HostMemory::Make(mapped_fd, bytes, std::move(fd)));
  return Own(std::move(memory));
}

absl::StatusOr<SharedArena> SharedArena::Map(ArenaDescriptors descriptors) {
  TESSERA_ASSIGN_OR_RETURN(const int64_t bytes, SizeOfSealed(descriptors.memory.get()));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory,
                           HostMemory::Make(descriptors.memory.get(), bytes, OwnedFd()));
  return OfPeer(std::move(descriptors.counters), std::move(memory));
}

absl::StatusOr<SharedArena> SharedArena::Own(std::unique_ptr<DeviceMemory> memory) {
  TESSERA_ASSIGN_OR_RETURN(OwnedFd fd, MakeSealed("tessera-counters", kCounterPageBytes));
  TESSERA_ASSIGN_OR_RETURN(CounterPage * counters, MapCounters(fd.get()));
  return SharedArena(std::move(fd), counters, std::move(memory));
}

absl::StatusOr<SharedArena> SharedArena::OfPeer(OwnedFd counters_fd, std::unique_ptr<DeviceMemory> memory) {
  TESSERA_ASSIGN_OR_RETURN(CounterPage * counters, MapCounters(counters_fd.get()));
  return SharedArena(OwnedFd(), counters, std::move(memory));
}

absl::Status SharedArena::Reserve(int64_t offset, int64_t bytes) const {
  if (fallocate(memory_->fd(), 0, offset, bytes) == 0) return absl::OkStatus();
  const int error = errno;
  if (error == ENOSPC || error == ENOMEM) return NoMemory(this->bytes(), StrCat("; ", offset, " bytes were reserved"));
  return SystemError("fallocate", error);
}

SharedArena::SharedArena(SharedArena&& other) noexcept
    : counters_fd_(std::move(other.counters_fd_)),
      counters_(std::exchange(other.counters_, nullptr)),
      memory_(std::move(other.memory_)) {}

SharedArena& SharedArena::operator=(SharedArena&& other) noexcept {
  std::swap(counters_fd_, other.counters_fd_);
  std::swap(counters_, other.counters_);
  std::swap(memory_, other.memory_);
  return *this;
}

SharedArena::~SharedArena() {
  if (counters_ != nullptr) munmap(counters_, kCounterPageBytes);
}

ArenaDescriptors SharedArena::CopyDescriptors() const {
  const auto copy = [](int fd) { return OwnedFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); };
  return {copy(counters_fd_.get()), copy(memory_->fd()), memory_->bytes()};
}

}  // namespace tessera
