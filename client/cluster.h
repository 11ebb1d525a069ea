#pragma once

// LocalCluster: a coordinator and N workers on this host, as child processes: the same binaries and
// sockets as anywhere. They end when this process ends, however it ends; with a state folder they outlive its kill.
//
//   TESSERA_ASSIGN_OR_RETURN(LocalCluster cluster, LocalCluster::Start({.workers = 4}));
//   TESSERA_ASSIGN_OR_RETURN(Session session, cluster.Connect());
//
// Start blocks until every worker has joined.

#include "client/require_cxx20.h"

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "client/session.h"
#include "schemas/types/device_kind.h"

namespace tessera {

struct ClusterOptions {
  int workers = 1;
  int64_t memory_bytes = 0;  // of each worker's arena; 0: 1 GiB, and of a GPU what is free, less a reserve
  DeviceKind device = DeviceKind::kCpu;
  std::string transport = "shm";  // or "ucx", or of GPUs "nccl"
  // Where tessera-coordinator and tessera-worker are; empty: TESSERA_BIN_DIR, else near this binary.
  std::string binary_dir{};
  double start_timeout_s = 60;
  // More flags for the coordinator, as they are.
  std::vector<std::string> coordinator_flags{};
  std::vector<std::string> worker_flags{};
  // A unix socket path instead of a fresh one.
  std::string socket_path{};
  // Folders whose files the workers load from and save to; "folder:ro" for loading alone.
  std::vector<std::string> files{};
  // A coordinator with this folder can be started again with all that it had, and its workers wait for that
  // (docs/survive.md). If this process is killed, all of its processes go on, and Start with the same folder and
  // options takes them over. Empty: all that it holds ends with it.
  std::string state_folder{};
  // With a state folder: seconds for which the processes go on without this one, and workers without a coordinator.
  double outlive_s = 600;  // docs/limits.md: outlive
  // The Python, with the package tessera, that decodes and encodes files beside the workers; empty: none does.
  std::string decoder{};
  // The clients', workers' and admins' tokens, all three or none: then they are made here.
  std::string token{}, join_token{}, admin_token{};
  auto tokens() const { return std::tie(token, join_token, admin_token); }
  // No worker is started here: all are of other machines, and Start waits for none.
  bool has_workers_elsewhere = false;
};

class LocalCluster {
 public:
  // Unavailable, with the end of its log, when a child ends before the cluster is up; DeadlineExceeded, with the end of
  // a log of one that isn't, after start_timeout_s; NotFound when the programs are not found; ResourceExhausted when an
  // arena does not fit the host; FailedPrecondition where the processes that a killed owner has left have other flags,
  // or their owner lives. An error leaves what a killed owner has left as it was.
  static absl::StatusOr<LocalCluster> Start(const ClusterOptions& options);
  // Stops it.
  ~LocalCluster();
  LocalCluster(LocalCluster&&) noexcept;
  LocalCluster& operator=(LocalCluster&&) noexcept;

  absl::StatusOr<Session> Connect() const;
  // The processes that a killed owner had left, and this one goes on with; "" where that is nothing: "the coordinator,
  // process 7, and 4 of 4 workers".
  const std::string& taken_over() const;
  // Carries the token: "unix:/path#token=HEX".
  const std::string& address() const;
  // The same with the admin's token.
  std::string admin_address() const;
  // The path of the program: "worker", else the coordinator's.
  std::string Program(const std::string& role) const;
  int coordinator_pid() const;
  const std::vector<int>& worker_pids() const;
  // The end of what a child wrote to stderr: -1 the coordinator, else a worker.
  std::string LogTail(int worker) const;
  // A process that has ended: a worker's number, or -1 the coordinator; "killed by signal 9 (SIGKILL)".
  struct Ended {
    int worker;
    std::string reason;
  };
  // The processes that have ended since the last call.
  std::vector<Ended> TakeEnded();
  // Starts a worker that has ended again, in its place; it joins with its number. worker_pids() has the new process.
  absl::Status StartWorker(int worker);
  // Starts the coordinator again that has ended, on its state folder. FailedPrecondition while it runs, or where there
  // is no such folder; else the errors of Start.
  absl::Status StartCoordinator();
  // The command by which a shell would start a worker with this number; carries the workers' token.
  std::string JoinCommand(int worker) const;
  // Ends the processes (they are killed after 3 s) and removes the sockets. Twice is fine.
  void Stop();

 private:
  struct State;
  explicit LocalCluster(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tessera
