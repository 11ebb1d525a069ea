#pragma once

// A worker process's options: by flags, the environment and a config file (server/process/config_file.h).

#include <optional>

#include "server/worker/options.h"

namespace tessera {

// Fills the options, and begins the log. The exit status where nothing is left to do, which was said: 0 for --help and
// --check-config, 2 where something is refused. Before any thread starts: tokens leave the environment.
std::optional<int> ReadFlags(int argc, char** argv, WorkerOptions& options);

}  // namespace tessera
