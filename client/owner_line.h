#pragma once

// OwnerLine: the pipe by which a cluster's processes see that the process that started them has ended. They have its
// read end, and the owner the write end.
//
// With a name it is a FIFO: when its owner is killed, the next owner opens it, and the processes go on. End() takes the
// name away first, and then the processes end. Without a name they end whenever the owner does.

#include <string>

#include "absl/status/statusor.h"

namespace tessera {

class OwnerLine {
 public:
  OwnerLine() = default;
  // A fresh one; `path` empty: without a name. ResourceExhausted, or Unavailable, that says why not.
  static absl::StatusOr<OwnerLine> Make(const std::string& path);
  // That of an owner that was killed. NotFound where its processes have been told to end, or nobody has it any more.
  static absl::StatusOr<OwnerLine> Join(const std::string& path);

  // For processes to inherit; -1 where there is no line.
  int read_fd() const { return read_fd_; }
  // The processes end. Twice is fine, as it is of Leave.
  void End();
  // Lets go of the line as if this process had been killed.
  void Leave();

 private:
  std::string path_;
  int read_fd_ = -1;
  int write_fd_ = -1;
};

}  // namespace tessera
