#include "client/cli/process_guard.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <set>

#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

// The guard's whole life: a positive number is a group to watch, a negative one a group to forget.
[[noreturn]] void Guard(int fd, const std::string& folder) {
  // A group of its own: the signals of a terminal, and a kill of the caller's group, don't reach it.
  setpgid(0, 0);
  prctl(PR_SET_NAME, "run-guard");  // whoever kills by the program's name leaves the guard to its work
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  std::set<pid_t> groups;
  for (;;) {
    pid_t told = 0;  // a pipe hands over what is shorter than PIPE_BUF whole
    const ssize_t count = read(fd, &told, sizeof(told));
    if (count < 0 && errno == EINTR) continue;
    if (count != sizeof(told)) break;
    if (told > 0) {
      groups.insert(told);
    } else {
      groups.erase(-told);
    }
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  std::error_code ignored;
  if (!folder.empty()) std::filesystem::remove_all(folder, ignored);
  _exit(0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGuard>> ProcessGuard::Make(const std::string& folder) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(StrCat("run: pipe: ", std::string_view(strerror(errno))));
  }
  const pid_t pid = fork();
  if (pid == 0) {
    close(fds[1]);
    Guard(fds[0], folder);
  }
  const int error = errno;
  close(fds[0]);
  if (pid < 0) {
    close(fds[1]);
    return absl::ResourceExhaustedError(StrCat("run: fork: ", std::string_view(strerror(error))));
  }
  setpgid(pid, pid);
  return std::unique_ptr<ProcessGuard>(new ProcessGuard(pid, fds[1]));
}

ProcessGuard::~ProcessGuard() {
  close(fd_);
  waitpid(pid_, nullptr, 0);
}

void ProcessGuard::Tell(pid_t group) {
  while (write(fd_, &group, sizeof(group)) < 0 && errno == EINTR) {
  }
}

void ProcessGuard::Watch(pid_t group) { Tell(group); }

void ProcessGuard::Forget(pid_t group) { Tell(-group); }

}  // namespace tessera
