#pragma once

// Sizes of memory as people write them. Not what is in a memory: no value, only its notation.
//
//   ParseBytes("512MiB") == 536870912;  ParseBytes("1.5 kB") == 1500;  ParseBytes("4096") == 4096

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

// A number and a unit (B kB MB GB TB KiB MiB GiB TiB, in any case; none is B), with or without spaces around them.
// InvalidArgument, without the name of whose size it is: no number, a unit that is none, or not in [1, 9e18] bytes.
absl::StatusOr<int64_t> ParseBytes(std::string_view text);

}  // namespace tessera
