#include "client/cluster_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "schemas/host/socket_folder.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "tessera-cluster-";
constexpr size_t kMaxParentChars = 59;  // so that the names of sockets fit

std::string Parent() {
  const char* const temporary = std::getenv("TMPDIR");
  // The address is for any process, in whatever folder it runs.
  std::error_code unknown;  // what the relative path starts from: then there is none here either
  const std::string parent = std::filesystem::absolute(temporary == nullptr ? "" : temporary, unknown).native();
  return !parent.empty() && parent.size() <= kMaxParentChars ? parent : "/tmp";
}

int OpenFolder(const std::string& path) { return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); }

// Folders of clusters all of whose processes were killed.
void Sweep(const std::string& parent) {
  std::error_code error;
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end; entry.increment(error)) {
    if (!absl::StartsWith(entry->path().filename().string(), absl::string_view(kPrefix.data(), kPrefix.size())))
      continue;
    const int fd = OpenFolder(entry->path().string());
    if (fd < 0) continue;
    struct stat info {};
    if (fstat(fd, &info) == 0 && info.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0) {
      RemoveDeadSockets(entry->path().string());
    }
    close(fd);
  }
}

// Whether the descriptor is still what the path names: somebody's sweep may have come between.
bool IsThere(int fd, const std::string& path) {
  struct stat opened {
  }, named{};
  return fstat(fd, &opened) == 0 && stat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

}  // namespace

absl::StatusOr<ClusterFolder> ClusterFolder::Make() {
  const std::string parent = Parent();
  Sweep(parent);
  for (;;) {
    std::string path = StrCat(parent, "/", kPrefix, "XXXXXX");
    if (mkdtemp(path.data()) == nullptr) {
      return absl::UnavailableError(
          StrCat("local_cluster: no folder at ", path, ": ", std::string_view(strerror(errno))));
    }
    const int opened = OpenFolder(path);
    if (opened < 0) {
      if (errno == ENOENT) continue;
      return absl::ResourceExhaustedError(
          StrCat("local_cluster: can't open ", path, ": ", std::string_view(strerror(errno))));
    }
    const int fd = fcntl(opened, F_DUPFD_CLOEXEC, 16);  // above those that a child's own table begins with
    close(opened);
    if (fd >= 0 && flock(fd, LOCK_SH) == 0 && IsThere(fd, path)) return ClusterFolder(std::move(path), fd);
    if (fd < 0) return absl::ResourceExhaustedError("local_cluster: no descriptor is left");
    close(fd);
  }
}

absl::StatusOr<ClusterFolder> ClusterFolder::Join(const std::string& path) {
  const int opened = OpenFolder(path);
  const int fd = opened < 0 ? -1 : fcntl(opened, F_DUPFD_CLOEXEC, 16);
  if (opened >= 0) close(opened);
  struct stat info {};
  const bool is_own = fd >= 0 && fstat(fd, &info) == 0 && info.st_uid == geteuid();
  if (is_own && flock(fd, LOCK_SH | LOCK_NB) == 0 && IsThere(fd, path)) return ClusterFolder(path, fd);
  if (fd >= 0) close(fd);
  return absl::NotFoundError(
      StrCat("local_cluster: ", path, ", the folder of the pool's sockets, is not there any more"));
}

}  // namespace tessera
