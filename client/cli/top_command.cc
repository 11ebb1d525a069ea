// tessera top: workers, tenants and sessions of a pool, again and again: what each does now, as the difference of two
// answers.

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <map>
#include <memory>
#include <thread>

#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

struct TopOptions {
  AddressOption address;
  double every_s = 1;
  bool once = false;
};

struct Look {
  ClusterReport cluster;
  std::vector<TenantReport> tenants;
};

absl::StatusOr<Look> LookAt(const Session& session) {
  Look look;
  TESSERA_ASSIGN_OR_RETURN(look.cluster, session.Status());
  TESSERA_ASSIGN_OR_RETURN(look.tenants, session.Tenants());
  return look;
}

std::string StateOf(const WorkerReport& worker) {
  if (worker.is_draining) return "draining";
  if (worker.is_cordoned && worker.state == WorkerState::kAlive) return "cordoned";
  return std::string(ToText(worker.state));
}

std::string TopText(const Look& before, const Look& now) {
  const double passed_s = std::max(1e-3, now.cluster.uptime_s - before.cluster.uptime_s);
  std::map<std::string, double> spent_s;
  for (const TenantReport& tenant : before.tenants) spent_s[tenant.name] -= tenant.device_seconds;
  double all_s = 0, all_weights = 0;
  for (const TenantReport& tenant : now.tenants) {
    double& spent = spent_s[tenant.name] += tenant.device_seconds;
    if (spent <= 0) continue;
    all_s += spent;
    all_weights += static_cast<double>(tenant.weight);
  }
  std::string text =
      absl::StrFormat("up %.0f s, %.0f ops/s, %d sessions hold %d tensors\n\n", now.cluster.uptime_s,
                      static_cast<double>(now.cluster.next_ordinal - before.cluster.next_ordinal) / passed_s,
                      static_cast<int64_t>(now.cluster.session_count), static_cast<int64_t>(now.cluster.tensor_count));
  std::map<int32_t, int64_t> received;
  for (const WorkerReport& worker : before.cluster.workers) received[worker.index] = worker.received_bytes;
  std::vector<std::vector<std::string>> workers = {{"WORKER", "STATE", "USED", "MEMORY", "OUTSTANDING", "RECEIVED/S"}};
  for (const WorkerReport& worker : now.cluster.workers) {
    const int64_t moved = std::max<int64_t>(0, worker.received_bytes - received[worker.index]);
    workers.push_back({StrCat(worker.index), StateOf(worker), ShowBytes(worker.used_bytes),
                       ShowBytes(worker.memory_bytes), StrCat(worker.outstanding),
                       ShowBytes(static_cast<int64_t>(static_cast<double>(moved) / passed_s))});
  }
  std::vector<std::vector<std::string>> tenants = {
      {"TENANT", "WEIGHT", "SHARE", "OF-WEIGHTS", "DEVICES", "USED/WORKER", "SESSIONS", "QUEUED"}};
  for (const TenantReport& tenant : now.tenants) {
    const double spent = spent_s[tenant.name];
    const bool has_share = all_s > 0 && spent > 0;
    tenants.push_back(
        {tenant.name, StrCat(tenant.weight), has_share ? absl::StrFormat("%.1f %%", 100 * spent / all_s) : "-",
         has_share ? absl::StrFormat("%.1f %%", 100 * static_cast<double>(tenant.weight) / all_weights) : "-",
         absl::StrFormat("%.2f", std::max(0.0, spent) / passed_s), ShowBytes(tenant.used_bytes),
         StrCat(tenant.sessions), StrCat(tenant.queued)});
  }
  std::vector<SessionReport> busiest = now.cluster.sessions;
  std::stable_sort(busiest.begin(), busiest.end(),
                   [](const SessionReport& a, const SessionReport& b) { return a.bytes > b.bytes; });
  if (busiest.size() > 20) busiest.resize(20);
  std::vector<std::vector<std::string>> sessions = {
      {"SESSION", "TENANT", "NAME", "CLIENT", "TENSORS", "BYTES/WORKER", "QUEUED", "CONNECTED"}};
  for (const SessionReport& session : busiest) {
    sessions.push_back({StrCat(session.id), session.tenant, session.name.empty() ? "-" : session.name, session.client,
                        StrCat(session.tensors), ShowBytes(session.bytes), StrCat(session.queued),
                        session.connected ? "yes" : "no"});
  }
  return text + ShowTable(workers) + "\n" + ShowTable(tenants) + "\n" + ShowTable(sessions);
}

// As many lines as the terminal has.
std::string Cut(const std::string& text) {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0) return text;
  size_t at = 0;
  for (int line = 0; line + 1 < size.ws_row && at < text.size(); ++line)
    at = std::min(text.find('\n', at), text.size() - 1) + 1;
  return text.substr(0, at);
}

int Top(const TopOptions& options) {
  absl::StatusOr<Session> session = options.address.Connect();
  if (!session.ok()) return Failed(session.status());
  absl::StatusOr<Look> before = LookAt(*session);
  if (!before.ok()) return Failed(before.status());
  const std::chrono::duration<double> pause(options.once ? std::min(options.every_s, 0.5) : options.every_s);
  for (;;) {
    std::this_thread::sleep_for(pause);
    absl::StatusOr<Look> now = LookAt(*session);
    if (!now.ok()) return Failed(now.status());
    const std::string text = TopText(*before, *now);
    if (options.once || isatty(STDOUT_FILENO) == 0) {
      std::printf("%s\n", text.c_str());
    } else {
      std::printf("\x1b[H\x1b[2J%s", Cut(text).c_str());
    }
    if (std::fflush(stdout) != 0 || options.once) break;
    before = std::move(now);
  }
  if (absl::Status closed = session->Close(); !closed.ok()) return Failed(closed);
  return 0;
}

}  // namespace

Command AddTopCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "top", "Workers, tenants and sessions, shown again and again; an admin's token shows them all");
  auto options = std::make_shared<TopOptions>();
  options->address.AddTo(*command);
  command->add_option("--every", options->every_s, "seconds between two looks")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  command->add_flag("--once", options->once, "show it once, over half a second, and end");
  command->footer("Examples:\n  TESSERA_ADMIN_TOKEN=... tessera top\n  tessera top --once");
  return {command, [options] { return Top(*options); }};
}

}  // namespace tessera
