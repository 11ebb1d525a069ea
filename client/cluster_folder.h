#pragma once

// ClusterFolder: where the sockets of a local cluster are. It is locked (flock, shared) for as long as one process of
// the cluster lives, who all have its descriptor: a folder that can be locked alone is nobody's, and the next one that
// is made takes it away.

#include <string>

#include "absl/status/statusor.h"

namespace tessera {

class ClusterFolder {
 public:
  // A fresh one, in TMPDIR or /tmp. Unavailable that says why not.
  static absl::StatusOr<ClusterFolder> Make();

  // That of a cluster some of whose processes live. NotFound where it is not there any more.
  static absl::StatusOr<ClusterFolder> Join(const std::string& path);

  const std::string& path() const { return path_; }
  // To be inherited by all processes of the cluster. Closed by whoever made the folder.
  int lock_fd() const { return lock_fd_; }

 private:
  ClusterFolder(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}
  std::string path_;
  int lock_fd_;
};

}  // namespace tessera
