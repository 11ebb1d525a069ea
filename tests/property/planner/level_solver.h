#pragma once

// The least that the busiest sender of a redistribution can send: an exact solver that knows nothing of plans.

#include <cstdint>
#include <vector>

#include "schemas/types/tensor_spec.h"

namespace tessera {

// Elements. Every destination takes each box that it lacks (what it wants of one source shard) from the holders of
// that shard, whole or in parts: the smallest limit on all senders under which a flow from the boxes over their
// holders takes everything, found by bisection. No assignment of whole boxes has a smaller maximum. No pending terms.
// `host_of_worker`, where it is given: who has a holder on its own host takes from those alone, and of those on one
// host that want the same box from others one takes it.
int64_t LeastBusiestSender(const TensorSpec& source, const TensorSpec& destination,
                           const std::vector<int32_t>& host_of_worker = {});

}  // namespace tessera
