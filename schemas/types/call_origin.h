#pragma once

// The call that a failure began with, as a status carries it: the number of the call's first result. The client that
// asked for the call knows the line of its program by that number (client/call_sites.h). It travels as a payload's
// name, "tessera/call/17", and Python's classes don't depend on it.

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"

namespace tessera {

// Between a failure's own words and the ops that it came through (server/coordinator/failure.h).
inline constexpr std::string_view kOnTheWay = "; on the way here: ";

// The same error, of the call whose first result has this number; as it was, where that is 0 or one is known already.
absl::Status OfCall(const absl::Status& status, uint64_t first_result);
// nullopt: the status says none.
std::optional<uint64_t> CallOf(const absl::Status& status);
absl::Status WithoutCall(const absl::Status& status);

}  // namespace tessera
