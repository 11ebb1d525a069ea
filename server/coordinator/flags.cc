#include "server/coordinator/flags.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <tuple>

#include <CLI/CLI.hpp>

#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/coordinator/rpc/listeners.h"
#include "server/coordinator/tenants/tenants_file.h"
#include "server/process/config_file.h"
#include "server/process/tokens.h"

namespace tessera {
namespace {

constexpr int64_t kIdleCheckUs = 4'000'000;  // docs/limits.md: idle_check_us
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
  const std::string& viewer = options.viewer_token;
  if (!viewer.empty() && (viewer == options.token || viewer == options.join_token || viewer == options.admin_token)) {
    return absl::InvalidArgumentError("TESSERA_VIEWER_TOKEN is another one's token, too");
  }
  const bool has_readers = !viewer.empty() || !options.admin_token.empty() || !options.tenants_path.empty();
  if (options.listen_http.starts_with("tls://") && !has_readers) {
    return absl::InvalidArgumentError(
        StrCat("--listen-http ", options.listen_http,
               ": nobody could read it: it takes a viewer's token (TESSERA_VIEWER_TOKEN, or --tenants FILE)"));
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

// As they are given; the options have them in other units.
struct Seconds {
  double worker_timeout = 10;
  double work_timeout = 60;
  double spill_retry = 10;
  double handshake_timeout = 10;
};

// Flags for workers that have one address and one secret.
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
      "descriptor; else TESSERA_TOKEN, TESSERA_JOIN_TOKEN, TESSERA_ADMIN_TOKEN and TESSERA_VIEWER_TOKEN of the\n"
      "environment");
  app.add_option("--token", tokens.client, "clients' token (better: --tokens)");
  app.add_option("--join-token", tokens.join, "workers' token (better: --tokens)");
  app.add_option("--admin-token", tokens.admin, "admins' token (better: --tokens); none: nobody is admin");
  app.add_option("--viewer-token", tokens.viewer, "token for metrics and the page over TLS (better: --tokens)");
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

void AddLimitOptions(CLI::App& app, CoordinatorOptions& options, Seconds& seconds) {
  app.add_option("--worker-timeout", seconds.worker_timeout, "seconds after which a silent worker is killed")
      ->check(CLI::Range(0.5, 1e6))  // some heartbeats at least
      ->capture_default_str();
  app.add_option(
         "--work-timeout", seconds.work_timeout,
         "seconds after which a worker that answers, has work and makes no progress is probed; one whose device\n"
         "then does nothing is killed")
      ->check(CLI::Range(0.1, 86'400.0))
      ->capture_default_str();
  app.add_option("--spill-retry", seconds.spill_retry,
                 "seconds for which a worker that could not write a file for a tensor is asked for no other one")
      ->check(CLI::Range(0.001, 86'400.0))
      ->capture_default_str();
  app.add_option("--max-connections", options.max_connections, "open connections")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--handshake-timeout", seconds.handshake_timeout, "seconds in which a connection must show its token")
      ->check(CLI::Range(0.01, 86'400.0))
      ->capture_default_str();
  app.add_option("--max-outstanding", options.config.max_outstanding_per_worker,
                 "instructions issued to a worker and not reported")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--max-outstanding-us", options.config.max_outstanding_us_per_worker,
                 "microseconds of predicted work issued to a worker and not reported")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--max-outstanding-us-shared", options.config.max_outstanding_us_shared,
                 "the same while two tenants compete")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--max-segment-ops", options.config.max_segment_ops,
                 "calls of a batch that are planned as one; 1: each call by itself")
      ->check(CLI::Range(int64_t{1}, int64_t{256}))
      ->capture_default_str();
  app.add_option("--max-profiled-runs", options.config.max_profiled_runs,
                 "workers' parts of ops whose times are remembered, of each session")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
}

void AddStateOptions(CLI::App& app, CoordinatorOptions& options) {
  app.add_option("--state", options.state_folder,
                 "keep the log of all events in this folder, and go on with what stands there: sessions, tensors and\n"
                 "work survive the end of this process, while workers with --outlive and clients with a lease wait");
  app.add_option_function<std::string>(
         "--state-level", [&options](const std::string& level) { options.syncs_state = level == "disk"; },
         "with --state, what the log survives: the end of every process (process), or that of the machine, too "
         "(disk):\n"
         "then nothing is answered before it is on the disk")
      ->check(CLI::IsMember({"process", "disk"}))
      ->default_str("process");
  app.add_option("--snapshot-after", options.snapshot_after_s,
                 "with --state: seconds of work behind the last snapshot, of which a restart repeats about as many")
      ->check(CLI::Range(0.001, 86'400.0))
      ->capture_default_str();
  app.add_option("--inspect", options.inspected,
                 "say what a state folder has, and end; its coordinator may be running");
}

}  // namespace

std::optional<int> ReadFlags(int argc, char** argv, CoordinatorOptions& options, EnrolOptions& enrol) {
  CLI::App app{
      "tessera-coordinator: holds meshes, placements and memory of a cluster, plans and issues operations.\n"
      "Example:\n  tessera-coordinator --listen unix:/run/tessera/socket --tokens /etc/tessera/tokens"};
  ServerTokens tokens;
  std::string tokens_from;
  Seconds seconds;
  app.add_option("--listen", options.listen,
                 "address to serve: unix:/path, or tls://host:port for clients from anywhere; may be given again")
      ->allow_extra_args(false);
  app.add_option("--listen-workers", options.listen_workers,
                 "address for workers of other hosts, who show certificates: tls://host:port")
      ->allow_extra_args(false);
  app.add_option("--tls-cert", options.tls.certificate,
                 "the server's certificate, a PEM file; read again when it changes, and at SIGHUP");
  app.add_option("--tls-key", options.tls.key, "its key, a PEM file");
  app.add_option("--tls-ca", options.tls.ca, "who signs the workers' certificates, a PEM file");
  AddEnrolOptions(app, enrol);
  AddTokenOptions(app, tokens, tokens_from);
  AddSessionOptions(app, options);
  AddLimitOptions(app, options, seconds);
  app.add_option("--tenants", options.tenants_path,
                 "TOML file of tenants, their limits and tokens; read again when it changes, and at SIGHUP");
  CLI::Option* const journal = app.add_option("--journal", options.journal_path, "write every event to this file");
  app.add_flag("--journal-digest", options.keeps_digest, "at the end, write a digest of the effects to FILE.digest")
      ->needs(journal);
  AddStateOptions(app, options);
  app.add_option(
      "--audit", options.audit_path,
      "database (SQLite) of who did what, and of what sessions used; FILE.jsonl has the first as JSON lines");
  app.add_option("--audit-max-rows", options.audit_rows,
                 "rows that each table of that database keeps: the oldest go (docs/operate.md)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  app.add_option(
      "--listen-http", options.listen_http,
      "address where the page, /metrics, /healthz and /readyz are: of loopback, as 127.0.0.1:9464 (0: any free\n"
      "port), or tls://host:port with --tls-cert and --tls-key, where viewers and admins show their token");
  app.add_option("--stop-timeout", options.stop_timeout_s,
                 "seconds in which what was issued may end, once SIGTERM has come; a second one ends at once")
      ->check(CLI::Range(0.0, 86'400.0))
      ->capture_default_str();
  app.add_option("--replay", options.replay, "read a journal, print the digest of its effects, and end");
  AddParentFlags(app, options.exit_with_parent_fd, options.outlive_parent_s);
  app.set_version_flag("--version", kServerVersion);
  AddLogFlags(app, options.log);
  ConfigFile config(app, "TESSERA_COORDINATOR");
  if (const std::optional<int> status = config.Parse(argc, argv); status.has_value()) return status;
  HideTokenArguments(argc, argv);
  SetUpLog("tessera-coordinator", options.log);
  if (!options.replay.empty() || !options.inspected.empty()) return std::nullopt;
  if (app.count("--max-sessions-per-uid") == 0) {
    options.config.max_sessions_per_uid = (options.config.max_sessions * 3 + 3) / 4;
  }
  if (!options.state_folder.empty() && app.count("--session-lease") == 0) options.lease_s = kLeaseWithStateS;
  if (!options.listen_http.empty()) options.config.idle_check_us = kIdleCheckUs;
  options.long_lease_s = std::min(options.long_lease_s, options.max_lease_s);
  options.handshake_timeout_ms = static_cast<int64_t>(seconds.handshake_timeout * 1e3);
  options.config.worker_timeout_us = static_cast<int64_t>(seconds.worker_timeout * 1e6);
  options.config.spill_retry_us = static_cast<int64_t>(seconds.spill_retry * 1e6);
  options.config.work_timeout_us = static_cast<int64_t>(seconds.work_timeout * 1e6);
  options.epoch = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
  absl::Status usage = TakeTokens(tokens_from, tokens);
  std::tie(options.token, options.join_token, options.admin_token, options.viewer_token) =
      std::tie(tokens.client, tokens.join, tokens.admin, tokens.viewer);
  usage.Update(CheckUsage(options));
  if (usage.ok() && !options.tenants_path.empty()) usage = ReadTenants(options.tenants_path).status();
  if (!usage.ok()) {
    SayFatal(config.Located(std::string(usage.message())));
    return 2;
  }
  if (config.is_check()) return config.SayGood();
  return std::nullopt;
}

}  // namespace tessera
