#pragma once

// ProcessGuard: ends process groups when this process is killed. It is a forked child that waits at a pipe. The kernel
// closes the pipe when this process ends, however it ends; the guard then kills (SIGKILL) every group that it was told
// of and not told to forget.
//
// The guard also removes a folder then, so a killed run leaves no files.
//
// PR_SET_PDEATHSIG alone doesn't reach the children of a child; the guard reaches all that stay in its group.
//
// Law: make it before the first thread, since it goes on after a fork without exec. Used from one thread.

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tessera {

class ProcessGuard {
 public:
  // `folder`: to remove at the end, with all that is in it; "": none. ResourceExhausted when the host gives no pipe or
  // process.
  static absl::StatusOr<std::unique_ptr<ProcessGuard>> Make(const std::string& folder);
  // Ends the guard, which then kills the groups that it still knows; waits for it.
  ~ProcessGuard();
  ProcessGuard(const ProcessGuard&) = delete;
  ProcessGuard& operator=(const ProcessGuard&) = delete;

  void Watch(pid_t group);
  // For a group that has no process any more: its number may become somebody else's.
  void Forget(pid_t group);

 private:
  ProcessGuard(pid_t pid, int fd) : pid_(pid), fd_(fd) {}
  void Tell(pid_t group);
  pid_t pid_;
  int fd_;
};

}  // namespace tessera
