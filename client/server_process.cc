#include "client/server_process.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "absl/strings/match.h"
#include "client/ending_processes.h"
#include "client/kept_descriptors.h"
#include "client/pool_record.h"
#include "schemas/host/process_end.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

extern char** environ;

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kLogTailBytes = 2000;
constexpr int64_t kMaxLogBytes = 1 << 20;  // docs/limits.md: max_log_bytes
constexpr auto kLogPeriod = std::chrono::milliseconds(250);
constexpr int kOwnerFd = 3;
constexpr int kLockFd = 4;
constexpr int kTokensFd = 5;

void Trim(int fd) {
  struct stat log {};
  if (fstat(fd, &log) != 0 || log.st_blocks * 512 <= kMaxLogBytes) return;
  // The size stays, so that the process writes on where it was.
  fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, log.st_size - kMaxLogBytes / 2);
}

struct Pipe {
  int read_fd = -1, write_fd = -1;

  static absl::StatusOr<Pipe> Make() {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) {
      return absl::ResourceExhaustedError(StrCat("local_cluster: pipe: ", std::strerror(errno)));
    }
    return Pipe{MoveUp(fds[0]), MoveUp(fds[1])};
  }
};

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> EnvironmentWithoutTokens() {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!absl::StartsWith(*entry, "TESSERA_TOKEN=") && !absl::StartsWith(*entry, "TESSERA_JOIN_TOKEN=") &&
        !absl::StartsWith(*entry, "TESSERA_ADMIN_TOKEN=") && !absl::StartsWith(*entry, "TESSERA_VIEWER_TOKEN=")) {
      environment.push_back(*entry);
    }
  }
  return environment;
}

// With these descriptors as its 1 to 5. errno, or 0.
int Spawn(const ServerStart& start, int stdout_fd, int stderr_fd, int tokens_fd, pid_t* pid) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, stdout_fd, 1);
  posix_spawn_file_actions_adddup2(&actions, stderr_fd, 2);
  posix_spawn_file_actions_adddup2(&actions, start.owner_fd, kOwnerFd);
  posix_spawn_file_actions_adddup2(&actions, start.lock_fd, kLockFd);
  posix_spawn_file_actions_adddup2(&actions, tokens_fd, kTokensFd);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, defaults;
  sigemptyset(&none);
  sigfillset(&defaults);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::vector<std::string> arguments = ArgumentsOf(start), environment = EnvironmentWithoutTokens();
  arguments.insert(arguments.begin(), start.program);
  const int error = posix_spawn(pid, start.program.c_str(), &actions, &attributes, Pointers(arguments).data(),
                                Pointers(environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

LogTrimmer::LogTrimmer() {
  // Signals go to the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { Run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

LogTrimmer::~LogTrimmer() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  thread_.join();
}

void LogTrimmer::Add(int fd) {
  const std::lock_guard<std::mutex> lock(mutex_);
  fds_.push_back(fd);
}

void LogTrimmer::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_.wait_for(lock, kLogPeriod, [this] { return stopping_; })) {
    for (const int fd : fds_) Trim(fd);
  }
}

std::vector<std::string> ArgumentsOf(const ServerStart& start) {
  std::vector<std::string> arguments = start.flags;
  arguments.push_back(StrCat("--exit-with-parent-fd=", kOwnerFd));
  if (start.outlive_s > 0) arguments.push_back(StrCat("--outlive-parent=", start.outlive_s));
  arguments.push_back(StrCat("--tokens=fd:", kTokensFd));
  return arguments;
}

absl::Status ServerProcess::Start(const ServerStart& start, LogTrimmer& logs, int* stdout_fd,
                                  const std::function<absl::Status()>& admit) {
  if (log_fd < 0) {
    log_fd = MoveUp(memfd_create(name.c_str(), MFD_CLOEXEC));
    logs.Add(log_fd);
  }
  if (process_fd >= 0) close(process_fd);
  process_fd = -1;
  is_reaped = is_told = false;
  TESSERA_ASSIGN_OR_RETURN(const Pipe tokens, Pipe::Make());
  KeptDescriptors::Get().Add(tokens.write_fd);
  Pipe out;
  if (stdout_fd != nullptr) {
    TESSERA_ASSIGN_OR_RETURN(out, Pipe::Make());
  }
  const int error = Spawn(start, stdout_fd == nullptr ? log_fd : out.write_fd, log_fd, tokens.read_fd, &pid);
  if (out.write_fd >= 0) close(out.write_fd);
  if (stdout_fd != nullptr) *stdout_fd = out.read_fd;
  absl::Status status;
  if (error != 0) {
    pid = -1;
    status = absl::UnavailableError(
        StrCat("local_cluster: ", start.program, " does not start: ", std::string_view(strerror(error))));
  } else {
    started = StartOf(pid);
    status = admit();
  }
  if (status.ok()) {
    // They fit: a pipe has 64 KiB, and this process can read it, too, should the child have ended.
    const ssize_t written = write(tokens.write_fd, start.tokens.data(), start.tokens.size());
    TESSERA_CHECK(written == static_cast<ssize_t>(start.tokens.size()));
  }
  KeptDescriptors::Get().Close(tokens.write_fd);
  close(tokens.read_fd);
  return status;
}

void ServerProcess::TakeOver(pid_t former, uint64_t former_started, int former_fd, LogTrimmer& logs) {
  pid = former;
  started = former_started;
  process_fd = former_fd;
  is_reaped = is_told = false;
  // Its stderr is a memfd of the former owner's, by whose name in /proc it is opened again.
  const std::string path = StrCat("/proc/", former, "/fd/2");
  char target[64] = "";
  if (readlink(path.c_str(), target, sizeof(target) - 1) < 0 || !absl::StartsWith(target, "/memfd:")) return;
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  log_fd = MoveUp(fd);
  logs.Add(log_fd);
}

bool ServerProcess::Alive() {
  if (is_reaped || pid < 0) return false;
  if (is_former()) {
    pollfd ended{process_fd, POLLIN, 0};
    if (poll(&ended, 1, 0) == 0) return true;
    is_reaped = true;
    reason = "ended; a former owner had started it, and its status is not known";
    return false;
  }
  int status = 0;
  const pid_t ended = waitpid(pid, &status, WNOHANG);
  if (ended == 0) return true;
  is_reaped = true;
  if (ended != pid) {
    reason = "ended";  // somebody else took its status
  } else if (WIFSIGNALED(status)) {
    const char* const signal_name = sigabbrev_np(WTERMSIG(status));
    reason = StrCat("killed by signal ", WTERMSIG(status), " (SIG", signal_name == nullptr ? "?" : signal_name, ")");
  } else {
    reason = StrCat("ended with status ", WEXITSTATUS(status));
  }
  return false;
}

bool ServerProcess::Runs() { return Alive() && !RunsNoMore(pid); }

void ServerProcess::Kill() const {
  if (is_former()) {
    syscall(SYS_pidfd_send_signal, process_fd, SIGKILL, nullptr, 0);
  } else {
    kill(pid, SIGKILL);
  }
}

void ServerProcess::Reap(int milliseconds) {
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(milliseconds);
  while (Alive() && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  if (Alive() && !is_former()) ReapInBackground(pid);
  is_reaped = true;
  if (process_fd >= 0) close(process_fd);
  process_fd = -1;
}

void ServerProcess::CloseLog() {
  if (log_fd >= 0) close(log_fd);
  log_fd = -1;
}

std::string ServerProcess::LogTail() const {
  if (log_fd < 0) return "";
  struct stat log {};
  fstat(log_fd, &log);
  const off_t size = log.st_size;
  std::string tail(static_cast<size_t>(std::min<off_t>(size, kLogTailBytes)), '\0');
  if (pread(log_fd, tail.data(), tail.size(), size - static_cast<off_t>(tail.size())) < 0) tail.clear();
  return tail;
}

absl::Status ServerProcess::Check() {
  if (Alive()) return absl::OkStatus();
  return absl::UnavailableError(StrCat("local_cluster: the ", name, " ended (", reason, "): ", LogTail()));
}

}  // namespace tessera
