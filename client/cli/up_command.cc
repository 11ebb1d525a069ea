#include <signal.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>

#include "client/cli/command.h"
#include "client/cluster.h"
#include "schemas/types/address.h"
#include "schemas/types/byte_size.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

struct UpOptions {
  int workers = 0;
  std::string memory = "1GiB";
  std::string device = "cpu";
  std::vector<std::string> files;
  std::string transport = "shm";
  std::string listen;
};

using Clock = std::chrono::steady_clock;

// Of a worker that ends again and again: each time after twice the delay. docs/limits.md: max_worker_restarts,
// restart_delay, restart_forgiven
constexpr int kMaxWorkerRestarts = 5;
constexpr std::chrono::milliseconds kRestartDelay(250);
constexpr std::chrono::seconds kRestartForgiven(60);

// What `tessera up` knows of a worker.
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
  if (kept.restarts == kMaxWorkerRestarts) {
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
               ended.worker, std::chrono::duration<double>(delay).count(), kept.restarts, kMaxWorkerRestarts);
}

// Blocks until SIGINT or SIGTERM; 1 when the coordinator ends before. A worker that ends is told, and started again.
int Serve(LocalCluster& cluster, const sigset_t& signals) {
  std::vector<Kept> kept(cluster.worker_pids().size());
  for (;;) {
    const timespec poll{0, 100 * 1000 * 1000};
    if (sigtimedwait(&signals, nullptr, &poll) > 0) return 0;
    for (const LocalCluster::Ended& ended : cluster.TakeEnded()) {
      if (ended.worker < 0) {
        std::fprintf(stderr, "tessera up: the coordinator: %s: %s\n", ended.reason.c_str(),
                     cluster.LogTail(-1).c_str());
        return 1;
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

int Up(const UpOptions& up) {
  ClusterOptions options;
  options.workers = up.workers > 0 ? up.workers : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  options.transport = up.transport;
  options.device = ParseDeviceKind(up.device).value_or(DeviceKind::kCpu);
  absl::StatusOr<int64_t> memory = ParseBytes(up.memory);
  if (!memory.ok()) return Failed(memory.status());
  options.memory_bytes = *memory;
  options.files = up.files;
  if (!up.listen.empty()) {
    const absl::StatusOr<Address> listen = ParseAddress("--listen", up.listen);
    if (!listen.ok()) {
      return Failed(absl::InvalidArgumentError(
          StrCat(listen.status().message(), "; an address that other hosts can reach needs TLS")));
    }
    options.socket_path = listen->socket_path;
  }
  // Blocked in every thread from here on, so that sigtimedwait alone takes them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  absl::StatusOr<LocalCluster> cluster = LocalCluster::Start(options);
  if (!cluster.ok()) return Failed(cluster.status());
  std::printf("%s\n", cluster->address().c_str());
  std::printf("%d %s workers of %s each, transport %s; Ctrl-C ends them\n", options.workers, up.device.c_str(),
              ShowBytes(options.memory_bytes).c_str(), options.transport.c_str());
  std::printf("another worker joins by: %s\n", cluster->JoinCommand(options.workers).c_str());
  std::printf("admin: %s\n", cluster->admin_address().c_str());
  std::fflush(stdout);
  const int status = Serve(*cluster, signals);
  cluster->Stop();
  return status;
}

}  // namespace

Command AddUpCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("up", "Start a cluster on this host; stays in the foreground");
  auto options = std::make_shared<UpOptions>();
  command
      ->add_option("--files", options->files,
                   "a folder whose files clients may load from and save to (FOLDER:ro: load from); may be given again")
      ->allow_extra_args(false);
  command->add_option("--workers", options->workers, "workers (default: one per core)")->check(CLI::Range(1, 1024));
  command->add_option("--memory", options->memory, "memory of each worker, like 512MiB")
      ->check(CheckBytes)
      ->capture_default_str();
  command
      ->add_option("--device", options->device,
                   "of each worker: cpu, or cuda (a GPU of this host; they share those there are)")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--transport", options->transport, "between workers")
      ->check(CLI::IsMember({"shm", "ucx"}))
      ->capture_default_str();
  command->add_option("--listen", options->listen, "unix:/path of the coordinator (default: a fresh one)");
  command->footer(
      "Examples:\n"
      "  tessera up --workers 4 --memory 2GiB\n"
      "  tessera up --listen unix:/run/tessera.sock --transport ucx");
  return {command, [options] { return Up(*options); }};
}

}  // namespace tessera
