#pragma once

// Control flow for absl::Status and absl::StatusOr, and the check for what our own code guarantees.
//
//   TESSERA_RETURN_IF_ERROR(Validate(spec));
//   TESSERA_ASSIGN_OR_RETURN(Plan plan, PlanRedistribute(source, destination));
//   TESSERA_CHECK(offset % 64 == 0);   the message is the expression itself
//
// TESSERA_CHECK ends the process. It is never used for what came from outside.

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera {

// Prints the failed expression and aborts.
[[noreturn]] void CheckFailed(const char* expression, const char* file, int line);

}  // namespace tessera

#define TESSERA_CHECK(condition) ((condition) ? (void)0 : ::tessera::CheckFailed(#condition, __FILE__, __LINE__))

#define TESSERA_RETURN_IF_ERROR(expression)                   \
  do {                                                        \
    if (absl::Status status_ = (expression); !status_.ok()) { \
      return status_;                                         \
    }                                                         \
  } while (false)

#define TESSERA_CONCAT_INNER_(a, b) a##b
#define TESSERA_CONCAT_(a, b) TESSERA_CONCAT_INNER_(a, b)

#define TESSERA_ASSIGN_OR_RETURN(left, expression) \
  TESSERA_ASSIGN_OR_RETURN_(TESSERA_CONCAT_(status_or_, __LINE__), left, expression)
#define TESSERA_ASSIGN_OR_RETURN_(name, left, expression) \
  auto name = (expression);                               \
  if (!name.ok()) return name.status();                   \
  left = *std::move(name)
