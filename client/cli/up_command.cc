#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <thread>

#include "client/address.h"
#include "client/cli/command.h"
#include "client/cluster.h"
#include "schemas/types/byte_size.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

struct UpOptions {
  int workers = 0;
  std::string memory = "1GiB";
  std::string transport = "shm";
  std::string listen;
};

// Blocks until SIGINT or SIGTERM; 1 when the coordinator ends before. A worker's end is told.
int Serve(const LocalCluster& cluster, const sigset_t& signals) {
  std::vector<bool> told(cluster.worker_pids().size(), false);
  for (;;) {
    const timespec poll{0, 200 * 1000 * 1000};
    if (sigtimedwait(&signals, nullptr, &poll) > 0) return 0;
    if (kill(cluster.coordinator_pid(), 0) != 0 || waitpid(cluster.coordinator_pid(), nullptr, WNOHANG) != 0) {
      std::fprintf(stderr, "tessera up: the coordinator ended: %s\n", cluster.LogTail(-1).c_str());
      return 1;
    }
    for (size_t i = 0; i < told.size(); ++i) {
      if (told[i] || waitpid(cluster.worker_pids()[i], nullptr, WNOHANG) == 0) continue;
      told[i] = true;
      std::fprintf(stderr, "tessera up: worker %zu ended: %s\n", i, cluster.LogTail(static_cast<int>(i)).c_str());
    }
  }
}

int Up(const UpOptions& up) {
  ClusterOptions options;
  options.workers = up.workers > 0 ? up.workers : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  options.transport = up.transport;
  absl::StatusOr<int64_t> memory = ParseBytes(up.memory);
  if (!memory.ok()) return Failed(memory.status());
  options.memory_bytes = *memory;
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
  std::printf("%d workers of %s each, transport %s; Ctrl-C ends them\n", options.workers,
              ShowBytes(options.memory_bytes).c_str(), options.transport.c_str());
  std::fflush(stdout);
  const int status = Serve(*cluster, signals);
  cluster->Stop();
  return status;
}

}  // namespace

Command AddUpCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("up", "Start a cluster on this host; stays in the foreground");
  auto options = std::make_shared<UpOptions>();
  command->add_option("--workers", options->workers, "workers (default: one per core)")->check(CLI::Range(1, 1024));
  command->add_option("--memory", options->memory, "memory of each worker, like 512MiB")
      ->check(CheckBytes)
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
