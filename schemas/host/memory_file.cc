#include "schemas/host/memory_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "schemas/types/str_cat.h"

namespace tessera {

absl::Status CheckMemoryFile(int fd, unsigned seals) {
  struct statfs system = {};
  if (fstatfs(fd, &system) != 0) return absl::InvalidArgumentError("the memory's descriptor is not open");
  const auto type = static_cast<uint64_t>(system.f_type);
  const int64_t page = sysconf(_SC_PAGESIZE);
  if (type != TMPFS_MAGIC || system.f_bsize != page) {
    return absl::InvalidArgumentError(StrCat("the memory is ", type == HUGETLBFS_MAGIC ? "of huge pages (hugetlb)" : "",
                                             type == HUGETLBFS_MAGIC ? "" : "no memfd", ", in pages of ",
                                             system.f_bsize, " bytes; wanted is a memfd with pages of ", page));
  }
  const int has = fcntl(fd, F_GET_SEALS);
  if (has < 0 || (static_cast<unsigned>(has) & seals) != seals) {
    return absl::InvalidArgumentError(StrCat("the memory's seals are ", has, ", wanted ", seals, " (F_SEAL_SHRINK is ",
                                             F_SEAL_SHRINK, ", F_SEAL_GROW ", F_SEAL_GROW, ")"));
  }
  return absl::OkStatus();
}

}  // namespace tessera
