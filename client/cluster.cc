#include "client/cluster.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "client/cluster_folder.h"
#include "client/ending_processes.h"
#include "client/kept_descriptors.h"
#include "client/owner_line.h"
#include "client/pool_record.h"
#include "client/server_process.h"
#include "client/server_program.h"
#include "client/wait.h"
#include "schemas/host/available_memory.h"
#include "schemas/host/random_hex.h"
#include "schemas/types/limits.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/transports.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr auto kStopTimeout = std::chrono::seconds(3);
constexpr int kReapMs = 20;  // of each process
constexpr auto kLook = std::chrono::milliseconds(3);

constexpr char kLineName[] = "/owner";  // of the FIFO in the cluster's folder
constexpr size_t kShownFlagChars = 200;

// One that has been told to end, or is ending; it is killed where that takes longer.
absl::Status AwaitEnd(const FormerProcess& former) {
  constexpr int kPatienceMs = std::chrono::milliseconds(kStopTimeout).count();
  pollfd ended{former.process_fd, POLLIN, 0};
  if (poll(&ended, 1, kPatienceMs) > 0) return absl::OkStatus();
  syscall(SYS_pidfd_send_signal, former.process_fd, SIGKILL, nullptr, 0);
  if (poll(&ended, 1, kPatienceMs) > 0) return absl::OkStatus();
  return absl::UnavailableError(StrCat("local_cluster: process ", former.process.pid,
                                       ", of a pool that was told to end, does not end, not by SIGKILL either"));
}

}  // namespace

struct LocalCluster::State {
  ClusterOptions options;
  pid_t owner = getpid();
  std::string folder;  // removed at the end
  int lock_fd = -1;    // of the folder
  std::string socket_path;
  std::string token = RandomHex(16);
  std::string join_token = RandomHex(16);
  std::string admin_token = RandomHex(16);
  std::string address;
  OwnerLine line;
  PoolRecord record;        // of a pool with a state folder
  bool is_formers = false;  // the processes are those of a killed owner, and live
  std::string taken_over;
  ServerProcess coordinator;
  std::vector<ServerProcess> workers;
  std::vector<int> worker_pids;
  std::string coordinator_program, worker_program;
  std::unique_ptr<LogTrimmer> logs = std::make_unique<LogTrimmer>();

  bool has_record() const { return !options.state_folder.empty(); }
  // Makes the folder of the sockets, or goes on with that of a killed owner.
  absl::Status UseFolder(const ClusterFolder& made);
  absl::Status MakeFolder();
  // Goes on with the processes that a killed owner has left.
  absl::Status TakeFormer();
  absl::Status TakeOver(std::vector<FormerProcess>& living);
  absl::Status CheckFormer(const PoolProcess& process) const;
  absl::Status Record() const;
  ServerStart CoordinatorStart() const;
  ServerStart WorkerStart(int index) const;
  std::vector<std::string> WorkerFlags(int index) const;
  absl::Status CheckHostMemory() const;
  absl::Status SpawnAll();
  // Until it listens.
  absl::Status SpawnCoordinator(Clock::time_point deadline);
  Clock::time_point Deadline() const;
  absl::Status SpawnWorker(int index);
  absl::Status AwaitListening(int stdout_fd, Clock::time_point deadline);
  // Asks a coordinator that a killed owner has left. OK also where it ends meanwhile.
  absl::Status AwaitFormerCoordinator(Clock::time_point deadline);
  absl::Status AwaitWorkers(Clock::time_point deadline);
  absl::Status CheckProcesses(Clock::time_point deadline);
  std::string LogTail(int worker) const;
  void Stop();
  // Lets go of the processes as if this one had been killed.
  void Leave();
  ~State() { Stop(); }
};

absl::Status LocalCluster::State::UseFolder(const ClusterFolder& used) {
  folder = used.path();
  lock_fd = used.lock_fd();
  KeptDescriptors::Get().Add(lock_fd);
  socket_path = options.socket_path.empty() ? folder + "/coordinator.sock" : options.socket_path;
  address = StrCat("unix:", socket_path, "#token=", token);
  return absl::OkStatus();
}

absl::Status LocalCluster::State::MakeFolder() {
  TESSERA_ASSIGN_OR_RETURN(const ClusterFolder made, ClusterFolder::Make());
  TESSERA_RETURN_IF_ERROR(UseFolder(made));
  TESSERA_ASSIGN_OR_RETURN(line, OwnerLine::Make(has_record() ? folder + kLineName : ""));
  return absl::OkStatus();
}

absl::Status LocalCluster::State::TakeFormer() {
  std::vector<FormerProcess> living = record.Living();
  const absl::Status taken = living.empty() ? absl::OkStatus() : TakeOver(living);
  for (const FormerProcess& former : living) {
    if (former.process_fd >= 0) close(former.process_fd);
  }
  return taken;
}

absl::Status LocalCluster::State::TakeOver(std::vector<FormerProcess>& living) {
  is_formers = true;
  const std::string& place = record.former().folder;
  absl::StatusOr<OwnerLine> joined = OwnerLine::Join(place + kLineName);
  if (absl::IsNotFound(joined.status())) {  // they have been told to end
    for (const FormerProcess& former : living) TESSERA_RETURN_IF_ERROR(AwaitEnd(former));
    is_formers = false;
    return absl::OkStatus();
  }
  TESSERA_RETURN_IF_ERROR(joined.status());
  line = *std::move(joined);
  TESSERA_ASSIGN_OR_RETURN(const ClusterFolder used, ClusterFolder::Join(place));
  TESSERA_RETURN_IF_ERROR(UseFolder(used));
  for (const FormerProcess& former : living) TESSERA_RETURN_IF_ERROR(CheckFormer(former.process));
  int taken_workers = 0;
  for (FormerProcess& former : living) {
    const PoolProcess& process = former.process;
    if (CommandLineOf(process.pid).empty()) {  // it is ending
      TESSERA_RETURN_IF_ERROR(AwaitEnd(former));
      continue;
    }
    ServerProcess& taken = process.worker < 0 ? coordinator : workers[static_cast<size_t>(process.worker)];
    taken.TakeOver(process.pid, process.started, std::exchange(former.process_fd, -1), *logs);
    if (process.worker < 0) continue;
    worker_pids[static_cast<size_t>(process.worker)] = process.pid;
    ++taken_workers;
  }
  taken_over = StrCat(coordinator.pid < 0 ? "no coordinator" : StrCat("the coordinator, process ", coordinator.pid),
                      ", and ", taken_workers, " of ", options.workers, " workers");
  return absl::OkStatus();
}

// A process has the flags of its start for its whole life.
absl::Status LocalCluster::State::CheckFormer(const PoolProcess& process) const {
  const std::string who =
      StrCat(process.worker < 0 ? std::string("the coordinator") : StrCat("worker ", process.worker), ", process ",
             process.pid, ", which a tessera up that was killed has left");
  const std::string_view advice =
      "; start with the flags of before to go on with that pool, and end it by Ctrl-C then if another one is wanted";
  if (process.worker >= options.workers) {
    return absl::FailedPreconditionError(
        StrCat("local_cluster: ", who, ", is one more than the ", options.workers, " workers asked for", advice));
  }
  const std::vector<std::string> runs = CommandLineOf(process.pid);
  const std::vector<std::string> asked =
      ArgumentsOf(process.worker < 0 ? CoordinatorStart() : WorkerStart(process.worker));
  if (runs.empty() || runs == asked) return absl::OkStatus();
  const auto [at, other] = std::mismatch(runs.begin(), runs.end(), asked.begin(), asked.end());
  return absl::FailedPreconditionError(
      StrCat("local_cluster: ", who, ", runs with ", at == runs.end() ? "nothing" : Printable(*at, kShownFlagChars),
             ", and ", other == asked.end() ? "nothing" : Printable(*other, kShownFlagChars), " is asked for", advice));
}

absl::Status LocalCluster::State::Record() const {
  if (!has_record()) return absl::OkStatus();
  RecordedPool pool{folder, {}};
  if (coordinator.pid >= 0) pool.processes.push_back({-1, coordinator.pid, coordinator.started});
  for (size_t i = 0; i < workers.size(); ++i) {
    if (workers[i].pid >= 0) pool.processes.push_back({static_cast<int>(i), workers[i].pid, workers[i].started});
  }
  return record.Write(pool);
}

Clock::time_point LocalCluster::State::Deadline() const {
  return Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(options.start_timeout_s * 1e3));
}

ServerStart LocalCluster::State::CoordinatorStart() const {
  std::vector<std::string> flags = {"--listen=unix:" + socket_path};
  if (has_record()) flags.push_back("--state=" + options.state_folder);
  flags.insert(flags.end(), options.coordinator_flags.begin(), options.coordinator_flags.end());
  return {
      coordinator_program,
      std::move(flags),
      StrCat("TESSERA_TOKEN=", token, "\nTESSERA_JOIN_TOKEN=", join_token, "\nTESSERA_ADMIN_TOKEN=", admin_token, "\n"),
      line.read_fd(),
      lock_fd,
      has_record() ? options.outlive_s : 0};
}

ServerStart LocalCluster::State::WorkerStart(int index) const {
  return {worker_program,
          WorkerFlags(index),
          StrCat("TESSERA_JOIN_TOKEN=", join_token, "\n"),
          line.read_fd(),
          lock_fd,
          has_record() ? options.outlive_s : 0};
}

absl::Status LocalCluster::State::SpawnCoordinator(Clock::time_point deadline) {
  int stdout_fd = -1;
  TESSERA_RETURN_IF_ERROR(coordinator.Start(CoordinatorStart(), *logs, &stdout_fd, [this] { return Record(); }));
  absl::Status listening = AwaitListening(stdout_fd, deadline);
  close(stdout_fd);
  return listening;
}

absl::Status LocalCluster::State::CheckHostMemory() const {
  const int64_t missing =
      std::count_if(workers.begin(), workers.end(), [](const ServerProcess& worker) { return worker.pid < 0; });
  if (options.device != DeviceKind::kCpu || missing == 0) return absl::OkStatus();
  int64_t available = HostAvailableBytes();
  if (options.memory_bytes > available / missing &&
      AwaitReaped(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                     std::chrono::duration<double>(options.start_timeout_s)))) {
    available = HostAvailableBytes();  // with what a stopped cluster gave back
  }
  if (options.memory_bytes <= available / missing) return absl::OkStatus();
  return absl::ResourceExhaustedError(StrCat("local_cluster: ", missing, " workers of ", options.memory_bytes,
                                             " bytes each, the host has ", available, " bytes available"));
}

absl::Status LocalCluster::State::SpawnAll() {
  TESSERA_ASSIGN_OR_RETURN(coordinator_program, FindServerProgram("coordinator", options.binary_dir));
  TESSERA_ASSIGN_OR_RETURN(worker_program, FindServerProgram("worker", options.binary_dir));
  if (!options.token.empty()) std::tie(token, join_token, admin_token) = options.tokens();
  coordinator.name = "coordinator";
  workers.resize(static_cast<size_t>(options.workers));
  worker_pids.resize(workers.size());
  for (size_t i = 0; i < workers.size(); ++i) workers[i].name = StrCat("worker ", i);
  if (has_record()) {
    TESSERA_ASSIGN_OR_RETURN(record, PoolRecord::Open(options.state_folder));
    TESSERA_RETURN_IF_ERROR(TakeFormer());
  }
  TESSERA_RETURN_IF_ERROR(CheckHostMemory());
  if (folder.empty()) TESSERA_RETURN_IF_ERROR(MakeFolder());
  const Clock::time_point deadline = Deadline();
  if (coordinator.is_former()) TESSERA_RETURN_IF_ERROR(AwaitFormerCoordinator(deadline));
  if (!coordinator.Alive()) TESSERA_RETURN_IF_ERROR(SpawnCoordinator(deadline));
  for (int i = 0; i < options.workers; ++i) {
    if (!workers[static_cast<size_t>(i)].Alive()) TESSERA_RETURN_IF_ERROR(SpawnWorker(i));
  }
  return options.workers == 0 ? absl::OkStatus() : AwaitWorkers(deadline);
}

std::vector<std::string> LocalCluster::State::WorkerFlags(int index) const {
  std::vector<std::string> flags = {
      "--coordinator=unix:" + socket_path, StrCat("--device=", ToText(options.device)),   StrCat("--index=", index),
      "--transport=" + options.transport,  StrCat("--workers-on-host=", options.workers), "--socket-dir=" + folder};
  if (options.memory_bytes > 0) flags.push_back(StrCat("--memory=", options.memory_bytes));
  if (has_record()) flags.push_back(StrCat("--outlive=", options.outlive_s));
  for (const std::string& files : options.files) flags.push_back("--files=" + files);
  if (!options.decoder.empty()) flags.push_back("--decoder=" + options.decoder);
  flags.insert(flags.end(), options.worker_flags.begin(), options.worker_flags.end());
  return flags;
}

absl::Status LocalCluster::State::SpawnWorker(int index) {
  ServerProcess& worker = workers[static_cast<size_t>(index)];
  TESSERA_RETURN_IF_ERROR(worker.Start(WorkerStart(index), *logs, nullptr, [this] { return Record(); }));
  worker_pids[static_cast<size_t>(index)] = worker.pid;
  return absl::OkStatus();
}

// One that was taken over may end in that moment: then another one is started.
absl::Status LocalCluster::State::CheckProcesses(Clock::time_point deadline) {
  if (coordinator.is_former() && !coordinator.Alive()) TESSERA_RETURN_IF_ERROR(SpawnCoordinator(deadline));
  TESSERA_RETURN_IF_ERROR(coordinator.Check());
  for (int i = 0; i < options.workers; ++i) {
    ServerProcess& worker = workers[static_cast<size_t>(i)];
    if (worker.is_former() && !worker.Alive()) TESSERA_RETURN_IF_ERROR(SpawnWorker(i));
    TESSERA_RETURN_IF_ERROR(worker.Check());
  }
  return absl::OkStatus();
}

// A worker that ends meanwhile is another matter: a coordinator that is started again goes on without it.
absl::Status LocalCluster::State::AwaitListening(int stdout_fd, Clock::time_point deadline) {
  WaitScope scope;
  std::string text;
  while (Clock::now() < deadline) {
    pollfd ready{stdout_fd, POLLIN, 0};
    if (poll(&ready, 1, kWaitPollMs) > 0) {
      char buffer[256];
      const ssize_t count = read(stdout_fd, buffer, sizeof(buffer));
      if (count > 0) text.append(buffer, static_cast<size_t>(count));
      if (absl::StrContains(text, "\n")) return absl::OkStatus();
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

absl::Status LocalCluster::State::AwaitFormerCoordinator(Clock::time_point deadline) {
  ConnectOptions connect;
  connect.address = address;
  connect.client = "local_cluster";
  absl::Status status = absl::OkStatus();
  while (coordinator.Alive()) {
    const absl::StatusOr<Session> session = Session::Connect(connect);
    if (session.ok()) return session->Close();
    status = session.status();
    const bool may_pass = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    if (!may_pass || Clock::now() >= deadline) break;
    WaitScope scope;
    std::this_thread::sleep_for(kLook);
    TESSERA_RETURN_IF_ERROR(scope.Poll());
  }
  if (!coordinator.Alive()) return absl::OkStatus();
  return absl::Status(status.code(),
                      StrCat("local_cluster: the coordinator, process ", coordinator.pid,
                             ", which a tessera up that was killed has left: ", std::string(status.message())));
}

absl::Status LocalCluster::State::AwaitWorkers(Clock::time_point deadline) {
  ConnectOptions connect;
  connect.address = address;
  connect.client = "local_cluster";
  TESSERA_ASSIGN_OR_RETURN(Session session, Session::Connect(connect));
  std::set<int32_t> missing;
  for (int i = 0; i < options.workers; ++i) missing.insert(i);
  while (Clock::now() < deadline) {
    TESSERA_RETURN_IF_ERROR(CheckProcesses(deadline));
    TESSERA_ASSIGN_OR_RETURN(ClusterReport report, session.Status());
    for (const WorkerReport& worker : report.workers) {
      const bool is_own = worker.index >= 0 && worker.index < options.workers &&
                          worker.pid == worker_pids[static_cast<size_t>(worker.index)];
      if (is_own && worker.state == WorkerState::kAlive) missing.erase(worker.index);
    }
    if (missing.empty()) return session.Close();
    WaitScope scope;
    std::this_thread::sleep_for(kLook);
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

void LocalCluster::State::Leave() {
  line.Leave();
  record.Leave();
  if (lock_fd >= 0) KeptDescriptors::Get().Close(lock_fd);
  lock_fd = -1;
  folder.clear();
  workers.clear();
  coordinator = ServerProcess{};
}

void LocalCluster::State::Stop() {
  if (owner != getpid()) {  // a fork's copy ends nothing, and has no thread to join
    [[maybe_unused]] LogTrimmer* leaked = logs.release();
    line.Leave();
    return;
  }
  line.End();
  if (lock_fd >= 0) KeptDescriptors::Get().Close(lock_fd);
  lock_fd = -1;
  logs = nullptr;
  std::vector<ServerProcess*> processes = {&coordinator};
  for (ServerProcess& worker : workers) processes.push_back(&worker);
  const Clock::time_point deadline = Clock::now() + kStopTimeout;
  for (ServerProcess* process : processes) {
    while (process->Runs() && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (process->Runs()) process->Kill();
    // The kernel takes back what is small in no time; a user who looks finds no process.
    process->Reap(kReapMs);
    process->CloseLog();
  }
  record.Remove();
  std::error_code ignored;
  if (!folder.empty()) fs::remove_all(folder, ignored);
  folder.clear();
}

absl::StatusOr<LocalCluster> LocalCluster::Start(const ClusterOptions& options) {
  if (options.has_workers_elsewhere ? options.workers != 0 : options.workers < 1 || options.workers > 1024) {
    return absl::InvalidArgumentError(
        StrCat("local_cluster: workers is ", options.workers, ", it must be in [1, 1024]"));
  }
  if (options.memory_bytes < 0) return absl::InvalidArgumentError("local_cluster: memory is less than 0 bytes");
  // Certificates, where it needs them, are among the workers' flags.
  const Transport* const transport = FindTransport(options.transport);
  if (transport == nullptr || NeedsTrust(*transport)) {
    return absl::InvalidArgumentError(StrCat("local_cluster: transport is \"", Printable(options.transport, 40),
                                             "\", it must be one of ",
                                             absl::StrJoin(TransportNames(NeedsNothing), ", ")));
  }
  auto state = std::make_unique<State>();
  state->options = options;
  if (options.device == DeviceKind::kCpu && options.workers > 0 && options.memory_bytes == 0) {
    state->options.memory_bytes = kDefaultArenaBytes;
  }
  const absl::Status started = state->SpawnAll();
  if (started.ok()) return LocalCluster(std::move(state));
  // The processes that a killed owner left stay as they are for the next one.
  if (state->is_formers) state->Leave();
  return started;
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
const std::string& LocalCluster::taken_over() const { return state_->taken_over; }
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
  const auto look = [&ended](int worker, ServerProcess& process) {
    if (process.is_told || process.Alive()) return;
    process.is_told = true;
    ended.push_back({worker, process.reason});
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

}  // namespace tessera
