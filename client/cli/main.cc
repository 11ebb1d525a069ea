// tessera: the command line.

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/command.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/version.h"

namespace {

// The first word is a command or an option of the program: CLI11 would pass over any other word, and help itself to the
// flags behind it. "" or why it is refused.
std::string CheckFirstWord(const CLI::App& app, const std::vector<tessera::Command>& commands, std::string_view word) {
  const bool is_option = word.substr(0, 1) == "-";
  if (is_option && app.get_option_no_throw(std::string(word)) != nullptr) return "";
  std::string known;
  for (const tessera::Command& command : commands) {
    if (command.app->get_name() == word) return "";
    known += " " + command.app->get_name();
  }
  return tessera::StrCat(is_option ? "unknown option \"" : "unknown command \"", tessera::Printable(word, 40),
                         "\"; commands:", known);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Tessera: large tensors in shards on worker servers", "tessera");
  app.require_subcommand(1);
  app.set_version_flag("--version", tessera::StrCat("tessera ", tessera::kVersion));
  app.footer(
      "Examples:\n  tessera up --workers 4\n  tessera status --address unix:/run/tessera.sock\n"
      "  tessera plan \"f32[8192,8192] @ mesh(x:4) [S(0)] -> [S(1)]\"\n  tessera run --nproc 4 train.py\n  tessera "
      "demo");
  const std::vector<tessera::Command> commands = {
      tessera::AddUpCommand(app),      tessera::AddStatusCommand(app),     tessera::AddTensorsCommand(app),
      tessera::AddCloseCommand(app),   tessera::AddKillWorkerCommand(app), tessera::AddPlanCommand(app),
      tessera::AddOpsCommand(app),     tessera::AddBenchCommand(app),      tessera::AddDemoCommand(app),
      tessera::AddDoctorCommand(app),  tessera::AddCertsCommand(app),      tessera::AddRunCommand(app),
      tessera::AddTenantsCommand(app), tessera::AddLimitCommand(app),      tessera::AddEvictCommand(app),
      tessera::AddCordonCommand(app),  tessera::AddUncordonCommand(app),   tessera::AddDrainCommand(app),
      tessera::AddAuditCommand(app),   tessera::AddUsageCommand(app),      tessera::AddTopCommand(app),
      tessera::AddKeepCommand(app),    tessera::AddPublishedCommand(app),  tessera::AddUnpublishCommand(app),
      tessera::AddUpgradeCommand(app), tessera::AddJoinTokenCommand(app)};
  if (const std::string why = argc > 1 ? CheckFirstWord(app, commands, argv[1]) : ""; !why.empty()) {
    return tessera::Failed(absl::InvalidArgumentError(why));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  for (const tessera::Command& command : commands) {
    if (!command.app->parsed()) continue;
    const int status = command.run();
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
    return std::max(status, tessera::Failed(absl::UnavailableError("the output can't be written")));
  }
  return 2;
}
