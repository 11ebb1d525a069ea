#include "server/process/relaunch.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "schemas/types/str_cat.h"

extern char** environ;

namespace tessera {
namespace {

constexpr int kFirstCopy = 64;
constexpr size_t kShownBytes = 1000;

std::vector<char*> PointersOf(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<int> OpenDescriptors() {
  std::vector<int> open;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    int fd = -1;
    if (absl::SimpleAtoi(entry.path().filename().string(), &fd) && fd > STDERR_FILENO) open.push_back(fd);
  }
  return open;
}

std::string PathOf(const std::string& name) {
  std::error_code failed;
  if (name.find('/') != std::string::npos) return std::filesystem::absolute(name, failed).string();
  return std::filesystem::read_symlink("/proc/self/exe", failed).string();
}

// N of "--tokens fd:N" and "--tokens=fd:N"; -1 where there is none.
int TokensDescriptor(const std::vector<std::string>& arguments) {
  constexpr std::string_view kFlag = "--tokens", kDescriptor = "fd:";
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string_view value = arguments[i];
    if (value == kFlag && i + 1 < arguments.size()) {
      value = arguments[i + 1];
    } else if (value.substr(0, kFlag.size() + 1) == StrCat(kFlag, "=")) {
      value.remove_prefix(kFlag.size() + 1);
    }
    int fd = -1;
    if (value.substr(0, kDescriptor.size()) != kDescriptor) continue;
    if (absl::SimpleAtoi(std::string(value.substr(kDescriptor.size())), &fd)) return fd;
  }
  return -1;
}

}  // namespace

Relaunch::Relaunch(int argc, char** argv) : program_(PathOf(argc > 0 ? argv[0] : "")), arguments_(argv, argv + argc) {
  for (char** variable = environ; *variable != nullptr; ++variable) environment_.emplace_back(*variable);
  pthread_sigmask(SIG_SETMASK, nullptr, &mask_);
  for (const int fd : OpenDescriptors()) {
    const int flags = fcntl(fd, F_GETFD);
    if (flags < 0 || (flags & FD_CLOEXEC) != 0) continue;
    inherited_.push_back({fd, fcntl(fd, F_DUPFD_CLOEXEC, kFirstCopy)});
  }
}

absl::StatusOr<Relaunch::Run> Relaunch::Start(const std::vector<std::string>& arguments) const {
  std::vector<std::string> all = {program_};
  all.insert(all.end(), arguments.begin(), arguments.end());
  Run run;
  run.said_fd = memfd_create("said", MFD_CLOEXEC);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, run.said_fd, STDERR_FILENO);
  for (const Inherited& one : inherited_) posix_spawn_file_actions_addclose(&actions, one.fd);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setsigmask(&attributes, &mask_);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  const int failed = posix_spawn(&run.pid, program_.c_str(), &actions, &attributes, PointersOf(all).data(),
                                 PointersOf(environment_).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (failed == 0) return run;
  close(run.said_fd);
  return absl::FailedPreconditionError(StrCat(program_, " can't be run: ", std::strerror(failed)));
}

std::optional<absl::Status> Relaunch::EndOf(Run& run) {
  int ended = 0;
  const pid_t found = waitpid(run.pid, &ended, WNOHANG);
  if (found == 0) return std::nullopt;
  struct stat said {};
  fstat(run.said_fd, &said);
  std::string words(std::min(static_cast<size_t>(said.st_size), kShownBytes), '\0');
  if (pread(run.said_fd, words.data(), words.size(), said.st_size - static_cast<off_t>(words.size())) < 0) words = "";
  close(run.said_fd);
  if (found == run.pid && WIFEXITED(ended) && WEXITSTATUS(ended) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(words.empty() ? StrCat("it ended with wait status ", ended)
                                                     : Printable(words, kShownBytes));
}

absl::Status Relaunch::Become(const std::string& tokens) const {
  std::vector<std::pair<int, int>> given;  // descriptors, and of what they are copies
  for (const Inherited& one : inherited_) given.emplace_back(one.fd, one.copy);
  if (const int fd = TokensDescriptor(arguments_); fd >= 0) {
    const int file = memfd_create("tokens", MFD_CLOEXEC);
    if (file < 0 || write(file, tokens.data(), tokens.size()) != static_cast<ssize_t>(tokens.size()) ||
        lseek(file, 0, SEEK_SET) != 0) {
      return absl::UnavailableError(StrCat("the tokens can't be handed on: ", std::strerror(errno)));
    }
    given.emplace_back(fd, fcntl(file, F_DUPFD_CLOEXEC, kFirstCopy));
  }
  for (const int fd : OpenDescriptors()) fcntl(fd, F_SETFD, FD_CLOEXEC);
  for (const auto& [fd, copy] : given) dup2(copy, fd);
  pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  execve(program_.c_str(), PointersOf(arguments_).data(), PointersOf(environment_).data());
  return absl::UnavailableError(StrCat(program_, " can't be run: ", std::strerror(errno)));
}

}  // namespace tessera
