#include "server/worker/rpc/client_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "schemas/host/memory_file.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

absl::Status Prefixed(const absl::Status& status) {
  return status.ok() ? status : absl::Status(status.code(), StrCat("attach: ", StdView(status.message())));
}

}  // namespace

absl::StatusOr<std::shared_ptr<ClientMemory>> ClientMemory::Map(int fd, TransferDirection direction,
                                                                std::shared_ptr<AttachedMemory::Share> share) {
  TESSERA_RETURN_IF_ERROR(Prefixed(CheckMemoryFile(fd, F_SEAL_SHRINK)));
  struct stat info = {};
  if (fstat(fd, &info) != 0 || info.st_size < 0) return absl::InvalidArgumentError("attach: the memory has no size");
  // A page that isn't there is made when it is touched; on a host without memory that is a SIGBUS here.
  if (static_cast<int64_t>(info.st_blocks) * 512 < info.st_size) {
    return absl::InvalidArgumentError("attach: the memory has pages that are not reserved (posix_fallocate)");
  }
  TESSERA_RETURN_IF_ERROR(share->Take(info.st_size));
  std::shared_ptr<ClientMemory> memory(new ClientMemory(static_cast<size_t>(info.st_size), std::move(share)));
  if (memory->bytes_ == 0) return memory;
  const int protection = direction == TransferDirection::kUpload ? PROT_READ : PROT_READ | PROT_WRITE;
  void* base = mmap(nullptr, memory->bytes_, protection, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(StrCat("attach: can't map ", memory->bytes_, " bytes: ", std::strerror(errno)));
  }
  memory->base_ = static_cast<std::byte*>(base);
  return memory;
}

ClientMemory::~ClientMemory() {
  if (base_ != nullptr) munmap(base_, bytes_);
  share_->Give(static_cast<int64_t>(bytes_));
}

}  // namespace tessera
