// tessera run: the ranks of a script, as torchrun starts them, and a cluster for them where no coordinator is named.

#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/cli/control_stream.h"
#include "client/cli/process_guard.h"
#include "client/cli/rank_failure.h"
#include "client/cli/run_plan.h"
#include "client/cli/supervisor.h"
#include "client/cluster.h"
#include "schemas/types/byte_size.h"
#include "schemas/types/limits.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

extern char** environ;

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::streamsize kMaxErrorFileBytes = 1 << 20;

// A port that nobody has on this host at the moment.
absl::StatusOr<int> FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  const bool is_bound = fd >= 0 && bind(fd, any, size) == 0 && getsockname(fd, any, &size) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (is_bound) return ntohs(address.sin_port);
  return absl::UnavailableError(StrCat("run: no free port: ", std::string_view(strerror(error))));
}

absl::StatusOr<std::string> MakeScratch() {
  std::error_code error;
  std::string path = (fs::temp_directory_path(error) / "tessera-run-XXXXXX").string();
  if (!error && mkdtemp(path.data()) != nullptr) return path;
  return absl::UnavailableError(StrCat("run: no folder can be made at ", path, " (TMPDIR says where)"));
}

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

// "" where there is none.
std::string FileText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<size_t>(kMaxErrorFileBytes), '\0');
  file.read(text.data(), kMaxErrorFileBytes);
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

std::vector<std::string> OwnEnvironment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  return entries;
}

// Whether a node of another host gets this variable.
bool IsForNodes(const std::string& entry) {
  if (absl::StartsWith(entry, "TESSERA_ADMIN_TOKEN=") || absl::StartsWith(entry, "TESSERA_VIEWER_TOKEN=")) return false;
  for (const char* start : {"TESSERA_", "PYTHON", "PATH=", "LD_LIBRARY_PATH=", "VIRTUAL_ENV=", "OMP_NUM_THREADS="}) {
    if (absl::StartsWith(entry, start)) return true;
  }
  return false;
}

// The attempts of a run on this host, or of one on several. The cluster, if it starts one, lasts as long as it does.
class Run {
 public:
  Run(RunOptions options, RunPlan plan, std::vector<std::string> coordinator)
      : options_(std::move(options)), plan_(std::move(plan)), coordinator_(std::move(coordinator)) {}

  // The exit status, or why no attempt can be made.
  absl::StatusOr<int> Execute() {
    BlockRunSignals();
    if (options_.log_dir.empty()) {
      TESSERA_ASSIGN_OR_RETURN(scratch_, MakeScratch());
    }
    TESSERA_ASSIGN_OR_RETURN(guard_, ProcessGuard::Make(scratch_));  // before the cluster's threads
    if (coordinator_.empty()) TESSERA_RETURN_IF_ERROR(StartCluster());
    if (plan_.shape.run_id.empty()) {
      plan_.shape.run_id = absl::StrFormat("%016x", (uint64_t{std::random_device()()} << 32) | std::random_device()());
    }
    for (;; ++plan_.shape.restart) {
      TESSERA_ASSIGN_OR_RETURN(const std::optional<int> status, Attempt());
      if (status.has_value()) return *status;
      std::fprintf(stderr, "tessera run: restart %d of %d\n", plan_.shape.restart + 1, plan_.shape.max_restarts);
    }
  }

 private:
  absl::Status StartCluster() {
    ClusterOptions options;
    options.workers = options_.workers > 0 ? options_.workers : plan_.shape.WorldSize();
    options.memory_bytes = kDefaultArenaBytes;
    if (!options_.memory.empty()) {
      TESSERA_ASSIGN_OR_RETURN(options.memory_bytes, ParseBytes(options_.memory));
    }
    if (const char* python = std::getenv("TESSERA_PYTHON"); python != nullptr) options.decoder = python;
    TESSERA_ASSIGN_OR_RETURN(cluster_, LocalCluster::Start(options));
    coordinator_ = {"TESSERA_ADDRESS=" + cluster_->address()};
    return absl::OkStatus();
  }

  // Tells of workers that have ended. Each is started again, as often as the ranks may be.
  void TendWorkers() {
    if (!cluster_.has_value()) return;
    for (const LocalCluster::Ended& ended : cluster_->TakeEnded()) {
      const std::string name = ended.worker < 0 ? "the coordinator" : StrCat("worker ", ended.worker);
      std::fprintf(stderr, "tessera run: %s: %s\n", name.c_str(), ended.reason.c_str());
      if (ended.worker < 0 || worker_restarts_[ended.worker]++ >= plan_.shape.max_restarts) continue;
      const absl::Status status = cluster_->StartWorker(ended.worker);
      if (!status.ok()) std::fprintf(stderr, "tessera run: %s\n", std::string(StdView(status.message())).c_str());
    }
  }

  // The exit status; none where the next attempt is due.
  absl::StatusOr<std::optional<int>> Attempt() {
    RunShape shape = plan_.shape;
    if (shape.master_port == 0) {
      TESSERA_ASSIGN_OR_RETURN(shape.master_port, FreePort());
    }
    TESSERA_ASSIGN_OR_RETURN(const std::vector<ProcessSpec> specs,
                             plan_.hosts.empty() ? RankSpecs(shape) : NodeSpecs(shape));
    SupervisorOptions supervision;
    supervision.grace_s = options_.grace_s;
    supervision.control_fd = options_.control_stdin ? STDIN_FILENO : -1;
    supervision.tick = [this] { TendWorkers(); };
    Supervisor supervisor(supervision, *guard_);
    TESSERA_RETURN_IF_ERROR(supervisor.Start(specs));
    const AttemptEnd end = supervisor.Run();
    if (end.failures.empty()) return end.signal != 0 ? 128 + end.signal : 0;
    const RankFailure failure = FirstFailure(shape, specs, end.failures);
    const std::string text = FailureText(failure);
    std::fwrite(text.data(), 1, text.size(), stderr);
    if (end.signal != 0) return 128 + end.signal;
    // A node's restarts are the launcher's.
    if (options_.control_stdin || shape.restart == shape.max_restarts) return ExitStatus(failure.wait_status);
    return std::optional<int>();
  }

  // A rank that loses its peer may end before the peer does, which is on its way out; its error file is the younger
  // one.
  RankFailure FirstFailure(const RunShape& shape, const std::vector<ProcessSpec>& specs,
                           const std::vector<FailedProcess>& failures) const {
    const auto time_of = [&](const FailedProcess& failed) {
      struct stat file {};
      if (!plan_.hosts.empty() || stat(ErrorFile(shape, failed.index).c_str(), &file) != 0) return failed.when;
      return std::chrono::system_clock::time_point(std::chrono::seconds(file.st_mtim.tv_sec) +
                                                   std::chrono::nanoseconds(file.st_mtim.tv_nsec));
    };
    const FailedProcess& first = *std::min_element(
        failures.begin(), failures.end(),
        [&](const FailedProcess& one, const FailedProcess& other) { return time_of(one) < time_of(other); });
    RankFailure failure;
    failure.name = specs[first.index].name;
    failure.pid = first.pid;
    failure.host = HostName();
    failure.wait_status = first.wait_status;
    failure.when = std::chrono::system_clock::to_time_t(time_of(first));
    if (plan_.hosts.empty()) {  // a node has told of its rank itself
      failure.error_file = FileText(ErrorFile(shape, first.index));
      failure.stderr_tail = first.stderr_tail;
    }
    return failure;
  }

  // The folder of the rank's logs and its error file.
  std::string RankFolder(const RunShape& shape, int local_rank) const {
    const fs::path folder = fs::absolute(options_.log_dir.empty() ? scratch_ : options_.log_dir);
    return folder / StrCat("attempt_", shape.restart) / StrCat("rank_", shape.FirstRank() + local_rank);
  }

  std::string ErrorFile(const RunShape& shape, size_t local_rank) const {
    return RankFolder(shape, static_cast<int>(local_rank)) + "/error.json";
  }

  absl::StatusOr<std::vector<ProcessSpec>> RankSpecs(const RunShape& shape) const {
    std::vector<ProcessSpec> specs;
    for (int local_rank = 0; local_rank < shape.LocalSize(); ++local_rank) {
      const std::string folder = RankFolder(shape, local_rank);
      std::error_code error;
      fs::create_directories(folder, error);
      if (error) return absl::UnavailableError(StrCat("run: the folder ", folder, " can't be made: ", error.message()));
      const std::string error_file = ErrorFile(shape, static_cast<size_t>(local_rank));
      fs::remove(error_file, error);  // of an earlier run with the same logs
      std::vector<std::string> changes = RankEnvironment(shape, local_rank, error_file);
      changes.insert(changes.end(), coordinator_.begin(), coordinator_.end());
      // As torchrun: unless the user says otherwise, ranks share the cores, and NCCL's errors end a rank.
      for (const char* name : {"OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"}) {
        if (std::getenv(name) == nullptr) changes.push_back(StrCat(std::string_view(name), "=1"));
      }
      const int rank = shape.FirstRank() + local_rank;
      ProcessSpec spec;
      spec.name = StrCat("rank ", rank);
      spec.arguments = plan_.command;
      spec.environment = MergedEnvironment(OwnEnvironment(), changes);
      if (!options_.no_prefix) spec.prefix = StrCat("[", spec.name, "] ");
      spec.is_shown = options_.log_dir.empty() || options_.tee || rank == 0;
      if (!options_.log_dir.empty()) spec.log_folder = folder;
      specs.push_back(std::move(spec));
    }
    return specs;
  }

  absl::StatusOr<std::vector<ProcessSpec>> NodeSpecs(RunShape shape) const {
    std::error_code error;
    const std::string program = fs::read_symlink("/proc/self/exe", error).string();
    const std::string folder = fs::current_path(error).string();
    const char* const ssh = std::getenv("TESSERA_SSH");
    std::vector<std::string> environment;
    for (const std::string& entry : MergedEnvironment(OwnEnvironment(), coordinator_)) {
      if (IsForNodes(entry)) environment.push_back(entry);
    }
    std::vector<ProcessSpec> specs;
    for (const Host& host : plan_.hosts) {
      shape.node = static_cast<int>(specs.size());
      ProcessSpec spec;
      spec.name = StrCat("node ", shape.node, " (", host.name, ")");
      spec.arguments = {ssh != nullptr && *ssh != '\0' ? ssh : "ssh", host.name,
                        NodeCommand(options_, shape, program, folder)};
      spec.environment = OwnEnvironment();
      spec.control = ControlText(environment);
      specs.push_back(std::move(spec));
    }
    return specs;
  }

  const RunOptions options_;
  RunPlan plan_;
  std::vector<std::string> coordinator_;  // the variables that name it
  std::unique_ptr<ProcessGuard> guard_;
  std::optional<LocalCluster> cluster_;
  std::map<int, int> worker_restarts_;
  std::string scratch_;  // a folder for error files, where no logs are asked for; the guard removes it
};

// The descriptors 0 to 2 are open from here on, so that no pipe gets their numbers.
void OpenStandardStreams() {
  int fd;
  do fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  while (fd >= 0 && fd <= 2);
  if (fd > 2) close(fd);
}

int RunRanks(const RunOptions& options, const AddressOption& address) {
  OpenStandardStreams();
  if (options.control_stdin) {
    const absl::StatusOr<std::vector<std::string>> environment = ReadControlText(STDIN_FILENO);
    if (!environment.ok()) return Failed(environment.status());
    for (const std::string& entry : *environment) {
      const size_t equals = entry.find('=');
      setenv(entry.substr(0, equals).c_str(), entry.c_str() + equals + 1, 1);
    }
  }
  absl::StatusOr<RunPlan> plan = PlanRun(options, address.IsGiven());
  if (!plan.ok()) return Failed(plan.status());
  Run run(options, *std::move(plan), address.Environment());
  const absl::StatusOr<int> status = run.Execute();
  return status.ok() ? *status : Failed(status.status());
}

void AddPlaceOptions(CLI::App& command, RunOptions& options) {
  command
      .add_option(
          "--nproc,--nproc-per-node,--nproc_per_node", options.nproc,
          "ranks on each host: a number, or auto or cpu for the cores of this one; 2,4 with --nnodes 2 for hosts\n"
          "that differ")
      ->capture_default_str();
  command.add_option(
      "--hosts", options.hosts,
      "hosts to start ranks on by ssh (TESSERA_SSH is a program in its place), like a,b:4 for 4 ranks on "
      "b;\nfolder, script and Tessera are at the same place on each; needs an address");
  command.add_option("--nnodes", options.nnodes, "hosts, where you start `tessera run` on each yourself")
      ->capture_default_str();
  command.add_option("--node-rank,--node_rank", options.node_rank, "which of them this one is, from 0")
      ->capture_default_str();
  command.add_option("--master-addr,--master_addr", options.master_addr,
                     "MASTER_ADDR of the ranks (default: 127.0.0.1, the first of --hosts)");
  command.add_option("--master-port,--master_port", options.master_port,
                     "MASTER_PORT (default: a free port, another one after each restart)");
  command.add_option("--run-id,--rdzv-id,--rdzv_id", options.run_id, "TORCHELASTIC_RUN_ID (default: a random one)");
}

void AddRunOptions(CLI::App& command, RunOptions& options) {
  command
      .add_option("--max-restarts,--max_restarts", options.max_restarts,
                  "how often all ranks are ended and started again after one has failed")
      ->capture_default_str();
  command.add_option("--grace", options.grace_s, "seconds between SIGTERM and SIGKILL of ranks that are ended")
      ->capture_default_str();
  command.add_option("--workers", options.workers,
                     "workers of the cluster that is started where no address is given (default: one for each rank)");
  command.add_option("--memory", options.memory, "memory of each of them, like 512MiB (default: 1GiB)")
      ->check(CheckBytes);
  command.add_flag("-m,--module", options.is_module, "the script is the name of a Python module");
  command.add_flag("--no-python,--no_python", options.is_program, "the script is a program, which is run as it is");
  command.add_flag("--no-prefix", options.no_prefix, "lines on the terminal without [rank 2] in front");
  command.add_option(
      "--log-dir,--log_dir", options.log_dir,
      "a folder for what ranks write: DIR/attempt_0/rank_2/stdout.log and stderr.log; the terminal then\n"
      "shows rank 0 alone");
  command.add_flag("--tee", options.tee, "with --log-dir, the terminal shows all ranks");
  command.add_flag("--control-stdin", options.control_stdin)->group("");
  command.add_option("--restart-count", options.restart_count)->group("");
}

}  // namespace

Command AddRunCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "run", "Start the ranks of a script, as torchrun does: tessera run [OPTIONS] SCRIPT.py [its arguments]");
  auto options = std::make_shared<RunOptions>();
  auto address = std::make_shared<AddressOption>();
  // All behind the script is the script's own.
  command->prefix_command();
  AddPlaceOptions(*command, *options);
  AddRunOptions(*command, *options);
  address->AddTo(*command);
  command->footer(
      "Each rank has torchrun's variables (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the others) and\n"
      "TESSERA_ADDRESS. Where no address is given, the run starts a cluster of this host with a worker for each rank.\n"
      "A script is run by TESSERA_PYTHON, else python3. The first rank that fails ends the run.\n"
      "The exit status is 0 if all ranks end with 0; else that of the first rank that failed, or 128 + the signal "
      "that\n"
      "ended it (torchrun has 1 for both). SIGINT and SIGTERM go to the ranks, and the status is 130 or 143.\n"
      "Examples:\n"
      "  tessera run --nproc 4 train.py --epochs 3\n"
      "  tessera run --nproc auto --max-restarts 2 --log-dir logs -m my.package\n"
      "  tessera run --hosts a,b:4 --nproc 2 --address tls://a:7421#token=HEX train.py\n"
      "  tessera run --nnodes 2 --node-rank 1 --nproc 4 --master-addr a --master-port 29500 train.py");
  return {command, [command, options, address] {
            options->words = command->remaining();
            return RunRanks(*options, *address);
          }};
}

}  // namespace tessera
