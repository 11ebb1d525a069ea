#include "client/cli/up_slurm.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/numbers.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

extern char** environ;

namespace tessera {
namespace {

namespace fs = std::filesystem;

int NumberOf(const Environment& environment, const char* name) {
  int number = 0;
  return absl::SimpleAtoi(environment(name), &number) ? number : 0;
}

// The NUMA domains of this node, which stands for all: Slurm says it of no other.
int NumaDomains() {
  int domains = 0;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator("/sys/devices/system/node", failed)) {
    const std::string name = entry.path().filename();
    if (name.rfind("node", 0) == 0 && name.find_first_not_of("0123456789", 4) == std::string::npos) ++domains;
  }
  return std::max(1, domains);
}

absl::StatusOr<int> WorkersOnNode(const Environment& environment, const SlurmRequest& request) {
  if (request.workers_on_node > 0) return request.workers_on_node;
  if (request.device != "cuda") return NumaDomains();
  const int gpus = NumberOf(environment, "SLURM_GPUS_ON_NODE");
  if (gpus > 0) return gpus;
  return absl::FailedPreconditionError(
      "up: --device cuda: Slurm gave this job no GPU (SLURM_GPUS_ON_NODE is not set); ask for some: sbatch "
      "--gpus-per-node=8");
}

std::string FindInPath(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::string left = path == nullptr ? "" : path;
  while (!left.empty()) {
    const size_t end = std::min(left.find(':'), left.size());
    const std::string file = StrCat(left.substr(0, end), "/", name);
    if (access(file.c_str(), X_OK) == 0) return file;
    left.erase(0, end + 1);
  }
  return "";
}

}  // namespace

std::string ReadEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool IsInAllocation(const Environment& environment) {
  if (environment("SLURM_JOB_ID").empty()) return false;
  // A batch script and a shell of salloc are in no step with a number; a task of srun is.
  return environment("SLURM_STEP_ID").empty() || environment("SLURM_STEP_ID").size() > 9;
}

int PortOfJob(const Environment& environment) {
  constexpr int kFirst = 20'000, kPairs = 5'000;
  return kFirst + 2 * (NumberOf(environment, "SLURM_JOB_ID") % kPairs);
}

absl::StatusOr<SlurmStep> PlanSlurmStep(const Environment& environment, const SlurmRequest& request) {
  SlurmStep step;
  step.nodes = NumberOf(environment, "SLURM_JOB_NUM_NODES");
  if (step.nodes <= 0) {
    return absl::FailedPreconditionError(StrCat("up: SLURM_JOB_NUM_NODES is \"", environment("SLURM_JOB_NUM_NODES"),
                                                "\" in job ", environment("SLURM_JOB_ID"),
                                                "; start it in a batch script or under salloc, or with --here"));
  }
  TESSERA_ASSIGN_OR_RETURN(const int on_node, WorkersOnNode(environment, request));
  step.workers = step.nodes * on_node;
  const int cpus = std::max(1, NumberOf(environment, "SLURM_CPUS_ON_NODE") / on_node);
  step.arguments = {"srun",
                    StrCat("--nodes=", step.nodes),
                    StrCat("--ntasks=", step.workers),
                    StrCat("--ntasks-per-node=", on_node),
                    StrCat("--cpus-per-task=", cpus),
                    "--overlap",
                    "--kill-on-bad-exit=0",
                    "--job-name=tessera-workers",
                    request.program,
                    "keep",
                    "--",
                    request.worker_program,
                    StrCat("--join=", request.address),
                    StrCat("--ca-pin=", request.pin),
                    "--index-from=SLURM_PROCID",
                    StrCat("--workers-on-host=", on_node)};
  if (request.workers_on_node == 0 && request.device != "cuda") {
    // A worker for each NUMA domain has the cores and the memory of one (srun(1); a cluster without task/affinity
    // binds nobody).
    const auto after_cpus = std::find(step.arguments.begin(), step.arguments.end(), "--overlap");
    step.arguments.insert(after_cpus, {"--cpu-bind=ldoms", "--mem-bind=local"});
  }
  if (request.device != "cpu") step.arguments.push_back(StrCat("--device=", request.device));
  if (!request.memory.empty() || request.device == "cpu") {
    step.arguments.push_back(StrCat("--memory=", request.memory.empty() ? "0.8" : request.memory));
  }
  step.arguments.insert(step.arguments.end(), request.worker_flags.begin(), request.worker_flags.end());
  return step;
}

absl::StatusOr<pid_t> StartSlurmStep(const SlurmStep& step, const std::string& join_token) {
  const std::string srun = FindInPath(step.arguments.front());
  if (srun.empty()) {
    return absl::NotFoundError(
        "up: this is an allocation of Slurm (SLURM_JOB_ID is set), and there is no srun in PATH: add Slurm's bin "
        "folder "
        "to PATH, or start the workers of this host alone with --here");
  }
  std::vector<std::string> arguments = step.arguments, variables = {StrCat("TESSERA_JOIN_TOKEN=", join_token)};
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  std::vector<char*> argv, envp;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  for (std::string& variable : variables) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return absl::ResourceExhaustedError(StrCat("up: srun: ", std::strerror(errno)));
  if (child > 0) return child;
  // A group of its own: Ctrl-C is for `tessera up`, which ends it in order.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (getppid() != parent) _exit(1);
  execve(srun.c_str(), argv.data(), envp.data());
  _exit(127);
}

}  // namespace tessera
