#include "server/worker/attached_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "schemas/types/str_cat.h"

namespace tessera {

AttachedMemory::Limits AttachedMemory::HostLimits() {
  Limits limits;
  int64_t max_map_count = 0;
  if (std::ifstream("/proc/sys/vm/max_map_count") >> max_map_count && max_map_count > 0) {
    limits.count = std::min(limits.count, max_map_count / 4);
  }
  limits.bytes = kMaxAttachedHostMemories * sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  return limits;
}

absl::Status AttachedMemory::Share::Take(int64_t bytes) {
  const std::lock_guard lock(book_->mutex);
  const int64_t left = book_->limits.count - book_->count;
  if (count_ + 1 > left) {
    return absl::ResourceExhaustedError(StrCat("attach: this connection has attached ", count_, " memories, and ", left,
                                               " of ", book_->limits.count, " are left for all (max_attached)"));
  }
  const int64_t left_bytes = book_->limits.bytes - book_->bytes;
  if (bytes > left_bytes - bytes_) {
    return absl::ResourceExhaustedError(StrCat("attach: ", bytes, " bytes beside ", bytes_, " of this connection, and ",
                                               left_bytes, " of ", book_->limits.bytes,
                                               " are left for all (max_attached_bytes)"));
  }
  ++count_;
  ++book_->count;
  bytes_ += bytes;
  book_->bytes += bytes;
  return absl::OkStatus();
}

void AttachedMemory::Share::Give(int64_t bytes) {
  const std::lock_guard lock(book_->mutex);
  --count_;
  --book_->count;
  bytes_ -= bytes;
  book_->bytes -= bytes;
}

}  // namespace tessera
