// tessera-coordinator: builds the parts and wires them.

#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <kj/async-io.h>
#include <kj/async-unix.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <CLI/CLI.hpp>

#include "schemas/codec/descriptor.h"
#include "schemas/codec/two_party.h"
#include "schemas/types/address.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/enroller.h"
#include "server/coordinator/rpc/http_loop.h"
#include "server/coordinator/rpc/hub.h"
#include "server/coordinator/rpc/listeners.h"
#include "server/coordinator/rpc/state_folder.h"
#include "server/coordinator/rpc/tenants_watcher.h"
#include "server/process/tokens.h"

namespace tessera {
namespace {

// Sessions that would have none get it: a client waits out a restart.
constexpr double kLeaseWithStateS = 60;  // docs/limits.md: session_lease

absl::Status CheckUsage(const CoordinatorOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckListening(options));
  const bool has_tokens = !options.token.empty() && !options.join_token.empty();
  if (!has_tokens && options.tenants_path.empty()) {
    return absl::InvalidArgumentError(
        "a token for clients and one for workers are needed: TESSERA_TOKEN, TESSERA_JOIN_TOKEN (--tokens, or the "
        "environment), or --tenants FILE");
  }
  const bool is_shared = options.admin_token == options.token || options.admin_token == options.join_token;
  if (is_shared && !options.admin_token.empty()) {
    return absl::InvalidArgumentError("TESSERA_ADMIN_TOKEN is another one's token, too");
  }
  if (!options.state_folder.empty() && !options.journal_path.empty()) {
    return absl::InvalidArgumentError("--journal: the log of --state is one");
  }
  if (options.lease_s > options.max_lease_s) {
    return absl::InvalidArgumentError(
        StrCat("--session-lease ", options.lease_s, " is more than --max-session-lease ", options.max_lease_s));
  }
  return absl::OkStatus();
}

int Replay(const std::string& path) {
  auto result = ReplayJournal(path);
  if (!result.ok()) {
    std::fprintf(stderr, "tessera-coordinator: %s\n", std::string(result.status().message()).c_str());
    return 1;
  }
  std::printf("replay: %llu events, %llu effects, digest %s\n", static_cast<unsigned long long>(result->events),
              static_cast<unsigned long long>(result->effects), result->digest.c_str());
  if (result->torn_bytes == 0) return 0;
  std::fprintf(stderr, "tessera-coordinator: the last %llu bytes of %s are no whole event, and were left out\n",
               static_cast<unsigned long long>(result->torn_bytes), path.c_str());
  return 0;
}

int Inspect(const std::string& folder) {
  spdlog::set_default_logger(spdlog::stderr_logger_mt("tessera-coordinator"));
  const StateReport report = DescribeStateFolder(folder);
  std::fputs(report.text.c_str(), stdout);
  if (report.status.ok()) return 0;
  std::fprintf(stderr, "a start is refused: %s\n", std::string(report.status.message()).c_str());
  return 1;
}

absl::StatusOr<std::unique_ptr<Core>> MakeCore(const CoordinatorOptions& options, std::optional<StateFolder>& state) {
  if (state.has_value()) return state->Load(options.config);
  std::unique_ptr<JournalWriter> journal;
  if (!options.journal_path.empty()) {
    TESSERA_ASSIGN_OR_RETURN(
        journal, JournalWriter::Create(options.journal_path, options.config,
                                       options.keeps_digest ? JournalDigest::kWritten : JournalDigest::kNone));
  }
  return std::make_unique<Core>(options.config, std::move(journal));
}
constexpr int64_t kIdleCheckUs = 4'000'000;  // docs/limits.md: idle_check_us

kj::Promise<void> ReadAtHangUp(kj::UnixEventPort& port, TenantsWatcher& watcher) {
  return port.onSignal(SIGHUP).then([&port, &watcher](siginfo_t&&) {
    watcher.ReadNow();
    return ReadAtHangUp(port, watcher);
  });
}

// Never ends.
kj::Promise<void> WatchTenants(const CoordinatorOptions& options, kj::AsyncIoContext& io, TenantsWatcher& watcher,
                               Hub& hub) {
  if (options.tenants_path.empty()) return kj::NEVER_DONE;
  return watcher.Run(*io.lowLevelProvider, [&hub](TenantsFile file) { hub.SetTenants(std::move(file)); })
      .exclusiveJoin(ReadAtHangUp(io.unixEventPort, watcher));
}

absl::StatusOr<std::unique_ptr<Enroller>> MakeEnroller(const EnrolOptions& enrol, const CoordinatorOptions& options) {
  if (enrol.ca_key.empty()) return nullptr;
  if (!options.listen_workers.empty()) return Enroller::Make(enrol, options.tls);
  return absl::InvalidArgumentError("--ca-key is for workers of other hosts: --listen-workers says where they join");
}

int Serve(const CoordinatorOptions& options, const EnrolOptions& enrol) {
  // Before any socket is taken: a coordinator that has the folder has those, too.
  std::optional<StateFolder> state;
  if (!options.state_folder.empty()) {
    auto opened = StateFolder::Open(options.state_folder);
    if (!opened.ok()) {
      std::fprintf(stderr, "tessera-coordinator: %s\n", std::string(opened.status().message()).c_str());
      return 1;
    }
    state = *std::move(opened);
    state->SnapshotAfter(options.snapshot_after_s);
  }
  kj::UnixEventPort::captureSignal(SIGTERM);
  kj::UnixEventPort::captureSignal(SIGINT);
  if (!options.tenants_path.empty()) kj::UnixEventPort::captureSignal(SIGHUP);
  absl::StatusOr<TenantsFile> tenants = TenantsFile{};
  TenantsWatcher watcher(options.tenants_path);
  if (!options.tenants_path.empty()) tenants = ReadTenants(options.tenants_path);
  if (!tenants.ok()) {
    std::fprintf(stderr, "tessera-coordinator: %s\n", std::string(tenants.status().message()).c_str());
    return 2;
  }
  auto enroller = MakeEnroller(enrol, options);
  if (!enroller.ok()) {
    std::fprintf(stderr, "tessera-coordinator: %s\n", std::string(enroller.status().message()).c_str());
    return 2;
  }
  auto io = kj::setupAsyncIo();
  io.waitScope.setBusyPollInterval(kTurnsBetweenLooks);
  RaiseDescriptorLimit();
  umask(0077);
  auto opened = Listeners::Open(options, io);
  if (!opened.ok()) {
    std::fprintf(stderr, "tessera-coordinator: %s\n", std::string(opened.status().message()).c_str());
    return absl::IsInvalidArgument(opened.status()) ? 2 : 1;  // what was asked for can't be, or can't be now
  }
  Listeners& listeners = **opened;
  if (*enroller != nullptr) (*enroller)->set_workers_port(listeners.workers_port());
  // An address or a certificate that is refused leaves a former journal as it is.
  auto core = MakeCore(options, state);
  if (!core.ok()) {
    std::fprintf(stderr, "tessera-coordinator: %s\n", std::string(core.status().message()).c_str());
    listeners.RemoveSockets();
    return 1;
  }
  Hub hub(options, io.provider->getTimer(), io.unixEventPort, *std::move(core));
  if (state.has_value()) hub.KeepIn(*state);
  for (const std::string& address : listeners.addresses()) {
    std::printf("tessera-coordinator listening on %s\n", address.c_str());
  }
  std::unique_ptr<HttpLoop> http;
  if (!options.listen_http.empty()) {
    auto made = HttpLoop::Start(options.listen_http, kj::getCurrentThreadExecutor(), [&hub]() {
      MetricsSnapshot snapshot = SnapshotOf(hub.machine());
      snapshot.uptime_s = hub.uptime_s();
      snapshot.loop_s = hub.loop_s();
      snapshot.version = kServerVersion;
      return snapshot;
    });
    if (!made.ok()) {
      std::fprintf(stderr, "tessera-coordinator: %s\n", std::string(made.status().message()).c_str());
      listeners.RemoveSockets();
      return absl::IsInvalidArgument(made.status()) ? 2 : 1;
    }
    http = *std::move(made);
    std::printf("tessera-coordinator tells metrics and health on http://%s\n", http->address().c_str());
  }
  if (!options.tenants_path.empty()) hub.SetTenants(*std::move(tenants));
  for (const std::string& address : listeners.addresses()) {
    std::printf("tessera-coordinator listening on %s\n", address.c_str());
  }
  std::fflush(stdout);
  auto& port = io.unixEventPort;
  auto stop = port.onSignal(SIGTERM)
                  .ignoreResult()
                  .exclusiveJoin(port.onSignal(SIGINT).ignoreResult())
                  .exclusiveJoin(WhenPipeCloses(*io.lowLevelProvider, options.exit_with_parent_fd));
  KJ_IF_MAYBE (exception, kj::runCatchingExceptions([&]() {
                 listeners.Run(hub, enroller->get())
                     .exclusiveJoin(hub.RunTicks())
                     .exclusiveJoin(WatchTenants(options, io, watcher, hub))
                     .exclusiveJoin(kj::mv(stop))
                     .wait(io.waitScope);
               })) {
    spdlog::error("stopping: {}", exception->getDescription().cStr());
  }
  http.reset();
  listeners.RemoveSockets();
  hub.SaveNow();
  // The parent's folder of sockets: whoever leaves it last takes it along, should the parent be gone.
  if (options.exit_with_parent_fd >= 0) listeners.RemoveFolders();
  hub.Stop();
  opened->reset();  // connections speak of the hub until they end
  return 0;
}

// What a worker shows that has one address and one secret.
void AddEnrolOptions(CLI::App& app, EnrolOptions& enrol) {
  app.add_option("--ca-key", enrol.ca_key,
                 "key of the CA of --tls-ca, a PEM file: workers with --join get their certificates from here");
  app.add_option("--leaf-lifetime", enrol.leaf_lifetime_s,
                 "how long such a certificate is good (12h, 30m, 90s); workers have it renewed before")
      ->transform(CLI::AsNumberWithUnit(std::map<std::string, double>{{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}}))
      ->check(CLI::Range(2.0, 366.0 * 86400))
      ->default_str("12h");
  app.add_option("--join-names", enrol.names,
                 "a host or a pattern like node* that such a certificate may name; may be given again (none: any)")
      ->allow_extra_args(false);
  app.add_option(
         "--first-number", enrol.first_number,
         "numbers below it are given to none of them that doesn't ask for one: tessera up's own workers have those")
      ->check(CLI::Range(0, int{kMaxMeshSize}))
      ->capture_default_str();
  app.add_option("--max-workers", enrol.max_workers, "numbers that are given to workers with --join")
      ->check(CLI::Range(1, int{kMaxMeshSize}))
      ->capture_default_str();
}

void AddTokenOptions(CLI::App& app, ServerTokens& tokens, std::string& from) {
  app.add_option(
      "--tokens", from,
      "where the tokens are: a file of lines NAME=VALUE that its user alone may read, or fd:N, an inherited\n"
      "descriptor; else TESSERA_TOKEN, TESSERA_JOIN_TOKEN and TESSERA_ADMIN_TOKEN of the environment");
  app.add_option("--token", tokens.client, "clients' token (better: --tokens)");
  app.add_option("--join-token", tokens.join, "workers' token (better: --tokens)");
  app.add_option("--admin-token", tokens.admin, "admins' token (better: --tokens); none: nobody is admin");
}

void AddSessionOptions(CLI::App& app, CoordinatorOptions& options) {
  app.add_option("--max-session-lease", options.max_lease_s, "seconds of a lease that a client may ask for")
      ->check(CLI::Range(0.0, 86'400.0))
      ->capture_default_str();
  app.add_option("--session-lease", options.lease_s, "seconds that a session without a connection is kept")
      ->check(CLI::Range(0.0, 86'400.0))
      ->capture_default_str();
  app.add_option("--tls-session-lease", options.long_lease_s, "the same, of a session that came by TLS, or has a name")
      ->check(CLI::Range(0.0, 86'400.0))
      ->capture_default_str();
  app.add_option("--session-silence", options.session_silence_s,
                 "seconds after which a client that says nothing counts as gone; 0: never")
      ->check(CLI::Range(0.0, 86'400.0))
      ->capture_default_str();
  app.add_option("--max-sessions", options.config.max_sessions, "sessions of clients")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--max-sessions-per-uid", options.config.max_sessions_per_uid,
                 "of them, sessions of one user's clients on unix sockets; when not given three quarters")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app.add_option("--max-all-event-bytes", options.config.max_all_event_bytes,
                 "bytes of the events of all sessions that their clients have not acknowledged")
      ->check(CLI::Range(int64_t{1} << 20, int64_t{1} << 40))
      ->capture_default_str();
  app.add_flag("--debug-fill", options.config.debug_fill,
               "for tests: memory that is given back is filled with bytes 255 before it is anybody's again");
}

// What is issued, planned and remembered at once.
void AddWorkOptions(CLI::App& app, CoordinatorConfig& config) {
  app.add_option("--max-outstanding", config.max_outstanding_per_worker,
                 "instructions issued to a worker and not reported")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--max-outstanding-us", config.max_outstanding_us_per_worker,
                 "microseconds of predicted work issued to a worker and not reported")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--max-outstanding-us-shared", config.max_outstanding_us_shared, "the same while two tenants compete")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--max-segment-ops", config.max_segment_ops,
                 "calls of a batch that are planned as one; 1: each call by itself")
      ->check(CLI::Range(int64_t{1}, int64_t{256}))
      ->capture_default_str();
  app.add_option("--max-profiled-runs", config.max_profiled_runs,
                 "workers' parts of ops whose times are remembered, of each session")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
}

void AddStateOptions(CLI::App& app, CoordinatorOptions& options) {
  app.add_option("--state", options.state_folder,
                 "keep the log of all events in this folder, and go on with what stands there: sessions, tensors and\n"
                 "work survive the end of this process, while workers with --outlive and clients with a lease wait");
  app.add_option("--snapshot-after", options.snapshot_after_s,
                 "with --state: seconds of work behind the last snapshot, of which a restart repeats about as many")
      ->check(CLI::Range(0.001, 86'400.0))
      ->capture_default_str();
}

int Main(int argc, char** argv) {
  CLI::App app{
      "tessera-coordinator: holds meshes, placements and memory of a cluster, plans and issues operations.\n"
      "Example:\n  tessera-coordinator --listen unix:/run/tessera/socket --tokens /etc/tessera/tokens"};
  CoordinatorOptions options;
  EnrolOptions enrol;
  ServerTokens tokens;
  std::string replay, inspected, tokens_from;
  double worker_timeout_s = 10, work_timeout_s = 60;
  double handshake_timeout_s = 10;
  app.add_option("--listen", options.listen,
                 "address to serve: unix:/path, or tls://host:port for clients from anywhere; may be given again")
      ->allow_extra_args(false);
  app.add_option("--listen-workers", options.listen_workers,
                 "address for workers of other hosts, who show certificates: tls://host:port")
      ->allow_extra_args(false);
  app.add_option("--tls-cert", options.tls.certificate, "the server's certificate, a PEM file");
  app.add_option("--tls-key", options.tls.key, "its key, a PEM file");
  app.add_option("--tls-ca", options.tls.ca, "who signs the workers' certificates, a PEM file");
  AddEnrolOptions(app, enrol);
  AddTokenOptions(app, tokens, tokens_from);
  AddSessionOptions(app, options);
  app.add_option("--worker-timeout", worker_timeout_s, "seconds after which a silent worker is killed")
      ->check(CLI::Range(0.5, 1e6))  // some heartbeats at least
      ->capture_default_str();
  app.add_option(
         "--work-timeout", work_timeout_s,
         "seconds after which a worker that answers, has work and makes no progress is probed; one whose device\n"
         "then does nothing is killed")
      ->check(CLI::Range(0.1, 86'400.0))
      ->capture_default_str();
  app.add_option("--max-connections", options.max_connections, "open connections")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--handshake-timeout", handshake_timeout_s, "seconds in which a connection must show its token")
      ->check(CLI::Range(0.01, 86'400.0))
      ->capture_default_str();
  AddWorkOptions(app, options.config);
  app.add_option("--tenants", options.tenants_path,
                 "TOML file of tenants, their limits and tokens; read again when it changes, and at SIGHUP");
  CLI::Option* const journal = app.add_option("--journal", options.journal_path, "write every event to this file");
  app.add_flag("--journal-digest", options.keeps_digest, "at the end, write a digest of the effects to FILE.digest")
      ->needs(journal);
  AddStateOptions(app, options);
  app.add_option("--listen-http", options.listen_http,
                 "address of loopback where /metrics, /healthz and /readyz are, as 127.0.0.1:9464 (0: any free port)");
  app.add_option("--inspect", inspected, "say what a state folder has, and end; its coordinator may be running");
  app.add_option("--replay", replay, "read a journal, print the digest of its effects, and end");
  app.add_option("--exit-with-parent-fd", options.exit_with_parent_fd, "end when this inherited descriptor is closed");
  app.set_version_flag("--version", kServerVersion);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  HideTokenArguments(argc, argv);
  if (!replay.empty()) return Replay(replay);
  if (!inspected.empty()) return Inspect(inspected);
  spdlog::set_default_logger(spdlog::stderr_logger_mt("tessera-coordinator"));
  if (app.count("--max-sessions-per-uid") == 0) {
    options.config.max_sessions_per_uid = (options.config.max_sessions * 3 + 3) / 4;
  }
  if (!options.state_folder.empty() && app.count("--session-lease") == 0) options.lease_s = kLeaseWithStateS;
  if (!options.listen_http.empty()) options.config.idle_check_us = kIdleCheckUs;
  options.long_lease_s = std::min(options.long_lease_s, options.max_lease_s);
  options.handshake_timeout_ms = static_cast<int64_t>(handshake_timeout_s * 1e3);
  options.config.worker_timeout_us = static_cast<int64_t>(worker_timeout_s * 1e6);
  options.config.work_timeout_us = static_cast<int64_t>(work_timeout_s * 1e6);
  options.epoch = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
  absl::Status usage = TakeTokens(tokens_from, tokens);
  std::tie(options.token, options.join_token, options.admin_token) = std::tie(tokens.client, tokens.join, tokens.admin);
  usage.Update(CheckUsage(options));
  if (!usage.ok()) {
    std::fprintf(stderr, "tessera-coordinator: %s\n", std::string(usage.message()).c_str());
    return 2;
  }
  // A session's memory lies in fast bins after its end until glibc merges a hundred thousand pieces at once, which
  // holds the loop up for 60 ms.
  mallopt(M_MXFAST, 0);
  return Serve(options, enrol);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) { return tessera::Main(argc, argv); }
