#pragma once

// PlanLimits: what a plan must keep to where it runs. They may cost time; they change no bit of an answer.

#include <cstdint>
#include <optional>

namespace tessera {

struct PlanLimits {
  // Of a contraction's temporary buffers on each worker together; none: as many as the best grid takes.
  std::optional<int64_t> temporary_bytes;
};

}  // namespace tessera
