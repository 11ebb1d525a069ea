#include "client/owner_line.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "client/kept_descriptors.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

constexpr int kFlags = O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC;

absl::Status CantOpen(const std::string& path) {
  return absl::UnavailableError(StrCat("local_cluster: can't open ", path, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<OwnerLine> OwnerLine::Make(const std::string& path) {
  OwnerLine line;
  int fds[2] = {-1, -1};
  if (path.empty()) {
    if (pipe2(fds, O_CLOEXEC) != 0) {
      return absl::ResourceExhaustedError(StrCat("local_cluster: pipe: ", std::strerror(errno)));
    }
  } else {
    if (mkfifo(path.c_str(), 0600) != 0) {
      return absl::UnavailableError(StrCat("local_cluster: can't make ", path, ": ", std::strerror(errno)));
    }
    fds[0] = open(path.c_str(), O_RDONLY | kFlags);  // before the other end, which wants a reader
    fds[1] = fds[0] < 0 ? -1 : open(path.c_str(), O_WRONLY | kFlags);
    if (fds[1] < 0) return CantOpen(path);
  }
  line.path_ = path;
  line.read_fd_ = MoveUp(fds[0]);
  line.write_fd_ = MoveUp(fds[1]);
  KeptDescriptors::Get().Add(line.write_fd_);
  return line;
}

absl::StatusOr<OwnerLine> OwnerLine::Join(const std::string& path) {
  const int write_fd = open(path.c_str(), O_WRONLY | kFlags);
  if (write_fd < 0 && (errno == ENXIO || errno == ENOENT)) {
    return absl::NotFoundError(StrCat("local_cluster: nobody has ", path, " any more"));
  }
  if (write_fd < 0) return CantOpen(path);
  OwnerLine line;
  line.path_ = path;
  line.write_fd_ = MoveUp(write_fd);
  KeptDescriptors::Get().Add(line.write_fd_);
  struct stat found {};
  if (fstat(line.write_fd_, &found) != 0 || !S_ISFIFO(found.st_mode) || found.st_uid != geteuid()) {
    line.Leave();
    return absl::PermissionDeniedError(StrCat("local_cluster: ", path, " is no FIFO of this user"));
  }
  const int read_fd = open(path.c_str(), O_RDONLY | kFlags);
  if (read_fd < 0) {
    const absl::Status status = CantOpen(path);
    line.Leave();
    return status;
  }
  line.read_fd_ = MoveUp(read_fd);
  return line;
}

void OwnerLine::End() {
  if (write_fd_ >= 0 && !path_.empty()) unlink(path_.c_str());
  Leave();
}

void OwnerLine::Leave() {
  if (write_fd_ >= 0) KeptDescriptors::Get().Close(write_fd_);
  if (read_fd_ >= 0) close(read_fd_);
  write_fd_ = read_fd_ = -1;
}

}  // namespace tessera
