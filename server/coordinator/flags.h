#pragma once

// A coordinator process's options: by flags, the environment and a config file (server/process/config_file.h).

#include <optional>

#include "server/coordinator/rpc/enroller.h"
#include "server/coordinator/rpc/options.h"

namespace tessera {

// Fills both kinds of options, and begins the log. The exit status where nothing is left to do, which was said: 0 for
// --help and
// --check-config, 2 where something is refused. Before any thread starts: tokens leave the environment.
std::optional<int> ReadFlags(int argc, char** argv, CoordinatorOptions& options, EnrolOptions& enrol);

}  // namespace tessera
