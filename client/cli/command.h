#pragma once

// The commands of `tessera`. Each adds itself to the application; it returns the exit status: 0 done, 1 failed, 2 wrong
// usage: a value that can't be taken. Words and flags that don't exist are main's.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/status/statusor.h"
#include "client/session.h"

namespace tessera {

// A command that was asked for runs after parsing.
struct Command {
  CLI::App* app = nullptr;
  std::function<int()> run;
};

Command AddUpCommand(CLI::App& app);
Command AddStatusCommand(CLI::App& app);
Command AddTensorsCommand(CLI::App& app);
Command AddCloseCommand(CLI::App& app);
Command AddKillWorkerCommand(CLI::App& app);
Command AddTenantsCommand(CLI::App& app);
Command AddLimitCommand(CLI::App& app);
Command AddEvictCommand(CLI::App& app);
Command AddCordonCommand(CLI::App& app);
Command AddUncordonCommand(CLI::App& app);
Command AddDrainCommand(CLI::App& app);
Command AddAuditCommand(CLI::App& app);
Command AddUsageCommand(CLI::App& app);
Command AddTopCommand(CLI::App& app);
Command AddDemoCommand(CLI::App& app);
Command AddDoctorCommand(CLI::App& app);
Command AddBenchCommand(CLI::App& app);
Command AddPlanCommand(CLI::App& app);
Command AddOpsCommand(CLI::App& app);
Command AddCertsCommand(CLI::App& app);
Command AddRunCommand(CLI::App& app);
Command AddKeepCommand(CLI::App& app);
Command AddJoinTokenCommand(CLI::App& app);
Command AddPublishedCommand(CLI::App& app);
Command AddUnpublishCommand(CLI::App& app);
Command AddUpgradeCommand(CLI::App& app);

// --address, with TESSERA_ADDRESS and the config file (~/.config/tessera/config.json) behind it. The token: that of the
// address, TESSERA_ADMIN_TOKEN, TESSERA_TOKEN, then the config file.
struct AddressOption {
  std::string address;
  std::string ca;
  void AddTo(CLI::App& command);
  // Whether any of them says where.
  bool IsGiven() const;
  // The variables, "NAME=VALUE", by which another process finds the same coordinator; none where nothing says where.
  std::vector<std::string> Environment() const;
  absl::StatusOr<Session> Connect() const;
};

// For CLI11: "" of what ParseBytes takes, else why it is refused.
std::string CheckBytes(const std::string& text);
// "1.50 GiB".
std::string ShowBytes(int64_t bytes);
// Prints "tessera: MESSAGE" to stderr; returns 2 for InvalidArgument, else 1.
int Failed(const absl::Status& status);
// Rows as columns, the first row is the head. Names that people gave are shown as printable text of one line.
std::string ShowTable(std::vector<std::vector<std::string>> rows);

}  // namespace tessera
