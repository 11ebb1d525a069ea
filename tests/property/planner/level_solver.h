#pragma once

// The least that the busiest sender of a redistribution can send: an exact solver that knows nothing of plans.

#include <cstdint>

#include "schemas/types/tensor_spec.h"

namespace tessera {

// Elements. Every destination takes each box that it lacks (what it wants of one source shard) from the holders of
// that shard, whole or in parts: the smallest limit on all senders under which a flow from the boxes over their
// holders takes everything, found by bisection. No assignment of whole boxes has a smaller maximum. No pending terms.
int64_t LeastBusiestSender(const TensorSpec& source, const TensorSpec& destination);

}  // namespace tessera
