#pragma once

// Errors that a client raises as a narrower type. The status code is InvalidArgument; the payload
// says which: Python raises DTypeError, IndexOutOfRangeError and LinAlgError by them.

#include <string_view>

#include "absl/status/status.h"

namespace tessera {

// Type URLs of the payloads (an Abseil API takes them as they are).
inline constexpr char kDTypeErrorPayload[] = "tessera/dtype";
inline constexpr char kIndexErrorPayload[] = "tessera/index";
inline constexpr char kLinalgErrorPayload[] = "tessera/linalg";

// InvalidArgument with kDTypeErrorPayload.
absl::Status DTypeError(std::string_view message);
// InvalidArgument with kIndexErrorPayload: a dim, an index or a coordinate out of range.
absl::Status IndexOutOfRangeError(std::string_view message);

// InvalidArgument with kLinalgErrorPayload: a matrix that has no answer, as a singular one.
absl::Status LinalgError(std::string_view message);

// The same error, payloads included, in other words.
absl::Status WithMessage(const absl::Status& status, std::string_view message);

}  // namespace tessera
