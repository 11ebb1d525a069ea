#include "client/cluster.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "client/cluster_folder.h"
#include "client/ending_processes.h"
#include "client/server_program.h"
#include "client/wait.h"
#include "schemas/codec/available_memory.h"
#include "schemas/types/limits.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

extern char** environ;

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kLogTailBytes = 2000;
constexpr auto kStopTimeout = std::chrono::seconds(3);
constexpr auto kReapTimeout = std::chrono::milliseconds(20);  // of each child
constexpr int kParentFd = 3;
constexpr int kLockFd = 4;
constexpr int kTokensFd = 5;
constexpr int64_t kMaxLogBytes = 1 << 20;  // docs/limits.md: max_log_bytes
constexpr auto kLogPeriod = std::chrono::milliseconds(250);

std::string RandomHex() {
  unsigned char bytes[16];
  TESSERA_CHECK(getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes));
  std::string out;
  for (unsigned char byte : bytes) absl::StrAppend(&out, absl::Hex(byte, absl::kZeroPad2));
  return out;
}

// A descriptor above those that a child's own table begins with.
int MoveUp(int fd) {
  const int moved = fcntl(fd, F_DUPFD_CLOEXEC, 16);
  close(fd);
  return moved;
}

// The read end of a pipe that holds the text and ends behind it. It fits: a pipe has 64 KiB.
absl::StatusOr<int> PipeOf(std::string_view text) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return absl::ResourceExhaustedError("local_cluster: pipe");
  const ssize_t written = write(fds[1], text.data(), text.size());
  close(fds[1]);
  TESSERA_CHECK(written == static_cast<ssize_t>(text.size()));
  return MoveUp(fds[0]);
}

struct Child {
  std::string name;
  pid_t pid = -1;
  int log_fd = -1;  // a memfd that holds its stderr
  bool reaped = false;
  bool told = false;   // of its end
  std::string reason;  // of its end

  // Whether it runs. A child that ended is reaped.
  bool Alive() {
    if (reaped || pid < 0) return false;
    int status = 0;
    const pid_t ended = waitpid(pid, &status, WNOHANG);
    if (ended == 0) return true;
    reaped = true;
    if (ended != pid) {
      reason = "ended";  // somebody else took its status
    } else if (WIFSIGNALED(status)) {
      const char* const name = sigabbrev_np(WTERMSIG(status));
      reason = StrCat("killed by signal ", WTERMSIG(status), " (SIG", name == nullptr ? "?" : name, ")");
    } else {
      reason = StrCat("ended with status ", WEXITSTATUS(status));
    }
    return false;
  }
  // As Alive, but for a child whose memory the kernel is taking back.
  bool Runs() { return Alive() && !RunsNoMore(pid); }
  std::string LogTail() const {
    struct stat log {};
    fstat(log_fd, &log);
    const off_t size = log.st_size;
    std::string tail(static_cast<size_t>(std::min<off_t>(size, kLogTailBytes)), '\0');
    if (pread(log_fd, tail.data(), tail.size(), size - static_cast<off_t>(tail.size())) < 0) tail.clear();
    return tail;
  }
  absl::Status Check() {
    if (Alive()) return absl::OkStatus();
    return absl::UnavailableError(StrCat("local_cluster: the ", name, " ended (", reason, "): ", LogTail()));
  }
};

// Gives the host back what logs have above kMaxLogBytes, but for their second half. A thread looks at them now and
// then: children write as they like.
class LogTrimmer {
 public:
  LogTrimmer() {
    // Signals go to the program's own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { Run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~LogTrimmer() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    stop_.notify_all();
    thread_.join();
  }
  void Add(int fd) {
    const std::lock_guard<std::mutex> lock(mutex_);
    fds_.push_back(fd);
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stop_.wait_for(lock, kLogPeriod, [this] { return stopping_; })) {
      for (const int fd : fds_) Trim(fd);
    }
  }
  static void Trim(int fd) {
    struct stat log {};
    if (fstat(fd, &log) != 0 || log.st_blocks * 512 <= kMaxLogBytes) return;
    // The size stays, so that the child writes on where it was.
    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, log.st_size - kMaxLogBytes / 2);
  }

  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::vector<int> fds_;
  std::thread thread_;
};

bool IsProgram(const fs::path& path) { return access(path.c_str(), X_OK) == 0 && !fs::is_directory(path); }

// The folder of the binary or shared object that holds this code.
fs::path OwnFolder() {
  Dl_info info{};
  std::error_code error;
  if (dladdr(reinterpret_cast<const void*>(&OwnFolder), &info) != 0 && info.dli_fname != nullptr) {
    fs::path path(info.dli_fname);
    if (fs::exists(path, error) && path.has_parent_path()) return fs::absolute(path, error).parent_path();
  }
  return fs::read_symlink("/proc/self/exe", error).parent_path();
}

absl::StatusOr<std::string> FindProgram(const std::string& binary_dir, const std::string& role) {
  const std::string name = "tessera-" + role;
  std::vector<fs::path> places;
  const char* from_env = std::getenv("TESSERA_BIN_DIR");
  std::string base = !binary_dir.empty() ? binary_dir : from_env != nullptr ? from_env : "";
  if (!base.empty()) {
    places = {fs::path(base) / name, fs::path(base) / "server" / role / name};
  } else {
    fs::path folder = OwnFolder();
    // Beside this program, in the Python package beside its extension, of the prefix that has the library.
    places = {folder / name, folder / "tessera" / "bin" / name, folder.parent_path() / "bin" / name};
    for (int up = 0; up < 8 && folder.has_relative_path(); ++up, folder = folder.parent_path()) {
      places.push_back(folder / "server" / role / name);
      places.push_back(folder / "bazel-bin" / "server" / role / name);
    }
  }
  for (const fs::path& place : places) {
    if (IsProgram(place)) return place.string();
  }
  return absl::NotFoundError(StrCat("local_cluster: the program ", name, " is not at ", places.front().string(),
                                    " nor near it. The client is installed without servers, or they are not built: "
                                    "install the Python package with servers (tools/wheel --full), or build them with "
                                    "tools/build, or set TESSERA_BIN_DIR to their folder"));
}

// The write ends of the pipes that keep clusters of this process running, and the locks of their folders. A forked
// child lets go of its copies, so that a cluster ends with the process that started it.
class KeepAlivePipes {
 public:
  // Never destroyed: a fork may come after static objects are gone.
  static KeepAlivePipes& Get() {
    static KeepAlivePipes* const pipes = new KeepAlivePipes;
    return *pipes;
  }

  void Add(int fd) {
    const std::lock_guard<std::mutex> lock(mutex_);
    fds_.insert(fd);
  }
  // Nothing where a fork has closed it.
  void Close(int fd) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (fds_.erase(fd) > 0) close(fd);
  }

 private:
  KeepAlivePipes() {
    pthread_atfork([] { Get().mutex_.lock(); }, [] { Get().mutex_.unlock(); },
                   [] {
                     for (const int fd : Get().fds_) close(fd);
                     Get().fds_.clear();
                     Get().mutex_.unlock();
                   });
  }

  std::mutex mutex_;
  std::set<int> fds_;
};

// The workers of a coordinator that is started again wait so long for it. docs/limits.md: outlive
constexpr int kOutliveS = 600;

}  // namespace

struct LocalCluster::State {
  ClusterOptions options;
  pid_t owner = getpid();
  std::string folder;  // made here, removed at the end
  int lock_fd = -1;    // of the folder
  std::string socket_path;
  std::string token = RandomHex();
  std::string join_token = RandomHex();
  std::string admin_token = RandomHex();
  std::string address;
  int keep_alive_fd = -1;  // the children end when this closes
  int parent_fd = -1;      // its read end, which children inherit
  Child coordinator;
  std::vector<Child> workers;
  std::vector<int> worker_pids;
  std::string coordinator_program, worker_program;
  std::unique_ptr<LogTrimmer> logs = std::make_unique<LogTrimmer>();

  absl::Status MakeFolder();
  // `tokens`, lines of NAME=VALUE, reach the child by a descriptor; it gets none by its environment.
  absl::Status Spawn(Child* child, const std::string& program, const std::vector<std::string>& flags,
                     const std::string& tokens, int* stdout_fd);
  absl::Status SpawnAll();
  // Until it listens.
  absl::Status SpawnCoordinator(Clock::time_point deadline);
  Clock::time_point Deadline() const;
  absl::Status SpawnWorker(int index);
  std::vector<std::string> WorkerFlags(int index) const;
  absl::Status AwaitListening(int stdout_fd, Clock::time_point deadline);
  absl::Status AwaitWorkers(Clock::time_point deadline);
  absl::Status CheckChildren();
  std::string LogTail(int worker) const;
  void Stop();
  ~State() { Stop(); }
};

absl::Status LocalCluster::State::MakeFolder() {
  TESSERA_ASSIGN_OR_RETURN(const ClusterFolder made, ClusterFolder::Make());
  folder = made.path();
  lock_fd = made.lock_fd();
  KeepAlivePipes::Get().Add(lock_fd);
  socket_path = options.socket_path.empty() ? folder + "/coordinator.sock" : options.socket_path;
  address = StrCat("unix:", socket_path, "#token=", token);
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(StrCat("local_cluster: pipe: ", std::string_view(strerror(errno))));
  }
  parent_fd = MoveUp(pipe_fds[0]);
  keep_alive_fd = MoveUp(pipe_fds[1]);
  KeepAlivePipes::Get().Add(keep_alive_fd);
  return absl::OkStatus();
}

absl::Status LocalCluster::State::Spawn(Child* child, const std::string& program, const std::vector<std::string>& flags,
                                        const std::string& tokens, int* stdout_fd) {
  if (child->log_fd < 0) {
    child->log_fd = MoveUp(memfd_create(child->name.c_str(), MFD_CLOEXEC));
    logs->Add(child->log_fd);
  }
  child->reaped = child->told = false;
  int out_fds[2] = {-1, -1};
  if (stdout_fd != nullptr) {
    if (pipe2(out_fds, O_CLOEXEC) != 0) return absl::ResourceExhaustedError("local_cluster: pipe");
    out_fds[0] = MoveUp(out_fds[0]);
    out_fds[1] = MoveUp(out_fds[1]);
  }
  TESSERA_ASSIGN_OR_RETURN(const int tokens_fd, PipeOf(tokens));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, stdout_fd != nullptr ? out_fds[1] : child->log_fd, 1);
  posix_spawn_file_actions_adddup2(&actions, child->log_fd, 2);
  posix_spawn_file_actions_adddup2(&actions, parent_fd, kParentFd);
  posix_spawn_file_actions_adddup2(&actions, lock_fd, kLockFd);
  posix_spawn_file_actions_adddup2(&actions, tokens_fd, kTokensFd);
  // A group of its own: Ctrl-C is for the client.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, defaults;
  sigemptyset(&none);
  sigfillset(&defaults);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

  std::vector<std::string> arguments = {program};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  arguments.push_back(StrCat("--exit-with-parent-fd=", kParentFd));
  arguments.push_back(StrCat("--tokens=fd:", kTokensFd));
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!absl::StartsWith(*entry, "TESSERA_TOKEN=") && !absl::StartsWith(*entry, "TESSERA_JOIN_TOKEN=") &&
        !absl::StartsWith(*entry, "TESSERA_ADMIN_TOKEN=")) {
      environment.push_back(*entry);
    }
  }
  std::vector<char*> argv, envp;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  for (std::string& entry : environment) envp.push_back(entry.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  const int error = posix_spawn(&child->pid, program.c_str(), &actions, &attributes, argv.data(), envp.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(tokens_fd);
  if (out_fds[1] >= 0) close(out_fds[1]);
  if (stdout_fd != nullptr) *stdout_fd = out_fds[0];
  if (error == 0) return absl::OkStatus();
  child->pid = -1;
  return absl::UnavailableError(
      StrCat("local_cluster: ", program, " does not start: ", std::string_view(strerror(error))));
}

Clock::time_point LocalCluster::State::Deadline() const {
  return Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(options.start_timeout_s * 1e3));
}

absl::Status LocalCluster::State::SpawnCoordinator(Clock::time_point deadline) {
  std::vector<std::string> flags = {"--listen=unix:" + socket_path};
  if (!options.state_folder.empty()) flags.push_back("--state=" + options.state_folder);
  flags.insert(flags.end(), options.coordinator_flags.begin(), options.coordinator_flags.end());
  int stdout_fd = -1;
  coordinator.name = "coordinator";
  const std::string tokens =
      StrCat("TESSERA_TOKEN=", token, "\nTESSERA_JOIN_TOKEN=", join_token, "\nTESSERA_ADMIN_TOKEN=", admin_token, "\n");
  TESSERA_RETURN_IF_ERROR(Spawn(&coordinator, coordinator_program, flags, tokens, &stdout_fd));
  absl::Status listening = AwaitListening(stdout_fd, deadline);
  close(stdout_fd);
  return listening;
}

absl::Status LocalCluster::State::SpawnAll() {
  TESSERA_ASSIGN_OR_RETURN(coordinator_program, FindProgram(options.binary_dir, "coordinator"));
  TESSERA_ASSIGN_OR_RETURN(worker_program, FindProgram(options.binary_dir, "worker"));
  if (!options.token.empty()) std::tie(token, join_token, admin_token) = options.tokens();
  TESSERA_RETURN_IF_ERROR(MakeFolder());
  const Clock::time_point deadline = Deadline();
  TESSERA_RETURN_IF_ERROR(SpawnCoordinator(deadline));
  workers.resize(static_cast<size_t>(options.workers));
  worker_pids.resize(workers.size());
  for (int i = 0; i < options.workers; ++i) TESSERA_RETURN_IF_ERROR(SpawnWorker(i));
  return options.workers == 0 ? absl::OkStatus() : AwaitWorkers(deadline);
}

std::vector<std::string> LocalCluster::State::WorkerFlags(int index) const {
  std::vector<std::string> flags = {
      "--coordinator=unix:" + socket_path, StrCat("--device=", ToText(options.device)),   StrCat("--index=", index),
      "--transport=" + options.transport,  StrCat("--workers-on-host=", options.workers), "--socket-dir=" + folder};
  if (options.memory_bytes > 0) flags.push_back(StrCat("--memory=", options.memory_bytes));
  if (!options.state_folder.empty()) flags.push_back(StrCat("--outlive=", kOutliveS));
  for (const std::string& files : options.files) flags.push_back("--files=" + files);
  if (!options.decoder.empty()) flags.push_back("--decoder=" + options.decoder);
  flags.insert(flags.end(), options.worker_flags.begin(), options.worker_flags.end());
  return flags;
}

absl::Status LocalCluster::State::SpawnWorker(int index) {
  Child& worker = workers[static_cast<size_t>(index)];
  worker.name = StrCat("worker ", index);
  TESSERA_RETURN_IF_ERROR(
      Spawn(&worker, worker_program, WorkerFlags(index), StrCat("TESSERA_JOIN_TOKEN=", join_token, "\n"), nullptr));
  worker_pids[static_cast<size_t>(index)] = worker.pid;
  return absl::OkStatus();
}

absl::Status LocalCluster::State::CheckChildren() {
  TESSERA_RETURN_IF_ERROR(coordinator.Check());
  for (Child& worker : workers) TESSERA_RETURN_IF_ERROR(worker.Check());
  return absl::OkStatus();
}

// A worker that ends meanwhile is another matter: a coordinator that is started again goes on without it.
absl::Status LocalCluster::State::AwaitListening(int stdout_fd, Clock::time_point deadline) {
  WaitScope scope;
  std::string line;
  while (Clock::now() < deadline) {
    pollfd ready{stdout_fd, POLLIN, 0};
    if (poll(&ready, 1, kWaitPollMs) > 0) {
      char buffer[256];
      const ssize_t count = read(stdout_fd, buffer, sizeof(buffer));
      if (count > 0) line.append(buffer, static_cast<size_t>(count));
      if (absl::StrContains(line, "\n")) return absl::OkStatus();
      if (count == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it closed stdout: it is ending
        TESSERA_RETURN_IF_ERROR(coordinator.Check());
      }
    }
    TESSERA_RETURN_IF_ERROR(scope.Poll());
    TESSERA_RETURN_IF_ERROR(coordinator.Check());
  }
  return absl::DeadlineExceededError(StrCat("local_cluster: the coordinator does not listen after ",
                                            options.start_timeout_s, " s: ", coordinator.LogTail()));
}

absl::Status LocalCluster::State::AwaitWorkers(Clock::time_point deadline) {
  ConnectOptions connect;
  connect.address = address;
  connect.client = "local_cluster";
  TESSERA_ASSIGN_OR_RETURN(Session session, Session::Connect(connect));
  std::set<int32_t> missing;
  for (int i = 0; i < options.workers; ++i) missing.insert(i);
  while (Clock::now() < deadline) {
    TESSERA_RETURN_IF_ERROR(CheckChildren());
    TESSERA_ASSIGN_OR_RETURN(ClusterReport report, session.Status());
    for (const WorkerReport& worker : report.workers) {
      if (worker.state == WorkerState::kAlive) missing.erase(worker.index);
    }
    if (missing.empty()) return session.Close();
    WaitScope scope;
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    TESSERA_RETURN_IF_ERROR(scope.Poll());
  }
  return absl::DeadlineExceededError(StrCat("local_cluster: ", workers.size() - missing.size(), " of ", workers.size(),
                                            " workers joined in ", options.start_timeout_s, " s; worker ",
                                            *missing.begin(), ": ", LogTail(*missing.begin())));
}

std::string LocalCluster::State::LogTail(int worker) const {
  if (worker < 0) return coordinator.LogTail();
  return worker < static_cast<int>(workers.size()) ? workers[static_cast<size_t>(worker)].LogTail() : "";
}

void LocalCluster::State::Stop() {
  if (keep_alive_fd >= 0) KeepAlivePipes::Get().Close(keep_alive_fd);
  if (lock_fd >= 0) KeepAlivePipes::Get().Close(lock_fd);
  if (parent_fd >= 0) close(parent_fd);
  keep_alive_fd = lock_fd = parent_fd = -1;
  if (owner != getpid()) {  // a fork's copy ends nothing, and has no thread to join
    [[maybe_unused]] LogTrimmer* leaked = logs.release();
    return;
  }
  logs = nullptr;
  std::vector<Child*> children = {&coordinator};
  for (Child& worker : workers) children.push_back(&worker);
  const Clock::time_point deadline = Clock::now() + kStopTimeout;
  for (Child* child : children) {
    while (child->Runs() && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (child->Runs()) kill(child->pid, SIGKILL);
    // The kernel takes back what is small in no time; a user who looks finds no process.
    const Clock::time_point gone_by = Clock::now() + kReapTimeout;
    while (child->Alive() && Clock::now() < gone_by) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (child->Alive()) {
      ReapInBackground(child->pid);
      child->reaped = true;
    }
    if (child->log_fd >= 0) close(child->log_fd);
    child->log_fd = -1;
  }
  std::error_code ignored;
  if (!folder.empty()) fs::remove_all(folder, ignored);
  folder.clear();
}

namespace {

absl::Status CheckHostMemory(const ClusterOptions& options) {
  int64_t available = HostAvailableBytes();
  if (options.memory_bytes > available / options.workers &&
      AwaitReaped(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                     std::chrono::duration<double>(options.start_timeout_s)))) {
    available = HostAvailableBytes();  // with what a stopped cluster gave back
  }
  if (options.memory_bytes <= available / options.workers) return absl::OkStatus();
  return absl::ResourceExhaustedError(StrCat("local_cluster: ", options.workers, " workers of ", options.memory_bytes,
                                             " bytes each, the host has ", available, " bytes available"));
}

}  // namespace

absl::StatusOr<LocalCluster> LocalCluster::Start(const ClusterOptions& options) {
  if (options.has_workers_elsewhere ? options.workers != 0 : options.workers < 1 || options.workers > 1024) {
    return absl::InvalidArgumentError(
        StrCat("local_cluster: workers is ", options.workers, ", it must be in [1, 1024]"));
  }
  if (options.memory_bytes < 0) return absl::InvalidArgumentError("local_cluster: memory is less than 0 bytes");
  const std::set<std::string> transports = {"shm", "ucx", "nccl", "shm+tls"};  // that one with certificates as flags
  if (!transports.contains(options.transport)) {
    return absl::InvalidArgumentError(
        StrCat("local_cluster: transport is \"", Printable(options.transport, 40), "\", it must be shm, ucx or nccl"));
  }
  auto state = std::make_unique<State>();
  state->options = options;
  if (options.device == DeviceKind::kCpu && options.workers > 0) {
    if (options.memory_bytes == 0) state->options.memory_bytes = kDefaultArenaBytes;
    TESSERA_RETURN_IF_ERROR(CheckHostMemory(state->options));
  }
  TESSERA_RETURN_IF_ERROR(state->SpawnAll());
  return LocalCluster(std::move(state));
}

LocalCluster::LocalCluster(std::unique_ptr<State> state) : state_(std::move(state)) {}
LocalCluster::LocalCluster(LocalCluster&&) noexcept = default;
LocalCluster& LocalCluster::operator=(LocalCluster&&) noexcept = default;
LocalCluster::~LocalCluster() = default;

absl::StatusOr<Session> LocalCluster::Connect() const {
  ConnectOptions options;
  options.address = state_->address;
  return Session::Connect(options);
}

std::string LocalCluster::Program(const std::string& role) const {
  return role == "worker" ? state_->worker_program : state_->coordinator_program;
}
const std::string& LocalCluster::address() const { return state_->address; }
std::string LocalCluster::admin_address() const {
  return StrCat("unix:", state_->socket_path, "#token=", state_->admin_token);
}
int LocalCluster::coordinator_pid() const { return state_->coordinator.pid; }
const std::vector<int>& LocalCluster::worker_pids() const { return state_->worker_pids; }

std::string LocalCluster::LogTail(int worker) const { return state_->LogTail(worker); }

void LocalCluster::Stop() { state_->Stop(); }

std::vector<LocalCluster::Ended> LocalCluster::TakeEnded() {
  std::vector<Ended> ended;
  const auto look = [&ended](int worker, Child& child) {
    if (child.told || child.Alive()) return;
    child.told = true;
    ended.push_back({worker, child.reason});
  };
  look(-1, state_->coordinator);
  for (size_t i = 0; i < state_->workers.size(); ++i) look(static_cast<int>(i), state_->workers[i]);
  return ended;
}

absl::Status LocalCluster::StartWorker(int worker) {
  if (worker < 0 || worker >= state_->options.workers) {
    return absl::InvalidArgumentError(
        StrCat("local_cluster: worker ", worker, " is none of 0 to ", state_->options.workers - 1));
  }
  if (state_->workers[static_cast<size_t>(worker)].Alive()) {
    return absl::FailedPreconditionError(StrCat("local_cluster: worker ", worker, " runs"));
  }
  return state_->SpawnWorker(worker);
}

absl::Status LocalCluster::StartCoordinator() {
  if (state_->options.state_folder.empty()) {
    return absl::FailedPreconditionError("local_cluster: the coordinator has no state folder to go on with");
  }
  if (state_->coordinator.Alive()) return absl::FailedPreconditionError("local_cluster: the coordinator runs");
  return state_->SpawnCoordinator(state_->Deadline());
}

std::string LocalCluster::JoinCommand(int worker) const {
  std::string command = StrCat("TESSERA_JOIN_TOKEN=", state_->join_token, " ", state_->worker_program);
  for (const std::string& flag : state_->WorkerFlags(worker)) absl::StrAppend(&command, " ", flag);
  return command;
}

absl::StatusOr<std::string> FindServerProgram(const std::string& role) { return FindProgram("", role); }

}  // namespace tessera
