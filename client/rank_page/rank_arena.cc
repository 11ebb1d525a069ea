#include "client/rank_page/rank_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "schemas/host/memory_file.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int64_t kGranuleBytes = 4096;
constexpr int64_t kReserveBytes = int64_t{2} << 20;  // at once
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

constexpr int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

}  // namespace

absl::StatusOr<int> RankArena::MakeFile(int64_t ranks) {
  const int fd = memfd_create("tessera-rank-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return absl::ResourceExhaustedError(StrCat("ranks' arena: memfd_create: ", std::strerror(errno)));
  if (ftruncate(fd, ranks * kPartBytes) != 0 || fcntl(fd, F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0) {
    close(fd);
    return absl::ResourceExhaustedError(StrCat("ranks' arena: ", std::strerror(errno)));
  }
  return fd;
}

absl::StatusOr<std::shared_ptr<RankArena>> RankArena::Open(int fd, int64_t rank, int64_t ranks) {
  struct stat info;
  if (fstat(fd, &info) != 0 || info.st_size != ranks * kPartBytes) {
    return absl::InvalidArgumentError("ranks' arena: the file is none of so many ranks");
  }
  TESSERA_RETURN_IF_ERROR(CheckMemoryFile(fd, kSeals));
  const int own_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (own_fd < 0) return absl::ResourceExhaustedError(StrCat("ranks' arena: ", std::strerror(errno)));
  std::shared_ptr<RankArena> arena(new RankArena(own_fd, rank, ranks, nullptr));
  arena->parts_[static_cast<size_t>(rank)] = arena->Map(rank);
  if (arena->parts_[static_cast<size_t>(rank)] == nullptr) {
    return absl::ResourceExhaustedError(StrCat("ranks' arena: mmap: ", std::strerror(errno)));
  }
  return arena;
}

RankArena::RankArena(int fd, int64_t rank, int64_t ranks, std::byte* own)
    : fd_(fd), rank_(rank), parts_(static_cast<size_t>(ranks), own) {
  free_.emplace(0, kPartBytes);
}

RankArena::~RankArena() {
  for (std::byte* part : parts_) {
    if (part != nullptr) munmap(part, kPartBytes);
  }
  close(fd_);
}

std::byte* RankArena::Map(int64_t rank) const {
  void* part = mmap(nullptr, kPartBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, rank * kPartBytes);
  if (part == MAP_FAILED) return nullptr;
  static_cast<void>(madvise(part, kPartBytes, MADV_HUGEPAGE));  // where the kernel gives them to shared memory
  return static_cast<std::byte*>(part);
}

std::byte* RankArena::Allocate(int64_t bytes) {
  if (bytes < 0 || bytes > kPartBytes) return nullptr;
  const int64_t wanted = RoundUp(bytes == 0 ? 1 : bytes, kGranuleBytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [offset, length] = *range;
    if (length < wanted) continue;
    if (offset + wanted > reserved_) {
      // Without memory a write would end the process.
      const int64_t end = std::min(RoundUp(offset + wanted, kReserveBytes), kPartBytes);
      if (posix_fallocate(fd_, rank_ * kPartBytes + reserved_, end - reserved_) != 0) return nullptr;
      reserved_ = end;
    }
    free_.erase(range);
    if (length > wanted) free_.emplace(offset + wanted, length - wanted);
    taken_.emplace(offset, wanted);
    return parts_[static_cast<size_t>(rank_)] + offset;
  }
  return nullptr;
}

void RankArena::Free(std::byte* data) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto taken = taken_.find(data - parts_[static_cast<size_t>(rank_)]);
  if (taken == taken_.end()) return;
  auto [offset, length] = *taken;
  taken_.erase(taken);
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + length) {
    length += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += length;
      return;
    }
  }
  free_.emplace(offset, length);
}

int64_t RankArena::OffsetOf(const void* data, int64_t bytes) const {
  const std::byte* const own = parts_[static_cast<size_t>(rank_)];
  const auto* const begin = static_cast<const std::byte*>(data);
  if (begin == nullptr || begin < own || begin > own + kPartBytes) return kNowhere;
  const int64_t offset = begin - own;
  return bytes <= kPartBytes - offset ? offset : kNowhere;
}

std::byte* RankArena::At(int64_t rank, int64_t offset, int64_t bytes) {
  if (offset < 0 || bytes < 0 || bytes > kPartBytes || offset > kPartBytes - bytes) return nullptr;
  std::byte*& part = parts_[static_cast<size_t>(rank)];
  if (part == nullptr) part = Map(rank);
  return part == nullptr ? nullptr : part + offset;
}

}  // namespace tessera
