#include "server/coordinator/rpc/mapped_log.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// docs/limits.md: log_reserve_bytes
constexpr uint64_t kReserveBytes = uint64_t{4} << 20;
constexpr uint64_t kZeroBytes = uint64_t{64} << 10;  // the same: log_zero_bytes
constexpr size_t kWordBytes = 8;

uint64_t PageBytes() { return static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

absl::StatusOr<std::unique_ptr<MappedLog>> MappedLog::Open(const std::string& path, uint64_t bytes) {
  kj::AutoCloseFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC, 0600));
  const int why = errno;
  const bool is_open = fd.get() >= 0;
  std::unique_ptr<MappedLog> log(new MappedLog(kj::mv(fd), path, bytes));
  if (!is_open) return log->Failed("open", why);
  // Bytes that are cut off read as zeros from then on.
  if (ftruncate(log->fd_, static_cast<off_t>(bytes)) != 0) return log->Failed("write", errno);
  return log;
}

MappedLog::~MappedLog() noexcept {
  if (window_ == nullptr) return;
  munmap(window_, window_end_ - window_begin_);
  if (ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) return;  // a reader takes the zeros for what they are
}

absl::Status MappedLog::Write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) {
  size_t size = 0;
  for (const auto& piece : pieces) size += piece.size();
  if (bytes_ + size > window_end_) {
    if (absl::Status status = MapRoomFor(size); !status.ok()) return status;
  }
  if (bytes_ + size > zeros_end_) {
    if (absl::Status status = WriteZeros(bytes_ + size); !status.ok()) return status;
  }
  std::byte* const begin = window_ + (bytes_ - window_begin_);
  uint64_t first = 0;
  size_t at = 0;
  for (const auto& piece : pieces) {
    const size_t held_back = at < kWordBytes ? std::min(kWordBytes - at, piece.size()) : 0;
    std::memcpy(reinterpret_cast<std::byte*>(&first) + at, piece.begin(), held_back);
    std::memcpy(begin + at + held_back, piece.begin() + held_back, piece.size() - held_back);
    at += piece.size();
  }
  __atomic_store_n(reinterpret_cast<uint64_t*>(begin), first, __ATOMIC_RELEASE);
  bytes_ += size;
  return absl::OkStatus();
}

absl::Status MappedLog::MapRoomFor(size_t size) {
  const uint64_t page = PageBytes();
  const uint64_t begin = bytes_ / page * page;
  const uint64_t end = (bytes_ + std::max<uint64_t>(size, kReserveBytes) + page - 1) / page * page;
  // Blocks first: a page without one would end the process where the disk is full.
  if (const int why = posix_fallocate(fd_, static_cast<off_t>(begin), static_cast<off_t>(end - begin)); why != 0) {
    return Failed("write", why);
  }
  void* const window = mmap(nullptr, end - begin, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, static_cast<off_t>(begin));
  if (window == MAP_FAILED) return Failed("map", errno);
  if (window_ != nullptr) munmap(window_, window_end_ - window_begin_);
  window_ = static_cast<std::byte*>(window);
  window_begin_ = begin;
  window_end_ = end;
  return absl::OkStatus();
}

absl::Status MappedLog::WriteZeros(uint64_t end) {
  static const std::byte zeros[kZeroBytes] = {};
  const uint64_t page = PageBytes();
  zeros_end_ = std::max(zeros_end_, (bytes_ + page - 1) / page * page);  // a page that messages end in is in memory
  while (zeros_end_ < end) {
    const uint64_t size = std::min(kZeroBytes, window_end_ - zeros_end_);
    const ssize_t written = pwrite(fd_, zeros, size, static_cast<off_t>(zeros_end_));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Failed("write", written < 0 ? errno : ENOSPC);
    const uint64_t whole = static_cast<uint64_t>(written) / page * page;
    if (whole == 0) return Failed("write", ENOSPC);
    // A kernel before 5.14 refuses, and each page costs a fault, then.
    (void)madvise(window_ + (zeros_end_ - window_begin_), whole, MADV_POPULATE_WRITE);
    zeros_end_ += whole;
  }
  return absl::OkStatus();
}

absl::Status MappedLog::Failed(const char* what, int why) const {
  return absl::UnavailableError(StrCat("journal: can't ", what, " ", path_, ": ", std::strerror(why)));
}

}  // namespace tessera
