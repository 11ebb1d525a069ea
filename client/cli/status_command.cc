#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "schemas/types/status_macros.h"
#include "schemas/types/str_cat.h"

namespace tessera {
namespace {

struct ReadOptions {
  AddressOption address;
  bool json = false;
};

nlohmann::json WorkersJson(const ClusterReport& report) {
  nlohmann::json out = nlohmann::json::array();
  for (const WorkerReport& worker : report.workers) {
    out.push_back({{"index", worker.index},
                   {"state", std::string(ToText(worker.state))},
                   {"pid", worker.pid},
                   {"host", worker.host},
                   {"device", std::string(ToText(worker.device))},
                   {"memory_bytes", worker.memory_bytes},
                   {"used_bytes", worker.used_bytes},
                   {"spilled_bytes", worker.spilled_bytes},
                   {"spilled_to_host_bytes", worker.spilled_to_host_bytes},
                   {"received_bytes", worker.received_bytes},
                   {"outstanding", worker.outstanding}});
  }
  return out;
}

nlohmann::json SessionsJson(const ClusterReport& report) {
  nlohmann::json out = nlohmann::json::array();
  for (const SessionReport& session : report.sessions) {
    out.push_back({{"id", session.id},
                   {"tenant", session.tenant},
                   {"client", session.client},
                   {"tensors", session.tensors},
                   {"bytes", session.bytes},
                   {"spilled_bytes", session.spilled_bytes},
                   {"queued", session.queued},
                   {"connected", session.connected}});
  }
  return out;
}

std::string SessionsText(const ClusterReport& report) {
  std::vector<std::vector<std::string>> rows = {
      {"SESSION", "TENANT", "CLIENT", "TENSORS", "BYTES/WORKER", "IN FILES", "QUEUED", "CONNECTED"}};
  for (const SessionReport& session : report.sessions) {
    rows.push_back({StrCat(session.id), session.tenant, session.client, StrCat(session.tensors),
                    ShowBytes(session.bytes), ShowBytes(session.spilled_bytes), StrCat(session.queued),
                    session.connected ? "yes" : "no"});
  }
  return ShowTable(rows);
}

// Bytes that are no text are shown as such, and all that isn't ASCII is escaped.
std::string JsonText(const nlohmann::json& json) {
  return json.dump(2, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

// A client that sees its own session alone is told how many there are.
std::string TotalsText(const ClusterReport& report) {
  return StrCat(report.session_count, " sessions hold ", report.tensor_count, " tensors",
                report.sessions.size() < report.session_count ? "; an admin's token shows them all" : "", "\n");
}

void PrintStatus(const ClusterReport& report, const ReadOptions& options) {
  if (options.json) {
    nlohmann::json out = {{"uptime_s", report.uptime_s},           {"epoch", report.epoch},
                          {"workers", WorkersJson(report)},        {"sessions", SessionsJson(report)},
                          {"next_ordinal", report.next_ordinal},   {"plans_cached", report.plans_cached},
                          {"plan_hits", report.plan_hits},         {"plan_misses", report.plan_misses},
                          {"session_count", report.session_count}, {"tensor_count", report.tensor_count}};
    std::printf("%s\n", JsonText(out).c_str());
    return;
  }
  std::vector<std::vector<std::string>> rows = {
      {"WORKER", "STATE", "PID", "DEVICE", "USED", "MEMORY", "RECEIVED", "OUTSTANDING"}};
  for (const WorkerReport& worker : report.workers) {
    rows.push_back({StrCat(worker.index), std::string(ToText(worker.state)), StrCat(worker.pid),
                    std::string(ToText(worker.device)), ShowBytes(worker.used_bytes), ShowBytes(worker.memory_bytes),
                    ShowBytes(worker.received_bytes), StrCat(worker.outstanding)});
  }
  std::printf("up %.0f s, %d ops issued, %d plans cached\n\n%s\n%s%s", report.uptime_s,
              static_cast<int>(report.next_ordinal) - 1, static_cast<int>(report.plans_cached), ShowTable(rows).c_str(),
              SessionsText(report).c_str(), TotalsText(report).c_str());
}

// By session: a session's tensors are told to that session alone.
void PrintTensors(const ClusterReport& report, const ReadOptions& options) {
  if (options.json) {
    std::printf("%s\n", JsonText({{"sessions", SessionsJson(report)}}).c_str());
    return;
  }
  std::printf("%s%s", SessionsText(report).c_str(), TotalsText(report).c_str());
}

struct CloseOptions {
  AddressOption address;
  uint64_t session = 0;
};

int CloseSession(const CloseOptions& options) {
  absl::StatusOr<Session> session = options.address.Connect();
  if (!session.ok()) return Failed(session.status());
  if (absl::Status status = session->CloseOther(options.session); !status.ok()) return Failed(status);
  std::printf("session %llu is closed\n", static_cast<unsigned long long>(options.session));
  return 0;
}

struct KillOptions {
  AddressOption address;
  int32_t worker = 0;
  std::string reason;
};

int KillWorker(const KillOptions& options) {
  absl::StatusOr<Session> session = options.address.Connect();
  if (!session.ok()) return Failed(session.status());
  if (absl::Status status = session->KillWorker(WorkerIndex(options.worker), options.reason); !status.ok()) {
    return Failed(status);
  }
  std::printf("worker %d is ended\n", options.worker);
  return 0;
}

using Print = void (*)(const ClusterReport&, const ReadOptions&);

int Read(const ReadOptions& options, Print print) {
  absl::StatusOr<Session> session = options.address.Connect();
  if (!session.ok()) return Failed(session.status());
  absl::StatusOr<ClusterReport> report = session->Status();
  if (!report.ok()) return Failed(report.status());
  print(*report, options);
  if (absl::Status closed = session->Close(); !closed.ok()) return Failed(closed);
  return 0;
}

Command AddReadCommand(CLI::App& app, const char* name, const char* what, const char* examples, Print print) {
  CLI::App* command = app.add_subcommand(name, what);
  auto options = std::make_shared<ReadOptions>();
  options->address.AddTo(*command);
  command->add_flag("--json", options->json, "one JSON object on stdout");
  command->footer(examples);
  return {command, [options, print] { return Read(*options, print); }};
}

}  // namespace

Command AddStatusCommand(CLI::App& app) {
  return AddReadCommand(app, "status", "Workers, their memory, and who is connected",
                        "Examples:\n  tessera status --address unix:/run/tessera.sock\n  tessera status --json",
                        &PrintStatus);
}

Command AddCloseCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("close", "End a session and free what it has; needs the admin's token");
  auto options = std::make_shared<CloseOptions>();
  options->address.AddTo(*command);
  command->add_option("session", options->session, "its number, as `tessera status` shows it")->required();
  command->footer("Example:\n  TESSERA_ADMIN_TOKEN=... tessera close 7 --address unix:/run/tessera.sock");
  return {command, [options] { return CloseSession(*options); }};
}

Command AddKillWorkerCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("kill-worker",
                                         "End a worker's process, as if it were silent; needs the admin's token.\n"
                                         "Tensors that have no copy on other workers fail with the reason");
  auto options = std::make_shared<KillOptions>();
  options->address.AddTo(*command);
  command->add_option("worker", options->worker, "its number, as `tessera status` shows it")
      ->required()
      ->check(CLI::NonNegativeNumber);
  command->add_option("--reason", options->reason, "what the errors of its tensors, and the log, say");
  command->footer(
      "Example:\n  TESSERA_ADMIN_TOKEN=... tessera kill-worker 3 --reason \"its GPU hangs\" --address "
      "unix:/run/tessera.sock");
  return {command, [options] { return KillWorker(*options); }};
}

Command AddTensorsCommand(CLI::App& app) {
  return AddReadCommand(app, "tensors", "Who holds how many tensors, and how large",
                        "Examples:\n  tessera tensors\n  tessera tensors --json --address unix:/run/tessera.sock",
                        &PrintTensors);
}

}  // namespace tessera
