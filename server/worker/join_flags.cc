#include "server/worker/join_flags.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include <spdlog/spdlog.h>

#include "absl/strings/str_split.h"
#include "schemas/host/host_identity.h"
#include "schemas/link/authority.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"
#include "server/worker/arena.h"

namespace tessera {
namespace {

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

bool IsTransportDefault(const WorkerOptions& options) { return options.transport == WorkerOptions{}.transport; }

// As a part of an address: a number of IPv6 stands in brackets.
std::string InAddress(const std::string& host) {
  return host.find(':') == std::string::npos ? host : StrCat("[", host, "]");
}

}  // namespace

void AddJoinOptions(CLI::App& app, WorkerOptions& options, ServerTokens& tokens, std::string& tokens_from) {
  CLI::Option* const coordinator =
      app.add_option("--coordinator", options.coordinator,
                     "address of the coordinator: unix:/path, or tls://host:port of its --listen-workers");
  CLI::Option* const join =
      app.add_option(
             "--join", options.join,
             "address of a coordinator for clients, tls://host:port: the worker gets a certificate and a number\n"
             "there, and joins; instead of --coordinator, --tls-cert, --tls-key and addresses of its own")
          ->excludes(coordinator);
  app.add_option(
         "--ca-pin", options.ca_pin,
         "sha256:HEX of the CA that has signed the coordinator's certificate, as tessera up prints it; nothing\n"
         "is sent to a server that has another one (else --tls-ca)")
      ->needs(join);
  app.add_option("--join-token-file", options.join_token_file,
                 "a file that has the workers' token and nothing else; read again for each renewal")
      ->needs(join);
  app.add_option("--advertise", options.advertise,
                 "name or number by which others reach this host (else the address that reaches the coordinator); more "
                 "names that its certificate is to have stand behind it, with commas")
      ->needs(join);
  app.add_option(
      "--tokens", tokens_from,
      "where the workers' token is: a file with a line TESSERA_JOIN_TOKEN=... that its user alone may read, or\n"
      "fd:N, an inherited descriptor; else TESSERA_JOIN_TOKEN of the environment");
  app.add_option("--join-token", tokens.join, "workers' token (better: --tokens)");
  app.add_option("--join-timeout", options.join_timeout_s, "seconds to wait for a coordinator that listens")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  CLI::Option* const index =
      app.add_option("--index", options.index, "wanted worker number; the next free one when not given")
          ->check(CLI::Range(-1, kMaxWorkers - 1));
  app.add_option("--index-from", options.index_from,
                 "where the number is: a variable like SLURM_PROCID, hostname-ordinal (3 of tessera-worker-3), or\n"
                 "hostname-ordinal*8+I of the worker with number I of a host's eight")
      ->excludes(index);
}

void AddShareOptions(CLI::App& app, WorkerOptions& options) {
  app.add_option(
      "--memory", options.memory,
      "bytes of the arena (1GiB, 512MiB, 1000000), or this worker's part of a share of the memory that the\n"
      "host, the container or Slurm lets it have (0.8, 80%); when not given 1GiB, and of a GPU what is free,\n"
      "shared evenly with the host's other workers, less a reserve");
  app.add_option("--grace", options.grace_s,
                 "seconds that uploads and downloads under way have to end at SIGTERM; a second signal ends it at once")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
}

absl::Status TakeShare(const EngineFacts& found, WorkerOptions& options) {
  EngineFacts facts = found;
  if (options.device != "cpu") facts.memory_bytes = 0;  // that is of the host
  std::string taken;
  const auto tell = [&taken](const std::string& what) { StrAppend(&taken, taken.empty() ? "" : ", ", what); };
  if (!options.index_from.empty()) {
    TESSERA_ASSIGN_OR_RETURN(options.index, IndexFrom(options.index_from, HostName(), ReadVariable));
    if (options.index >= kMaxWorkers) {
      return absl::InvalidArgumentError(StrCat("--index-from ", options.index_from, ": ", options.index,
                                               " is no worker's number: 0 to ", kMaxWorkers - 1));
    }
    tell(StrCat("number ", options.index, " (", options.index_from, ")"));
  }
  if (!options.memory.empty()) {
    TESSERA_ASSIGN_OR_RETURN(options.memory_bytes, ReadMemory(options.memory, facts, options.workers_on_host));
    if (options.memory_bytes > kMaxArenaBytes) {
      return absl::InvalidArgumentError(
          StrCat("--memory ", options.memory, ": an arena has at most ", kMaxArenaBytes, " bytes"));
    }
    if (options.memory.find_first_not_of("0123456789.%") == std::string::npos && facts.memory_bytes > 0) {
      tell(StrCat("memory ", options.memory_bytes, " bytes (--memory ", options.memory, "; ", facts.memory_from,
                  " lets it have ", facts.memory_bytes, ")"));
    }
  }
  const double host_cpus = std::max(1u, std::thread::hardware_concurrency());
  if (options.threads <= 0 && facts.cpus > 0 && facts.cpus < host_cpus) {
    options.threads = std::max(1, static_cast<int>(std::floor(facts.cpus)) / std::max(1, options.workers_on_host));
    tell(StrCat("threads ", options.threads, " (", facts.cpus_from, " lets it have ", facts.cpus, " of ", host_cpus,
                " processors)"));
  }
  if (!facts.node.empty() && options.host_id.empty()) {
    options.host_id = StrCat(HostIdentity(), "/", facts.node);
    tell(StrCat("host ", facts.node, " (SLURMD_NODENAME)"));
  }
  if (!taken.empty()) spdlog::info("taken: {}", taken);
  return absl::OkStatus();
}

EnrolmentOptions EnrolmentOf(const WorkerOptions& options) {
  EnrolmentOptions enrolment;
  enrolment.address = options.join;
  enrolment.ca_pin = options.ca_pin;
  enrolment.ca_file = options.tls.ca;
  enrolment.token = options.join_token;
  enrolment.token_file = options.join_token_file;
  enrolment.index = options.index;
  if (!options.advertise.empty()) enrolment.hosts = absl::StrSplit(options.advertise, ',');
  const std::string name = HostName();
  const bool is_named = std::find(enrolment.hosts.begin(), enrolment.hosts.end(), name) != enrolment.hosts.end();
  if (CheckHost(name).ok() && name != "localhost" && !is_named) enrolment.own_name = name;
  enrolment.timeout_s = options.join_timeout_s;
  return enrolment;
}

void TakeEnrolment(const Enrolment& enrolment, WorkerOptions& options) {
  options.tls = enrolment.files();
  options.join_token = enrolment.token();
  options.index = enrolment.index();
  options.coordinator = enrolment.coordinator();
  if (IsTransportDefault(options)) options.transport = "shm+tls";
  const bool is_advertised = !options.advertise.empty();
  const std::string& host = enrolment.host();
  if (options.message_listen.empty() && UsesTls(options)) {
    options.message_listen = is_advertised ? "0.0.0.0" : host;
    if (options.message_advertise.empty()) options.message_advertise = host;
  }
  if (options.data_listen.empty()) {
    options.data_listen = StrCat("tls://", is_advertised ? "0.0.0.0" : InAddress(host), ":0");
    if (is_advertised && options.data_advertise.empty()) options.data_advertise = InAddress(host);
  }
  spdlog::info("worker {}: enrolled at {}; others reach it by {}, {}", options.index, options.join, host,
               is_advertised ? "as --advertise says" : "the address that reaches the coordinator");
}

}  // namespace tessera
