#pragma once

// Relaunch: how this process was started, so that it can become its program's newest version in place (execve): with
// the same number, arguments, environment and inherited descriptors. Whoever supervises it sees nothing of that.
//
//   const Relaunch relaunch(argc, argv);     // first thing in main: before tokens are hidden and variables taken away
//   relaunch.Check({"--inspect", folder})    // a child of the program as it is on the disk now; null while it runs
//   relaunch.Become(tokens)                  // returns only where it can't

#include <sys/types.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

class Relaunch {
 public:
  Relaunch(int argc, char** argv);

  // The path by which the process was started, absolute; a link in it is not resolved, as it may lead elsewhere now.
  const std::string& program() const { return program_; }

  // A run of the program as it is on the disk now, without standard output; what it says on standard error is kept.
  struct Run {
    pid_t pid = -1;
    int said_fd = -1;
  };
  absl::StatusOr<Run> Start(const std::vector<std::string>& arguments) const;
  // nullopt while it runs. FailedPrecondition, with its last words, where it ended with another status than 0.
  static std::optional<absl::Status> EndOf(Run& run);

  // `tokens`: lines of NAME=VALUE, for a descriptor that was read empty (--tokens fd:N). Descriptors that this process
  // has opened itself are closed. Unavailable: the program can't be run.
  absl::Status Become(const std::string& tokens) const;

 private:
  std::string program_;
  std::vector<std::string> arguments_;
  std::vector<std::string> environment_;
  struct Inherited {
    int fd;
    int copy;  // which nobody closes
  };
  std::vector<Inherited> inherited_;
  sigset_t mask_ = {};
};

}  // namespace tessera
