#pragma once

// Overlay: the exchanges that bring a tensor, or a slice of it, from one spec to another. Pure.
//
//   f32[4,4] @ mesh(2) [S(0)] -> [S(1)]: one kMove, all_to_all; dim 0 has two entries for destination
//   shard 0, dim 1 has one entry for each destination shard.

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/plan/plan.h"

namespace tessera {

// One kMove; or, with pending terms, a kReduce and, where the destination replicates, a kGatherReduced.
struct NamedExchange {
  Exchange exchange;
  Collective name = Collective::kExchange;
};

// The destination's element i along dim d is the source's element start[d] + step[d] * i; both spans
// empty means the whole tensor, an empty step is 1 in every dim. Errors are ValidateRedistribute's.
absl::StatusOr<std::vector<NamedExchange>> MakeExchanges(const TensorSpec& source, const TensorSpec& destination,
                                                         absl::Span<const int64_t> start,
                                                         absl::Span<const int64_t> step);

}  // namespace tessera
