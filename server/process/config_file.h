#pragma once

// A server's flags in a file (TOML), where each key is a flag without its dashes, and in the environment:
//
//   # /etc/tessera/coordinator.toml            tessera-coordinator --config /etc/tessera/coordinator.toml
//   listen = ["unix:/run/tessera/socket"]      TESSERA_COORDINATOR_LISTEN_HTTP=127.0.0.1:9464
//   listen-http = "127.0.0.1:9464"
//
// A flag of the command line beats the environment, which beats the file. The file is taken whole or not at all: a key
// that is no flag, one that is there twice, a value of another kind or out of its range are errors with file, line and
// key. Tokens stand in no such file: `tokens = "FILE"` names one that others may not read.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "server/process/log.h"

namespace tessera {

inline constexpr size_t kMaxConfigFileBytes = size_t{1} << 20;  // docs/limits.md: max_config_file_bytes

// --log-level and --log-format.
void AddLogFlags(CLI::App& app, LogOptions& options);

// --exit-with-parent-fd and --outlive-parent (schemas/link/parent_watch.h).
void AddParentFlags(CLI::App& app, int& fd, double& outlive_s);

class ConfigFile {
 public:
  // Adds --config and --check-config to an application that has all its other flags, and names the variables:
  // `prefix` and the flag's name, as in the example. Both live as long as the application.
  ConfigFile(CLI::App& app, const std::string& prefix);
  ConfigFile(const ConfigFile&) = delete;
  ConfigFile& operator=(const ConfigFile&) = delete;

  // Parses arguments, variables and the file. The exit status where nothing is left to do: 0 for --help and --version,
  // 2 where something is refused, which was said on stderr.
  std::optional<int> Parse(int argc, char** argv);

  bool is_check() const { return is_check_; }
  // Answers --check-config: says that the flags are good, and returns 0.
  int SayGood() const;
  // The message, behind the file and the line of the key that it names as a flag, if that came from the file.
  std::string Located(const std::string& message) const;

 private:
  class Reader;
  CLI::App& app_;
  bool is_check_ = false;
  std::shared_ptr<std::map<std::string, std::string>> places_;  // by key: "FILE:LINE"
};

}  // namespace tessera
