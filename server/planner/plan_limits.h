#pragma once

// PlanLimits: what a plan must keep to where it runs. They may cost time; they change the order of no sum of terms. How
// a product of floats rounds they may change where they have it worked off in parts (split.h).

#include <cstdint>
#include <optional>

namespace tessera {

struct PlanLimits {
  // Bound of a contraction's temporary buffers, on each worker together; none: as many as the way that moves the fewest
  // bytes takes.
  std::optional<int64_t> temporary_bytes;
};

}  // namespace tessera
