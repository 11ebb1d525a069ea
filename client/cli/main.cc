// tessera: the command line.

#include <cstdio>
#include <vector>

#include "client/cli/command.h"

int main(int argc, char** argv) {
  CLI::App app("Tessera: large tensors in shards on worker servers", "tessera");
  app.require_subcommand(1);
  app.set_version_flag("--version", "tessera 0.1");
  app.footer(
      "Examples:\n  tessera up --workers 4\n  tessera status --address unix:/run/tessera.sock\n"
      "  tessera plan \"f32[8192,8192] @ mesh(x:4) [S(0)] -> [S(1)]\"\n  tessera demo");
  const std::vector<tessera::Command> commands = {tessera::AddUpCommand(app),      tessera::AddStatusCommand(app),
                                                  tessera::AddTensorsCommand(app), tessera::AddPlanCommand(app),
                                                  tessera::AddDemoCommand(app),    tessera::AddDoctorCommand(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  for (const tessera::Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return 2;
}
