#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "client/cli/command.h"
#include "schemas/types/str_cat.h"
#include "schemas/types/transports.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// The Python that has the package: TESSERA_PYTHON, else tools/python of a checkout around this binary.
std::string FindPython() {
  if (const char* from_env = std::getenv("TESSERA_PYTHON"); from_env != nullptr) return from_env;
  std::error_code error;
  for (const fs::path& start : {fs::read_symlink("/proc/self/exe", error), fs::current_path(error) / "x"}) {
    for (fs::path folder = start.parent_path(); folder.has_relative_path(); folder = folder.parent_path()) {
      if (fs::exists(folder / "tools" / "python", error)) return (folder / "tools" / "python").string();
    }
  }
  return "python3";
}

int Demo(const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {FindPython(), "-m", "tessera.demo"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& argument : all) argv.push_back(argument.data());
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  return Failed(absl::NotFoundError(StrCat("demo: ", all[0], " does not start: ", std::string_view(strerror(errno)))));
}

}  // namespace

Command AddDemoCommand(CLI::App& app) {
  CLI::App* command = app.add_subcommand("demo", "Nearest neighbours of handwritten digits on four workers, checked");
  auto arguments = std::make_shared<std::vector<std::string>>();
  struct Options {
    bool json = false;
    std::string transport;
  };
  auto options = std::make_shared<Options>();
  command->add_flag("--json", options->json, "one JSON object on stdout");
  command->add_option("--transport", options->transport, "between workers")
      ->check(CLI::IsMember(TransportNames([](const Transport& one) { return NeedsNothing(one) && !NeedsGpu(one); })));
  command->footer("Examples:\n  tessera demo\n  tessera demo --json | python3 -m json.tool");
  return {command, [options, arguments] {
            if (options->json) arguments->push_back("--json");
            if (!options->transport.empty()) arguments->push_back("--transport=" + options->transport);
            return Demo(*arguments);
          }};
}

}  // namespace tessera
