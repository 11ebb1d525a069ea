#include "client/cli/up_pool.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/cli/certificates.h"
#include "schemas/host/random_hex.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

bool IsWildcard(const std::string& host) { return host == "0.0.0.0" || host == "::"; }

// Whole or not at all, for its user alone.
absl::Status WriteOwn(const std::string& file, const std::string& text) {
  const std::string half = StrCat(file, ".", getpid(), ".new");
  const int fd = open(half.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  const bool is_written = fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) close(fd);
  if (is_written && rename(half.c_str(), file.c_str()) == 0) return absl::OkStatus();
  const absl::Status status = absl::UnavailableError(StrCat("up: ", file, ": ", std::strerror(errno)));
  if (fd >= 0) unlink(half.c_str());
  return status;
}

// The tokens of the file, or new ones.
absl::Status TakeTokens(const std::string& file, Pool& pool) {
  const std::pair<std::string, std::string*> named[] = {{"TESSERA_TOKEN=", &pool.token},
                                                        {"TESSERA_JOIN_TOKEN=", &pool.join_token},
                                                        {"TESSERA_ADMIN_TOKEN=", &pool.admin_token}};
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    for (const auto& [name, token] : named) {
      if (line.rfind(name, 0) == 0) *token = line.substr(name.size());
    }
  }
  std::string text;
  for (const auto& [name, token] : named) {
    if (token->empty()) *token = RandomHex(16);
    StrAppend(&text, name, *token, "\n");
  }
  return WriteOwn(file, text);
}

}  // namespace

std::string PoolFolder(const std::string& state) {
  if (!state.empty()) return state + "/tls";
  const char* const given = std::getenv("XDG_STATE_HOME");
  if (given != nullptr && *given != '\0') return StrCat(given, "/tessera/pool");
  const char* const home = std::getenv("HOME");
  return StrCat(home == nullptr ? "/tmp" : home, "/.local/state/tessera/pool");
}

absl::StatusOr<Pool> MakePool(const std::string& folder, const Address& listen) {
  Pool pool{folder, listen, listen, IsWildcard(listen.host) ? HostName() : listen.host, "", "", "", ""};
  pool.workers.port = listen.port + 1;
  if (listen.port <= 0 || pool.workers.port > 65535) {
    return absl::InvalidArgumentError(StrCat("up: --listen ", ToText(listen), ": clients have to know the port, and ",
                                             "workers join at the next one: 1 to 65534"));
  }
  std::error_code failed;
  const fs::path parent = fs::path(folder).parent_path();
  if (!parent.empty() && !fs::exists(parent, failed)) {
    const mode_t before = umask(0077);
    fs::create_directories(parent, failed);
    umask(before);
    if (failed) return absl::UnavailableError(StrCat("up: ", parent.string(), ": ", failed.message()));
  }
  std::vector<std::string> hosts = {pool.host};
  for (const std::string& name : {HostName(), std::string("localhost"), std::string("127.0.0.1"), std::string("::1")}) {
    if (CheckHost(name).ok() && name != pool.host) hosts.push_back(name);
  }
  TESSERA_RETURN_IF_ERROR(MakeCertificates(folder, {.hosts = hosts, .days = 365}).status());
  std::ifstream in(folder + "/ca.crt", std::ios::binary);
  TESSERA_ASSIGN_OR_RETURN(pool.pin, PinOf(std::string(std::istreambuf_iterator<char>(in), {})));
  TESSERA_RETURN_IF_ERROR(TakeTokens(folder + "/tokens", pool));
  return pool;
}

absl::Status KeepTokens(const std::string& state, ClusterOptions& options) {
  if (mkdir(state.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::UnavailableError(StrCat("up: --state ", state, ": can't make it: ", std::strerror(errno)));
  }
  Pool kept;
  TESSERA_RETURN_IF_ERROR(TakeTokens(state + "/tokens", kept));
  std::tie(options.token, options.join_token, options.admin_token) =
      std::tie(kept.token, kept.join_token, kept.admin_token);
  return absl::OkStatus();
}

void ServePool(const Pool& pool, ClusterOptions& options) {
  const auto file = [&pool](const char* flag, const char* name) { return StrCat(flag, "=", pool.folder, "/", name); };
  for (const std::string& flag :
       {StrCat("--listen=", ToText(pool.clients)), StrCat("--listen-workers=", ToText(pool.workers)),
        file("--tls-cert", "server.crt"), file("--tls-key", "server.key"), file("--tls-ca", "ca.crt"),
        file("--ca-key", "ca.key"), StrCat("--first-number=", options.workers)}) {
    options.coordinator_flags.push_back(flag);
  }
  const std::string at =
      pool.clients.host.find(':') == std::string::npos ? pool.clients.host : StrCat("[", pool.clients.host, "]");
  for (const std::string& flag :
       {StrCat("--data-listen=tls://", at, ":0"), StrCat("--data-advertise=", pool.host),
        StrCat("--message-listen=", pool.clients.host), StrCat("--message-advertise=", pool.host),
        file("--tls-cert", "worker.crt"), file("--tls-key", "worker.key"), file("--tls-ca", "ca.crt")}) {
    options.worker_flags.push_back(flag);
  }
  options.transport = "shm+tls";
  options.token = pool.token;
  options.join_token = pool.join_token;
  options.admin_token = pool.admin_token;
}

std::string JoinLine(const Pool& pool) {
  const Address address{"", pool.host, pool.clients.port, ""};
  return StrCat("TESSERA_JOIN_TOKEN=", pool.join_token, " tessera-worker --join ", ToText(address), " --ca-pin ",
                pool.pin, " --memory 0.8");
}

absl::Status WriteAddress(const Pool& pool, const std::string& file) {
  const std::string address = ToText(Address{"", pool.host, pool.clients.port, ""});
  const nlohmann::ordered_json json = {
      {"address", address},
      {"token", pool.token},
      {"admin_token", pool.admin_token},
      {"ca", pool.folder + "/ca.crt"},
      {"join", {{"address", address}, {"ca_pin", pool.pin}, {"token", pool.join_token}}}};
  return WriteOwn(file, json.dump(2) + "\n");
}

}  // namespace tessera
