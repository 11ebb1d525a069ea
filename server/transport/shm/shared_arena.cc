// SharedArena over a sealed memfd. Pages are reserved when it is made, so that a host that is short of
// memory refuses then; the seals promise a peer that its mapping never loses pages.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"

#include "schemas/codec/available_memory.h"
#include "schemas/codec/memory_file.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/device/counters.h"
#include "server/transport/transport.h"

namespace tessera {
namespace {

constexpr unsigned kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
static_assert(kCounterPageBytes == 4096);

class OwnedFd {
 public:
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  ~OwnedFd() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

absl::Status SystemError(const char* what, int error) {
  const std::string message = StrCat("arena: ", what, ": ", std::strerror(error));
  if (error == ENOMEM || error == ENOSPC) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

absl::StatusOr<std::byte*> MapWhole(int fd, int64_t bytes) {
  void* base = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return SystemError("mmap", errno);
  // Fewer page faults and TLB misses where the host allows it for shared memory; not needed.
  madvise(base, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return static_cast<std::byte*>(base);
}

}  // namespace

absl::StatusOr<SharedArena> SharedArena::Create(int64_t arena_bytes) {
  if (arena_bytes <= 0 || arena_bytes > kMaxArenaBytes) {
    return absl::InvalidArgumentError(
        StrCat("arena: ", arena_bytes, " bytes; 1 to ", kMaxArenaBytes, " are allowed (max_arena_bytes)"));
  }
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t total = (arena_bytes + kCounterPageBytes + page - 1) / page * page;
  const int64_t available = HostAvailableBytes();
  auto no_memory = [&](std::string_view why) {
    return absl::ResourceExhaustedError(
        StrCat("arena: ", total, " bytes wanted, ", available, " free on the host", why));
  };
  if (total > available) return no_memory("");
  OwnedFd fd(memfd_create("tessera-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) return SystemError("memfd_create", errno);
  if (fallocate(fd.get(), 0, 0, total) != 0) {
    const int error = errno;
    if (error == ENOSPC || error == ENOMEM) return no_memory(" (fallocate)");
    return SystemError("fallocate", error);
  }
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return SystemError("sealing", errno);
  TESSERA_ASSIGN_OR_RETURN(std::byte * base, MapWhole(fd.get(), total));
  return SharedArena(fd.Release(), base, total - kCounterPageBytes);
}

absl::StatusOr<SharedArena> SharedArena::Map(int raw_fd) {
  OwnedFd fd(raw_fd);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return absl::InvalidArgumentError("arena: the descriptor is not open");
  const int64_t total = info.st_size;
  if (!S_ISREG(info.st_mode) || total <= kCounterPageBytes || total > kMaxArenaBytes + 2 * kCounterPageBytes ||
      total % sysconf(_SC_PAGESIZE) != 0) {
    return absl::InvalidArgumentError(StrCat("arena: a descriptor of ", total, " bytes is not an arena"));
  }
  if (absl::Status status = CheckMemoryFile(fd.get(), kSeals); !status.ok()) {
    return absl::InvalidArgumentError(StrCat("arena: ", StdView(status.message())));
  }
  TESSERA_ASSIGN_OR_RETURN(std::byte * base, MapWhole(fd.get(), total));
  return SharedArena(-1, base, total - kCounterPageBytes);  // the mapping is enough, and a worker has many peers
}

SharedArena::SharedArena(SharedArena&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      base_(std::exchange(other.base_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

SharedArena& SharedArena::operator=(SharedArena&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedArena::~SharedArena() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(bytes_ + kCounterPageBytes));
  if (fd_ >= 0) close(fd_);
}

CounterPage* SharedArena::counters() const { return reinterpret_cast<CounterPage*>(base_); }

}  // namespace tessera
