#include "client/cli/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "client/cli/rank_failure.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int kPollMs = 100;
constexpr size_t kTailBytes = 16 * 1024;
// Processes that a rank leaves running get this long to end by themselves, since some clean up after it (Python's
// resource tracker). docs/limits.md: leftover_grace
constexpr std::chrono::seconds kLeftoverGrace(2);
// A process with a control stream ends its own ranks within the grace; this is its time beside that.
constexpr std::chrono::seconds kControlGrace(5);

sigset_t RunSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&signals, number);
  return signals;
}

std::string_view ErrorText(int error) { return strerror(error); }

// 0 or errno.
int WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(fd, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {
      pollfd room{fd, POLLOUT, 0};
      poll(&room, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

void Close(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

struct ChildFds {
  int in, out, err;
  int report;  // gets errno where exec fails; exec closes it
};

// In the child after a fork, beside other threads' locks: system calls alone.
[[noreturn]] void BecomeProcess(const ChildFds& fds, pid_t parent, char** argv, char** envp) {
  // A group of its own, and no session of its own: the kernel shares cores out by session (autogroup), and a rank that
  // yields while it waits would yield to nobody of another one: 2.5 ms in place of 0.4 for a small all_reduce.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before the kernel was told
  dup2(fds.in, 0);
  dup2(fds.out, 1);
  dup2(fds.err, 2);
  for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execvpe(argv[0], argv, envp);
  const int error = errno;
  [[maybe_unused]] const ssize_t told = write(fds.report, &error, sizeof(error));
  _exit(127);
}

absl::Status MakePipe(int (&fds)[2]) {
  if (pipe2(fds, O_CLOEXEC) == 0) return absl::OkStatus();
  return absl::UnavailableError(StrCat("run: pipe: ", ErrorText(errno)));
}

}  // namespace

void BlockRunSignals() {
  const sigset_t signals = RunSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGCHLD, SIG_DFL);  // ignored, children would be reaped by the kernel
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Supervisor::Supervisor(SupervisorOptions options, ProcessGuard& guard)
    : options_(std::move(options)), guard_(guard), control_fd_(options_.control_fd) {
  const sigset_t signals = RunSignals();
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

Supervisor::~Supervisor() {
  KillGroups();
  for (Process& process : processes_) {
    if (process.is_running) waitpid(process.pid, nullptr, 0);
    if (process.has_group) guard_.Forget(process.pid);
    Close(process.control_fd);
  }
  for (Stream& stream : streams_) CloseStream(stream);
  Close(signal_fd_);
}

absl::Status Supervisor::Start(const std::vector<ProcessSpec>& specs) {
  // Streams point into them.
  processes_.resize(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) TESSERA_RETURN_IF_ERROR(StartOne(specs[i], processes_[i]));
  return absl::OkStatus();
}

absl::Status Supervisor::OpenStream(const ProcessSpec& spec, int terminal_fd, Process& process, int* write_fd) {
  int fds[2];
  TESSERA_RETURN_IF_ERROR(MakePipe(fds));
  *write_fd = fds[1];
  fcntl(fds[0], F_SETFL, O_NONBLOCK);
  Stream& stream = streams_.emplace_back();
  stream.fd = fds[0];
  if (spec.is_shown) stream.terminal_fd = terminal_fd;
  stream.lines = LineOutput(spec.prefix);
  stream.is_plain = spec.prefix.empty() && processes_.size() == 1;
  if (terminal_fd == STDERR_FILENO) stream.tail = &process.stderr_tail;
  if (spec.log_folder.empty()) return absl::OkStatus();
  std::error_code error;
  fs::create_directories(spec.log_folder, error);
  const std::string path = StrCat(spec.log_folder, terminal_fd == STDERR_FILENO ? "/stderr.log" : "/stdout.log");
  stream.log_fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (stream.log_fd >= 0) return absl::OkStatus();
  return absl::UnavailableError(StrCat("run: the log ", path, " can't be written: ", ErrorText(errno)));
}

absl::Status Supervisor::StartOne(const ProcessSpec& spec, Process& process) {
  process.name = spec.name;
  ChildFds child{-1, -1, -1, -1};
  int report[2] = {-1, -1};
  absl::Status status = OpenStream(spec, STDOUT_FILENO, process, &child.out);
  if (status.ok()) status = OpenStream(spec, STDERR_FILENO, process, &child.err);
  if (status.ok()) status = MakePipe(report);
  child.report = report[1];
  if (spec.control.has_value()) {
    int fds[2] = {-1, -1};
    if (status.ok()) status = MakePipe(fds);
    child.in = fds[0];
    process.control_fd = fds[1];
  } else {
    child.in = open("/dev/null", O_RDONLY | O_CLOEXEC);
  }
  if (status.ok()) {
    const std::vector<char*> argv = Pointers(spec.arguments), envp = Pointers(spec.environment);
    const pid_t self = getpid();
    process.pid = fork();
    if (process.pid == 0) BecomeProcess(child, self, const_cast<char**>(argv.data()), const_cast<char**>(envp.data()));
    if (process.pid < 0) status = absl::UnavailableError(StrCat("run: fork: ", ErrorText(errno)));
  }
  for (int* fd : {&child.in, &child.out, &child.err, &child.report}) Close(*fd);
  if (status.ok()) {
    process.is_running = process.has_group = true;
    guard_.Watch(process.pid);
    int error = 0;
    ssize_t count;
    do count = read(report[0], &error, sizeof(error));
    while (count < 0 && errno == EINTR);
    if (count == sizeof(error)) {
      status = absl::UnavailableError(
          StrCat("run: ", Printable(spec.arguments[0], 500), " does not start: ", ErrorText(error)));
    }
  }
  Close(report[0]);
  if (status.ok() && spec.control.has_value()) WriteAll(process.control_fd, *spec.control);
  return status;
}

AttemptEnd Supervisor::Run() {
  do {
    Poll();
    TakeEnds();
    KillLate();
    if (options_.tick) options_.tick();
  } while (!IsOver());
  for (Stream& stream : streams_) {
    ReadStream(stream);
    CloseStream(stream);
  }
  for (FailedProcess& failure : end_.failures) failure.stderr_tail = processes_[failure.index].stderr_tail;
  return end_;
}

// Waits for output, a signal or a tenth of a second.
void Supervisor::Poll() {
  std::vector<pollfd> waited = {{signal_fd_, POLLIN, 0}, {control_fd_, POLLIN, 0}};
  for (const Stream& stream : streams_) waited.push_back({stream.fd, POLLIN, 0});
  if (poll(waited.data(), waited.size(), kPollMs) <= 0) return;
  if (waited[0].revents != 0) TakeSignals();
  if (waited[1].revents != 0) TakeControl();
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (waited[i + 2].revents != 0) ReadStream(streams_[i]);
  }
}

void Supervisor::TakeSignals() {
  signalfd_siginfo info;
  while (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGCHLD) continue;
    if (end_.signal == 0) {
      end_.signal = number;
      EndAll(number, std::chrono::duration<double>(options_.grace_s));
    } else {
      KillGroups();  // asked twice
    }
  }
}

void Supervisor::TakeControl() {
  unsigned char number = 0;
  const ssize_t count = read(control_fd_, &number, 1);
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (count != 1) control_fd_ = -1;
  if (end_.signal != 0) return;
  end_.signal = count == 1 && (number == SIGINT || number == SIGHUP) ? number : SIGTERM;
  EndAll(end_.signal, std::chrono::duration<double>(options_.grace_s));
}

// Takes the bytes that the pipe has.
void Supervisor::ReadStream(Stream& stream) {
  char buffer[16 * 1024];
  while (stream.fd >= 0) {
    const ssize_t count = read(stream.fd, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) return CloseStream(stream);
    const std::string_view bytes(buffer, static_cast<size_t>(count));
    if (stream.log_fd >= 0 && WriteAll(stream.log_fd, bytes) != 0) {
      std::fprintf(stderr, "tessera run: a log can't be written any more: %s\n", strerror(errno));
      Close(stream.log_fd);
    }
    if (stream.tail != nullptr) {
      *stream.tail += bytes;
      if (stream.tail->size() > 2 * kTailBytes) stream.tail->erase(0, stream.tail->size() - kTailBytes);
    }
    Show(stream.terminal_fd, stream.is_plain ? std::string(bytes) : stream.lines.Add(bytes));
    // The others' output has its turn.
    if (count < static_cast<ssize_t>(sizeof(buffer)) || !all_have_ended_) return;
  }
}

void Supervisor::CloseStream(Stream& stream) {
  Show(stream.terminal_fd, stream.lines.Finish());
  Close(stream.fd);
  Close(stream.log_fd);
  stream.terminal_fd = -1;
}

// A terminal that is gone ends the run, as SIGPIPE would.
void Supervisor::Show(int fd, const std::string& text) {
  if (fd < 0 || text.empty() || WriteAll(fd, text) != EPIPE || end_.signal != 0) return;
  end_.signal = SIGPIPE;
  EndAll(SIGTERM, std::chrono::duration<double>(options_.grace_s));
}

void Supervisor::TakeEnds() {
  bool any_runs = false;
  for (size_t i = 0; i < processes_.size(); ++i) {
    Process& process = processes_[i];
    int status = 0;
    if (process.is_running && waitpid(process.pid, &status, WNOHANG) == process.pid) TakeEnd(i, status);
    if (process.is_running) {
      any_runs = true;
      continue;
    }
    if (!process.has_group) continue;
    // Orphans of its group are this process's children now.
    while (waitpid(-process.pid, nullptr, WNOHANG) > 0) {
    }
    if (kill(-process.pid, 0) == 0) continue;
    process.has_group = false;
    guard_.Forget(process.pid);
  }
  if (any_runs || all_have_ended_) return;
  all_have_ended_ = true;
  kill_at_ = Clock::now() + kLeftoverGrace;
}

void Supervisor::TakeEnd(size_t index, int wait_status) {
  Process& process = processes_[index];
  process.is_running = false;
  Close(process.control_fd);
  if (wait_status == 0 || (is_ending_ && end_.failures.empty())) return;
  end_.failures.push_back({index, process.pid, wait_status, std::chrono::system_clock::now(), ""});
  if (is_ending_) return;
  // The whole story follows when the others have ended, which may take them the grace.
  if (std::any_of(processes_.begin(), processes_.end(), [](const Process& other) { return other.is_running; })) {
    Show(STDERR_FILENO,
         StrCat("tessera run: ", process.name, " failed (", EndText(wait_status), "); the others are ended\n"));
  }
  EndAll(SIGTERM, std::chrono::duration<double>(options_.grace_s));
}

void Supervisor::EndAll(int signal, std::chrono::duration<double> grace) {
  is_ending_ = true;
  for (Process& process : processes_) {
    if (!process.is_running) continue;
    if (process.control_fd < 0) {
      kill(process.pid, signal);
      continue;
    }
    const char byte = static_cast<char>(signal);
    WriteAll(process.control_fd, std::string_view(&byte, 1));
    Close(process.control_fd);
    grace = std::max(grace, std::chrono::duration<double>(options_.grace_s) + kControlGrace);
  }
  kill_at_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(grace);
}

void Supervisor::KillLate() {
  if (kill_at_.has_value() && Clock::now() >= *kill_at_) KillGroups();
}

void Supervisor::KillGroups() {
  for (const Process& process : processes_) {
    if (process.has_group) kill(-process.pid, SIGKILL);
  }
}

// Whether no process is left, in no group; or one that even SIGKILL does not end (the kernel's own wait) stays away.
bool Supervisor::IsOver() {
  if (!all_have_ended_) return false;
  const bool none_left =
      std::none_of(processes_.begin(), processes_.end(), [](const Process& process) { return process.has_group; });
  return none_left || Clock::now() >= *kill_at_ + kLeftoverGrace;
}

}  // namespace tessera
