#pragma once

// PlanLimits: what a plan must keep to where it runs. They may cost time; they change no bit of an answer.

#include <cstdint>
#include <optional>

namespace tessera {

struct PlanLimits {
  // Of the temporary buffers of a contraction, or of a redistribution that converts, on each worker together; none: as
  // many as what moves the fewest bytes takes.
  std::optional<int64_t> temporary_bytes;
};

}  // namespace tessera
