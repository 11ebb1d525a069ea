#pragma once

// The fewest elements that a redistribution can send across hosts, from the specs alone: it knows nothing of plans.

#include <cstdint>
#include <vector>

#include "schemas/types/tensor_spec.h"

namespace tessera {

// Transfers of each element:
//   moves    no pending terms: one for each host that wants it and has it not
//   sums     pending terms: one for each host that must send a sum to the one where it is reduced. That is a
//            destination that holds a term, if there is one; every other term comes from one of the fewest hosts that
//            have them all (found by trying every set of hosts)
//   spreads  likewise: one for each other host that wants it
struct Crossing {
  int64_t moves = 0;
  int64_t sums = 0;
  int64_t spreads = 0;
  bool operator==(const Crossing&) const = default;
};

// `host_of_worker` by worker index.
Crossing CountLeastCrossing(const TensorSpec& source, const TensorSpec& destination,
                            const std::vector<int32_t>& host_of_worker);

}  // namespace tessera
