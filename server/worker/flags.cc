#include "server/worker/flags.h"

#include <utility>

#include <CLI/CLI.hpp>

#include "schemas/host/host_identity.h"
#include "schemas/types/limits.h"
#include "server/process/config_file.h"
#include "server/process/engine_facts.h"
#include "server/process/tokens.h"
#include "server/worker/arena.h"
#include "server/worker/join_flags.h"

namespace tessera {
namespace {

constexpr int kMaxThreads = 1024;  // docs/limits.md: threads

void AddTransportOptions(CLI::App& app, WorkerOptions& options) {
  app.add_option(
         "--transport", options.transport,
         "how peers are reached: shm (mapped memory, all on one host), ucx (messages: by unix sockets on the\n"
         "own host, by UCX to others), or shm+ucx (mapped memory on the own host, messages to others); tls and\n"
         "shm+tls are the same with TLS in place of UCX, for networks that others reach, too; nccl and shm+nccl are\n"
         "ucx and shm+ucx, with the bytes between GPUs by NCCL")
      ->check(CLI::IsMember(TransportNames([](const Transport&) { return true; })))
      ->capture_default_str();
  app.add_flag_callback(
      "--trusted-network", [&options]() { options.trusted_network = TrustedNetwork::kNetDevices; },
      "workers of other hosts are reached by UCX over --net-devices. Messages are not encrypted, and whoever reaches\n"
      "the port writes into this process: only where all who do are trusted");
  app.add_option("--message-listen", options.message_listen,
                 "host[:port] of this host where workers of other hosts reach it over TLS (no port: any that is free)");
  app.add_option("--message-advertise", options.message_advertise,
                 "the host's name or number by which they do, where that is another");
  app.add_option("--net-devices", options.net_devices,
                 "network interfaces of messages to other hosts (eth1, or several with commas)")
      ->capture_default_str();
  app.add_option("--message-stall-timeout", options.message_stall_timeout_s,
                 "seconds without a sign of life after which a connection with messages under way counts as broken")
      ->check(CLI::Range(0.01, 86400.0))
      ->capture_default_str();
}

void AddDeviceOptions(CLI::App& app, WorkerOptions& options) {
  app.add_option("--device", options.device, "what it computes on: cpu, or cuda (a GPU, by libcuda.so.1)")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--gpu", options.gpu, "number of the GPU; when not given those of the host in turn, by --index")
      ->check(CLI::Range(-1, 1023));
  app.add_option("--threads", options.threads, "compute threads; 0: cores / workers, at least 1")
      ->check(CLI::Range(0, kMaxThreads));
  app.add_option(
         "--batch-nice", options.batch_nice,
         "added to the niceness of the CPU threads that do long work: short ops, and other processes of the host,\n"
         "go first; 0: none does")
      ->check(CLI::Range(0, 19))
      ->capture_default_str();
  app.add_option("--workers-on-host", options.workers_on_host,
                 "workers that share the host's cores; for threads and spinning")
      ->check(CLI::Range(1, kMaxWorkers))
      ->capture_default_str();
}

void AddFileOptions(CLI::App& app, WorkerOptions& options) {
  app.add_option("--files", options.files,
                 "a folder whose files clients may load from and save to (FOLDER:ro: load from); may be given again")
      ->allow_extra_args(false);
  app.add_option("--spill", options.spill,
                 "a folder for tensors that nobody used lately, when others want their memory; its files have no\n"
                 "names, and go with the process. A local disk, best a fast one");
  app.add_option("--spill-max", options.spill_bytes, "bytes that they may take there (default: 0.8 of what is free)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(int64_t{0}, kMaxArenaBytes));
  app.add_option(
         "--spill-memory", options.spill_memory_bytes,
         "bytes of the host's memory that such tensors of a GPU take before they go to files; pinned, and kept\n"
         "once they were used")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(int64_t{0}, kMaxArenaBytes));
  app.add_option("--file-timeout", options.file_timeout_s,
                 "seconds in which a file system answers nothing, after which a load or save fails by name")
      ->check(CLI::Range(0.01, 86400.0))
      ->capture_default_str();
  app.add_option(
         "--decoder", options.decoder,
         "the Python that reads and writes HDF5, Parquet and zarr files for this worker, in a process beside it;\n"
         "it has the package tessera, and h5py, pyarrow, zarr")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--decoder-memory", options.decoder_memory_bytes, "bytes of address space that it may take")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::Range(kMinDecoderMemoryBytes, kMaxArenaBytes))
      ->capture_default_str();
  app.add_flag("--decoder-unconfined", options.may_decode_unconfined,
               "it runs also where the kernel has no Landlock or no seccomp filters, and then with this user's rights");
}

}  // namespace

std::optional<int> ReadFlags(int argc, char** argv, WorkerOptions& options) {
  CLI::App app{
      "tessera-worker: owns one device of a cluster and does what its coordinator says.\n"
      "Example:\n  tessera-worker --coordinator unix:/run/tessera/socket --memory 4GiB --tokens /etc/tessera/tokens"};
  ServerTokens tokens;
  std::string tokens_from;
  app.add_option("--tls-cert", options.tls.certificate, "the worker's certificate, a PEM file (see tessera certs)");
  app.add_option("--tls-key", options.tls.key, "its key, a PEM file");
  app.add_option("--tls-ca", options.tls.ca, "who signs the others' certificates, a PEM file");
  app.add_option("--data-listen", options.data_listen,
                 "address where clients of other hosts bring and fetch bytes: tls://host:port (0: any free port)");
  app.add_option("--data-advertise", options.data_advertise,
                 "host[:port] by which they reach it, where that is another");
  AddJoinOptions(app, options, tokens, tokens_from);
  AddShareOptions(app, options);
  AddDeviceOptions(app, options);
  AddTransportOptions(app, options);
  app.add_option("--socket-dir", options.socket_dir, "folder of the worker's own socket")->capture_default_str();
  AddFileOptions(app, options);
  app.add_option("--host-id", options.host_id, "memory is mapped between workers that give the same");
  app.add_option(
         "--outlive", options.outlive_s,
         "seconds for which it goes on when its coordinator is gone, for one that goes on with the same --state;\n"
         "then it ends with status 3. 0: it ends at once")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  AddParentFlags(app, options.exit_with_parent_fd, options.outlive_parent_s);
  AddLogFlags(app, options.log);
  ConfigFile config(app, "TESSERA_WORKER");
  if (const std::optional<int> status = config.Parse(argc, argv); status.has_value()) return status;
  SetUpLog("tessera-worker", options.log);
  HideTokenArguments(argc, argv);
  absl::Status usage = TakeTokens(tokens_from, tokens);
  if (options.coordinator.empty() && options.join.empty()) {
    usage.Update(absl::InvalidArgumentError("--coordinator or --join is required"));
  }
  usage.Update(TakeShare(FindEngineFacts("", ReadVariable), options));
  if (!usage.ok()) {
    SayFatal(config.Located(std::string(usage.message())));
    return 2;
  }
  if (options.host_id.empty()) options.host_id = HostIdentity();
  options.join_token = tokens.join;
  if (config.is_check()) return config.SayGood();
  return std::nullopt;
}

}  // namespace tessera
