#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>

#include "client/cli/command.h"
#include "client/cli/up_pool.h"
#include "client/cli/up_slurm.h"
#include "client/cluster.h"
#include "schemas/link/tls_files.h"
#include "schemas/types/address.h"
#include "schemas/types/byte_size.h"
#include "schemas/types/limits.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/transports.h"

namespace tessera {
namespace {

struct UpOptions {
  int workers = -1;  // of this host, or of each node of an allocation; 0: all are of other machines
  std::string memory;
  std::string device = "cpu";
  std::vector<std::string> files;
  std::string decoder;
  std::string decoder_memory;  // empty: decoder_memory
  bool may_decode_unconfined = false;
  std::string spill;
  std::string transport = "shm";
  std::vector<std::string> listen;
  TlsFiles tls;
  std::string state, state_level;
  double outlive_s = ClusterOptions{}.outlive_s;
  std::string folder;         // of the CA and the tokens that it makes; empty: in that of the state, or of the user
  std::string write_address;  // a file for programs
  bool is_here = false;       // also in an allocation of Slurm
};

// Clients of other hosts: the coordinator's address, and one of each worker beside it.
absl::Status AddTls(const UpOptions& up, const Address& address, ClusterOptions& options) {
  if (up.tls.certificate.empty() || up.tls.key.empty()) {
    return absl::InvalidArgumentError(StrCat("--listen ", ToText(address),
                                             " needs a certificate and its key: --tls-cert ",
                                             "and --tls-key (`tessera certs` makes them)"));
  }
  if (address.port == 0) {
    return absl::InvalidArgumentError(StrCat("--listen ", ToText(address), ": clients have to know the port"));
  }
  const std::vector<std::string> files = {"--tls-cert=" + up.tls.certificate, "--tls-key=" + up.tls.key};
  options.coordinator_flags.push_back("--listen=" + ToText(address));
  options.worker_flags.push_back(StrCat("--data-listen=", ToText(Address{"", address.host, 0, ""})));
  for (auto* flags : {&options.coordinator_flags, &options.worker_flags}) {
    flags->insert(flags->end(), files.begin(), files.end());
  }
  return absl::OkStatus();
}

// Takes the addresses to serve: one unix socket at most, and one of TLS, for which a pool makes its certificates where
// none are named.
absl::Status AddListening(const UpOptions& up, ClusterOptions& options, std::optional<Pool>& pool) {
  for (const std::string& text : up.listen) {
    TESSERA_ASSIGN_OR_RETURN(const Address address, ParseAddress("--listen", text));
    if (address.is_unix() ? !options.socket_path.empty() : !options.coordinator_flags.empty()) {
      return absl::InvalidArgumentError(StrCat("--listen ", text, ": there is one of its kind already"));
    }
    if (address.is_unix()) {
      options.socket_path = address.socket_path;
    } else if (up.tls.certificate.empty() && up.tls.key.empty()) {
      const std::string folder = up.folder.empty() ? PoolFolder(up.state) : up.folder;
      TESSERA_ASSIGN_OR_RETURN(pool, MakePool(folder, address));
      ServePool(*pool, options);
    } else {
      TESSERA_RETURN_IF_ERROR(AddTls(up, address, options));
    }
  }
  return absl::OkStatus();
}

// Passed on to the workers. Each has a decoder from its first file on that needs one.
absl::Status AddDecoders(const UpOptions& up, ClusterOptions& options) {
  options.files = up.files;
  if (!up.spill.empty()) options.worker_flags.push_back("--spill=" + up.spill);
  options.decoder = up.decoder;
  if (up.may_decode_unconfined) options.worker_flags.push_back("--decoder-unconfined");
  int64_t bytes = kDecoderMemoryBytes;
  if (!up.decoder_memory.empty()) {
    TESSERA_ASSIGN_OR_RETURN(bytes, ParseBytes(up.decoder_memory));
    if (bytes < kMinDecoderMemoryBytes || bytes > kMaxArenaBytes) {
      return absl::InvalidArgumentError(StrCat("--decoder-memory ", up.decoder_memory, ": is ",
                                               ShowBytes(kMinDecoderMemoryBytes), " to ", ShowBytes(kMaxArenaBytes)));
    }
    options.worker_flags.push_back(StrCat("--decoder-memory=", bytes));
  }
  const int64_t host_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  if (!up.files.empty() && !up.decoder.empty() && bytes > host_bytes / options.workers) {
    std::fprintf(stderr,
                 "tessera up: decoders of files may take %d times %s, and this host has %s; --decoder-memory says "
                 "how much each may take\n",
                 options.workers, ShowBytes(bytes).c_str(), ShowBytes(host_bytes).c_str());
  }
  return absl::OkStatus();
}

using Clock = std::chrono::steady_clock;

std::string OwnProgram() {
  char path[4096] = "";
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path) - 1);
  return size < 0 ? "tessera" : std::string(path, static_cast<size_t>(size));
}

// A process that ends again and again is started again, a worker each time after twice the delay. docs/limits.md:
// max_worker_restarts, restart_delay, restart_forgiven
constexpr int kMaxRestarts = 5;
constexpr std::chrono::milliseconds kRestartDelay(250);
constexpr std::chrono::seconds kRestartForgiven(60);

// A worker's record in `tessera up`.
struct Kept {
  int restarts = 0;                          // since it last ran for kRestartForgiven
  Clock::time_point started = Clock::now();  // the last time
  std::optional<Clock::time_point> start_at;
};

void TellEnd(const LocalCluster& cluster, const LocalCluster::Ended& ended, Kept& kept) {
  const Clock::time_point now = Clock::now();
  if (now - kept.started > kRestartForgiven) kept.restarts = 0;
  const std::string log = cluster.LogTail(ended.worker);
  std::fprintf(stderr, "tessera up: worker %d: %s%s%s\n", ended.worker, ended.reason.c_str(), log.empty() ? "" : ": ",
               log.c_str());
  if (kept.restarts == kMaxRestarts) {
    std::fprintf(
        stderr,
        "tessera up: worker %d stays away: it was started %d times again (max_worker_restarts). By hand:\n  %s\n",
        ended.worker, kept.restarts, cluster.JoinCommand(ended.worker).c_str());
    return;
  }
  const auto delay = kRestartDelay * (1 << kept.restarts);
  ++kept.restarts;
  kept.start_at = now + delay;
  std::fprintf(stderr, "tessera up: worker %d is started again in %.2f s (%d of %d); what it held is lost\n",
               ended.worker, std::chrono::duration<double>(delay).count(), kept.restarts, kMaxRestarts);
}

// `tessera up` goes on without a coordinator that has ended: with a state folder it starts it again, at once and a few
// times. False: there is nothing more to do.
bool GoOnWithout(LocalCluster& cluster, const LocalCluster::Ended& ended, bool has_state, Kept& kept) {
  const Clock::time_point now = Clock::now();
  if (now - kept.started > kRestartForgiven) kept.restarts = 0;
  std::fprintf(stderr, "tessera up: the coordinator: %s: %s\n", ended.reason.c_str(), cluster.LogTail(-1).c_str());
  if (!has_state || kept.restarts == kMaxRestarts) return false;
  ++kept.restarts;
  kept.started = now;
  std::fprintf(stderr, "tessera up: the coordinator is started again with what it had (%d of %d)\n", kept.restarts,
               kMaxRestarts);
  const absl::Status started = cluster.StartCoordinator();
  if (!started.ok()) std::fprintf(stderr, "tessera up: %s\n", std::string(StdView(started.message())).c_str());
  // One that ended as it started is found by the next look.
  return started.ok() || absl::IsUnavailable(started);
}

// Ends a step of Slurm in order: its tasks get the signal, and some seconds.
void EndStep(pid_t srun) {
  if (srun <= 0) return;
  constexpr std::chrono::seconds kGrace(15);
  kill(srun, SIGTERM);
  const Clock::time_point end = Clock::now() + kGrace;
  while (waitpid(srun, nullptr, WNOHANG) == 0) {
    if (Clock::now() > end) kill(srun, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// Whether srun has ended, as it does when all of its workers have.
bool HasEnded(pid_t& srun) {
  int status = 0;
  if (srun <= 0 || waitpid(srun, &status, WNOHANG) != srun) return false;
  std::fprintf(stderr, "tessera up: srun, with all of the pool's workers, %s; the pool ends\n",
               WIFSIGNALED(status) ? StrCat("was killed by signal ", WTERMSIG(status)).c_str()
                                   : StrCat("ended with status ", WEXITSTATUS(status)).c_str());
  srun = -1;
  return true;
}

// Blocks until SIGINT or SIGTERM; 1 when the coordinator ends before, and is not started again, or all workers of a
// step do. A worker that ends is told, and started again.
int Serve(LocalCluster& cluster, const sigset_t& signals, bool has_state, pid_t& srun) {
  std::vector<Kept> kept(cluster.worker_pids().size());
  Kept coordinator;
  for (;;) {
    const timespec poll{0, 100 * 1000 * 1000};
    if (sigtimedwait(&signals, nullptr, &poll) > 0) return 0;
    if (HasEnded(srun)) return 1;
    for (const LocalCluster::Ended& ended : cluster.TakeEnded()) {
      if (ended.worker < 0) {
        if (!GoOnWithout(cluster, ended, has_state, coordinator)) return 1;
        continue;
      }
      TellEnd(cluster, ended, kept[static_cast<size_t>(ended.worker)]);
    }
    for (size_t i = 0; i < kept.size(); ++i) {
      if (!kept[i].start_at.has_value() || Clock::now() < *kept[i].start_at) continue;
      kept[i].start_at.reset();
      kept[i].started = Clock::now();
      const absl::Status status = cluster.StartWorker(static_cast<int>(i));
      if (!status.ok()) std::fprintf(stderr, "tessera up: %s\n", std::string(StdView(status.message())).c_str());
    }
  }
}

// The pool's workers are tasks of a step on all nodes of the allocation.
absl::StatusOr<pid_t> StartStep(const UpOptions& up, const Pool& pool, const LocalCluster& cluster) {
  SlurmRequest request{
      std::max(0, up.workers), up.device, OwnProgram(), cluster.Program("worker"), "", pool.pin, up.memory, {}};
  request.address = ToText(Address{"", pool.host, pool.clients.port, ""});
  for (const std::string& files : up.files) request.worker_flags.push_back("--files=" + files);
  if (!up.spill.empty()) request.worker_flags.push_back("--spill=" + up.spill);
  if (!up.decoder.empty()) request.worker_flags.push_back("--decoder=" + up.decoder);
  TESSERA_ASSIGN_OR_RETURN(const SlurmStep step, PlanSlurmStep(ReadEnvironment, request));
  TESSERA_ASSIGN_OR_RETURN(const pid_t srun, StartSlurmStep(step, pool.join_token));
  std::printf("srun starts %d workers on %d nodes of job %s\n", step.workers, step.nodes,
              ReadEnvironment("SLURM_JOB_ID").c_str());
  return srun;
}

void TellPool(const Pool& pool) {
  const std::string address = ToText(Address{"", pool.host, pool.clients.port, ""});
  std::printf("from other hosts: %s#token=%s with the CA %s/ca.crt\n", address.c_str(), pool.token.c_str(),
              pool.folder.c_str());
  std::printf("another machine joins by:\n  %s\n", JoinLine(pool).c_str());
}

void TellLocal(const UpOptions& up, const ClusterOptions& options, const LocalCluster& cluster) {
  const std::string each = options.memory_bytes > 0 ? ShowBytes(options.memory_bytes) + " each" : "all that is free";
  std::printf("%d %s workers of %s, transport %s; Ctrl-C ends them\n", options.workers, up.device.c_str(), each.c_str(),
              options.transport.c_str());
  std::printf("another worker joins by: %s\n", cluster.JoinCommand(options.workers).c_str());
}

int Run(const UpOptions& up, const ClusterOptions& options, const std::optional<Pool>& pool, bool is_in_slurm) {
  // Blocked in every thread from here on, so that sigtimedwait alone takes them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  absl::StatusOr<LocalCluster> cluster = LocalCluster::Start(options);
  if (!cluster.ok()) return Failed(cluster.status());
  if (!cluster->taken_over().empty()) {
    std::fprintf(stderr, "tessera up: goes on with what one that was killed has left: %s\n",
                 cluster->taken_over().c_str());
  }
  pid_t srun = -1;
  // A job's output is often a file that others read: no token goes there.
  if (!is_in_slurm) std::printf("%s\n", cluster->address().c_str());
  if (is_in_slurm) {
    absl::StatusOr<pid_t> started = StartStep(up, *pool, *cluster);
    if (!started.ok()) return Failed(started.status());
    srun = *started;
  } else if (options.workers > 0) {
    TellLocal(up, options, *cluster);
  }
  if (is_in_slurm) {
    std::printf("clients connect to %s with the CA %s/ca.crt; tokens are in %s/tokens\n",
                ToText(Address{"", pool->host, pool->clients.port, ""}).c_str(), pool->folder.c_str(),
                pool->folder.c_str());
  } else {
    std::printf("admin: %s\n", cluster->admin_address().c_str());
    if (pool.has_value()) TellPool(*pool);
  }
  const std::string token = cluster->address().substr(cluster->address().find('#'));
  for (const std::string& address : up.listen) {
    if (address.rfind("tls:", 0) == 0 && !pool.has_value()) {
      std::printf("from other hosts: %s%s\n", address.c_str(), token.c_str());
    }
  }
  std::fflush(stdout);
  if (!up.write_address.empty()) {
    if (const absl::Status written = WriteAddress(*pool, up.write_address); !written.ok()) return Failed(written);
  }
  const int status = Serve(*cluster, signals, !up.state.empty(), srun);
  EndStep(srun);
  cluster->Stop();
  if (!up.write_address.empty()) unlink(up.write_address.c_str());
  return status;
}

int Up(UpOptions up) {
  ClusterOptions options;
  options.workers = up.workers >= 0 ? up.workers : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  options.transport = up.transport;
  options.device = ParseDeviceKind(up.device).value_or(DeviceKind::kCpu);
  const bool is_in_slurm = !up.is_here && IsInAllocation(ReadEnvironment);
  options.has_workers_elsewhere = is_in_slurm || up.workers == 0;
  if (is_in_slurm) {
    options.workers = 0;
    char name[256] = "";
    gethostname(name, sizeof(name) - 1);
    if (up.listen.empty()) up.listen.push_back(StrCat("tls://", name, ":", PortOfJob(ReadEnvironment)));
  } else if (!up.memory.empty()) {
    absl::StatusOr<int64_t> memory = ParseBytes(up.memory);
    if (!memory.ok()) return Failed(memory.status());
    options.memory_bytes = *memory;
  } else if (options.device == DeviceKind::kCpu) {
    options.memory_bytes = kDefaultArenaBytes;
  }
  options.state_folder = up.state;
  options.outlive_s = up.outlive_s;
  std::optional<Pool> pool;
  if (const absl::Status listening = AddListening(up, options, pool); !listening.ok()) return Failed(listening);
  if (!up.state.empty() && options.token.empty()) {
    if (const absl::Status tokens = KeepTokens(up.state, options); !tokens.ok()) return Failed(tokens);
  }
  if (!up.state_level.empty()) options.coordinator_flags.push_back("--state-level=" + up.state_level);
  if (options.workers > 0) {
    if (const absl::Status decoders = AddDecoders(up, options); !decoders.ok()) return Failed(decoders);
  }
  if (!pool.has_value() && (options.has_workers_elsewhere || !up.write_address.empty())) {
    return Failed(absl::InvalidArgumentError(
        "up: workers of other machines, and --write-address, are for a pool that makes its own certificates: --listen "
        "tls://host:port without --tls-cert"));
  }
  return Run(up, options, pool, is_in_slurm);
}

}  // namespace

Command AddUpCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("up", "Start a cluster on this host; stays in the foreground");
  auto options = std::make_shared<UpOptions>();
  command
      ->add_option("--files", options->files,
                   "a folder whose files clients may load from and save to (FOLDER:ro: load from); may be given again")
      ->allow_extra_args(false);
  command->add_option("--spill", options->spill,
                      "a folder on a local disk for tensors that nobody used lately, when others want their memory");
  // tools/tessera and the wheel's command say which Python has the package.
  if (const char* python = std::getenv("TESSERA_PYTHON"); python != nullptr) options->decoder = python;
  command
      ->add_option(
          "--decoder", options->decoder,
          "the Python that reads and writes HDF5, Parquet and zarr files beside each worker (empty: none does)")
      ->capture_default_str();
  command
      ->add_option("--decoder-memory", options->decoder_memory,
                   "address space that each decoder may take (default: 4GiB)")
      ->check(CheckBytes);
  command->add_flag(
      "--decoder-unconfined", options->may_decode_unconfined,
      "decoders run also where the kernel has no Landlock or no seccomp filters (tessera doctor says so)");
  command
      ->add_option(
          "--workers", options->workers,
          "workers (default: one per core; in an allocation of Slurm one per GPU or NUMA domain of each node); 0\n"
          "with --listen tls://...: all are of other machines")
      ->check(CLI::Range(0, 1024));
  command->add_option(
      "--memory", options->memory,
      "memory of each worker, like 512MiB (default: 1GiB; of a GPU its workers' equal share of what is\n"
      "free, less a reserve; in an allocation of Slurm also a share like 0.8)");
  command
      ->add_option("--device", options->device,
                   "of each worker: cpu, or cuda (a GPU of this host; they share those there are)")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--transport", options->transport, "between workers")
      ->check(CLI::IsMember(TransportNames(NeedsNothing)))
      ->capture_default_str();
  command
      ->add_option(
          "--listen", options->listen,
          "unix:/path of the coordinator (default: a fresh one); tls://host:port beside it, for clients of other\n"
          "hosts: the workers then have addresses of that host, too")
      ->allow_extra_args(false);
  command->add_option(
      "--state", options->state,
      "folder of a log with which the coordinator is started again, should it end, with all that it had; tessera up\n"
      "that is killed and started again on it goes on with all processes");
  command
      ->add_option("--state-level", options->state_level,
                   "of --state: process (the default), or disk: nothing is answered before it is on the disk")
      ->check(CLI::IsMember({"process", "disk"}));
  command
      ->add_option("--outlive", options->outlive_s,
                   "with --state: seconds for which the pool goes on when tessera up is killed, for the next one, and\n"
                   "workers when their coordinator is")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
  command->add_option(
      "--folder", options->folder,
      "where the CA, certificates and tokens lie that it makes for --listen tls://... without --tls-cert\n"
      "(default: STATE/tls, else ~/.local/state/tessera/pool)");
  command->add_option("--write-address", options->write_address,
                      "a file for programs, in JSON: address, token, CA, and what workers join by; removed at the end");
  command->add_flag("--here", options->is_here,
                    "workers of this host alone, also in an allocation of Slurm, where srun starts some on all nodes");
  command->add_option("--tls-cert", options->tls.certificate, "certificate of this host, a PEM file (tessera certs)");
  command->add_option("--tls-key", options->tls.key, "its key, a PEM file");
  command->footer(
      "Examples:\n"
      "  tessera up --workers 4 --memory 2GiB\n"
      "  tessera up --state /var/lib/tessera\n"
      "  tessera up --listen unix:/run/tessera.sock --transport ucx\n"
      "  tessera up --listen tls://myhost:7421        # and prints what another machine joins by\n"
      "  tessera up --listen tls://myhost:7421 --tls-cert tls/server.crt --tls-key tls/server.key\n"
      "  salloc --nodes=2 tessera up                  # a pool on both nodes");
  return {command, [options] { return Up(*options); }};
}

}  // namespace tessera
