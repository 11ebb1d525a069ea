#pragma once

// Where the servers' programs are, for what starts or asks them.

#include <string>

#include "absl/status/statusor.h"

namespace tessera {

// The path of "coordinator" or "worker": in `folder`, else in TESSERA_BIN_DIR, else near this program. NotFound, with
// where it was looked for.
absl::StatusOr<std::string> FindServerProgram(const std::string& role, const std::string& folder = "");

}  // namespace tessera
